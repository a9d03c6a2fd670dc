"""Are two structures the same? The one comparison of lists, sets, tuples, intervals and equations.

The caller and the engine share it and only supply different comparisons of formulas, so both give the same verdict. In
three-valued logic an undecided part leaves the whole undecided unless another part already makes it wrong.

What is the same:

- Lists (`1, 2`, `1 and 2`, `\\pm 1`): entry by entry in any order (policy `lists`), each as often. Against a set,
  entries count once. A list is never one number: many candidates for one gold are wrong.
- Sets in braces: any order, duplicates merged. A set of one is that one.
- Tuples and points: in order (policy `tuples`). A tuple is no set. A list without brackets is a tuple when the order
  is the same. A column or row of a matrix is a tuple.
- Intervals: same ends, same brackets (`intervals: lenient`: any brackets). `(1, 2)` may be a point or an interval:
  equal as written is equal. Two things in brackets with a square one are an interval; three are a tuple, whatever the
  brackets. `x > 3` is `(3, \\infty)`, `x \\in [1, 2]` is `[1, 2]`, `]1, 2[` is `(1, 2)`, `\\mathbb{R}` is `(-\\infty,
  \\infty)`.
- Unions: any order.
- Equations (policy `equations`): `x = 5` is 5, `f(x) = x^2` is x^2, `x = 10/2 = 5` is 5 (all of them must be), also in
  lists: `x = 1, y = 2` is (1, 2) by the order of the names. Between equations the names count: x = 5 is not y = 5. 2x
  - y = 1 is y = 2x - 1. By `whole` an equation equals equations only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from rloop_core.verifier.canonical_latex import key
from rloop_core.verifier.names import is_name
from rloop_core.verifier.numbers import number, without_groups
from rloop_core.verifier.policies import Policies
from rloop_core.verifier.shapes import Group, Leaf, Relation, Shape, as_interval, parse, rising

LeafComparison: TypeAlias = Callable[[str, str], bool | None]
EquationComparison: TypeAlias = Callable[[tuple[str, str], tuple[str, str]], bool | None]

_MAX_MATCHED = 40
"""Entries up to which lists are matched formula by formula; longer ones must agree as written or as numbers."""


def same(answer: str, gold: str, policies: Policies, leaf: LeafComparison, equation: EquationComparison) -> bool | None:
    """The structural comparison; leaf compares formulas, equation whole equations, each None where it cannot tell."""
    if key(answer) == key(gold):
        return True
    left, right = parse(answer, policies), parse(gold, policies)
    comparison = _Comparison(policies, leaf, equation)
    found = comparison.shapes(left, right)
    if found is not False or policies.thousands != "comma":
        return found
    # `100,200` may be a number or a list; against a list or a set it is read as one.
    if isinstance(left, Leaf) != isinstance(right, Leaf) and isinstance(
        left if isinstance(right, Leaf) else right, Group
    ):
        entries = policies.model_copy(update={"thousands": "none"})
        text = answer if isinstance(left, Leaf) else gold
        if "," in text and without_groups(text, policies) != text and number(text, policies) is not None:
            again = parse(text, entries)
            return comparison.shapes(again, right) if isinstance(left, Leaf) else comparison.shapes(left, again)
    return found


def _all(results: Iterable[bool | None]) -> bool | None:
    """Three-valued and; stops at the first False."""
    undecided = False
    for result in results:
        if result is False:
            return False
        undecided = undecided or result is None
    return None if undecided else True


def _any(results: Iterable[bool | None]) -> bool | None:
    """Three-valued or; stops at the first True."""
    undecided = False
    for result in results:
        if result:
            return True
        undecided = undecided or result is None
    return None if undecided else False


class _Comparison:
    def __init__(self, policies: Policies, leaf: LeafComparison, equation: EquationComparison) -> None:
        self._policies = policies
        self._leaf = leaf
        self._equation = equation

    def shapes(self, left: Shape, right: Shape) -> bool | None:
        """Whether two structures are equal."""
        if isinstance(left, Leaf) and isinstance(right, Leaf):
            return self._leaf(left.text, right.text)
        left, right = self._as_region(left, right), self._as_region(right, left)
        if isinstance(left, Relation) and isinstance(right, Relation):
            return self._relations(left, right)
        if isinstance(left, Relation):
            return self._value(left, right, lambda value: self.shapes(value, right))
        if isinstance(right, Relation):
            return self._value(right, left, lambda value: self.shapes(left, value))
        if isinstance(left, Group) and isinstance(right, Group):
            return self._groups(left, right)
        group, other = (left, right) if isinstance(left, Group) else (right, left)
        assert isinstance(group, Group) and isinstance(other, Leaf)
        if group.kind == "matrix" or "\\begin{" in other.text:
            return None if "matrix" in other.text else False
        if group.kind == "set" and len(group.items) == 1:
            one = group.items[0]
            return self.shapes(one, right) if group is left else self.shapes(left, one)
        return False

    def _as_region(self, shape: Shape, other: Shape) -> Shape:
        """Inequalities as intervals, and lists of them as unions, for comparison with an interval or a union."""
        if (isinstance(other, Group) and other.kind in ("tuple", "union")) or isinstance(other, Relation):
            if isinstance(shape, Group) and shape.kind == "list":
                found = [as_interval(item, self._policies) for item in shape.items]
                if all(found):
                    return Group("union", tuple(one[1] for one in found if one))
            if isinstance(other, Group):
                one = as_interval(shape, self._policies)
                return one[1] if one else shape
            if other.signs == ("\\in",):
                one = as_interval(shape, self._policies)
                return Relation(("\\in",), (one[0], _interval_text(one[1]))) if one else shape
        return shape

    def _value(self, relation: Relation, other: Shape, against: Callable[[Shape], bool | None]) -> bool | None:
        """`x = 5` against 5, `x \\in S` against S."""
        if relation.signs == ("\\in",):
            return against(parse(relation.parts[1], self._policies)) if is_name(relation.parts[0]) else False
        if set(relation.signs) != {"="} or self._policies.equations == "whole":
            return False
        parts = relation.parts
        if is_name(parts[0]):
            parts = parts[1:]
        elif is_name(parts[-1]):
            parts = parts[:-1]
        return _all(against(parse(part, self._policies)) for part in parts)

    def _relations(self, left: Relation, right: Relation) -> bool | None:
        equal = {"=", "\\in"}
        if set(left.signs) <= equal and set(right.signs) <= equal:
            if len(left.parts) == len(right.parts) == 2:
                return self._equations(left, right)
            # `x = 10/2 = 5` against `x = 5`: each value of one is each value of the other.
            if not (is_name(left.parts[0]) and key(left.parts[0]) == key(right.parts[0])):
                return False
            values = [[parse(part, self._policies) for part in side.parts[1:]] for side in (left, right)]
            return _all(self.shapes(one, other) for one in values[0] for other in values[1])
        if set(left.signs) & equal or set(right.signs) & equal:
            return False
        names = [as_interval(side, self._policies) for side in (left, right)]
        if names[0] and names[1]:
            return self.shapes(names[0][1], names[1][1]) if names[0][0] == names[1][0] else False
        (ours, our_parts), (theirs, their_parts) = rising(left), rising(right)
        if ours is None or theirs is None or len(our_parts) != len(their_parts):
            return False
        if self._policies.intervals == "strict" and ours != theirs:
            return False
        return _all(self._leaf(one, other) for one, other in zip(our_parts, their_parts, strict=True))

    def _equations(self, left: Relation, right: Relation) -> bool | None:
        (our_name, ours), (their_name, theirs) = left.parts, right.parts
        named = is_name(our_name), is_name(their_name)
        if "\\in" in left.signs + right.signs and left.signs != right.signs:
            return False
        if all(named):
            alike = key(our_name) == key(their_name) or {key(our_name)[0], key(their_name)[0]} in ({"y", "f"},)
            values = self.shapes(parse(ours, self._policies), parse(theirs, self._policies))
            if alike or left.signs == ("\\in",):
                return values if alike else False
            numeric = number(ours, self._policies) is not None or number(theirs, self._policies) is not None
            if numeric:
                return False
        return self._equation((our_name, ours), (their_name, theirs)) if left.signs == ("=",) else False

    def _groups(self, left: Group, right: Group) -> bool | None:
        kinds = {left.kind, right.kind}
        if kinds == {"list"}:
            left_names, right_names = _names(left), _names(right)
            if self._policies.lists == "ordered" and not (left_names and right_names):
                return self._ordered(left.items, right.items)
            return self._matched(left.items, right.items)
        if kinds in ({"set"}, {"set", "list"}):
            return self._as_sets(left.items, right.items)
        if kinds == {"union"} or kinds == {"union", "tuple"}:
            parts = [side.items if side.kind == "union" else (side,) for side in (left, right)]
            return self._as_sets(parts[0], parts[1])
        if kinds == {"matrix"}:
            return self._ordered(left.items, right.items) if left.left == right.left else False
        if kinds == {"tuple"}:
            return self._tuples(left, right)
        if kinds == {"tuple", "list"}:
            listed, bracketed = (left, right) if left.kind == "list" else (right, left)
            if not _is_tuple(bracketed):
                return False
            items = _by_name(listed)
            sides = (items, bracketed.items) if listed is left else (bracketed.items, items)
            return self._matched(*sides) if self._policies.tuples == "unordered" else self._ordered(*sides)
        if kinds == {"tuple", "matrix"}:
            vector, bracketed = (left, right) if left.kind == "matrix" else (right, left)
            if not _is_tuple(bracketed) or vector.left not in ("1", str(len(vector.items))):
                return False
            return self._ordered(left.items, right.items)
        return False

    def _tuples(self, left: Group, right: Group) -> bool | None:
        if len(left.items) != len(right.items):
            return False
        both = _is_tuple(left) and _is_tuple(right)
        lenient = self._policies.intervals == "lenient"
        if not both and (left.left, left.right) != (right.left, right.right) and not lenient:
            return False
        if both and self._policies.tuples == "unordered":
            return self._matched(left.items, right.items)
        return self._ordered(left.items, right.items)

    def _ordered(self, left: Sequence[Shape], right: Sequence[Shape]) -> bool | None:
        if len(left) != len(right):
            return False
        return _all(self.shapes(one, other) for one, other in zip(left, right, strict=True))

    def _as_sets(self, left: Sequence[Shape], right: Sequence[Shape]) -> bool | None:
        """Every entry of each side is among the other's."""
        left, right = list(dict.fromkeys(left)), list(dict.fromkeys(right))
        if not left or not right:
            return not left and not right
        if max(len(left), len(right)) > _MAX_MATCHED:
            return _written(left, self._policies) == _written(right, self._policies)
        table = [[self.shapes(one, other) for other in right] for one in left]
        rows = _all(_any(row) for row in table)
        columns = _all(_any(row[at] for row in table) for at in range(len(right)))
        return _all((rows, columns))

    def _matched(self, left: Sequence[Shape], right: Sequence[Shape]) -> bool | None:
        """Each entry has a partner of its own on the other side."""
        if len(left) != len(right):
            return False
        if len(left) > _MAX_MATCHED:
            return _written(left, self._policies, True) == _written(right, self._policies, True)
        table = [[self.shapes(one, other) for other in right] for one in left]
        if _has_matching([[result is True for result in row] for row in table]):
            return True
        return None if _has_matching([[result is not False for result in row] for row in table]) else False


def _is_tuple(group: Group) -> bool:
    """A point, a vector or a tuple; two things with a square bracket are an interval."""
    return (group.left, group.right) == ("(", ")") or ((group.left, group.right) == ("[", "]") and len(group.items) > 2)


def _names(group: Group) -> bool:
    return all(isinstance(item, Relation) for item in group.items)


def _by_name(group: Group) -> tuple[Shape, ...]:
    """`y = 2, x = 1` in the order of the names; other lists as they are."""
    if not _names(group):
        return group.items
    return tuple(sorted(group.items, key=lambda item: item.parts[0] if isinstance(item, Relation) else ""))


def _interval_text(shape: Shape) -> str:
    assert isinstance(shape, Group)
    ends = (item.text if isinstance(item, Leaf) else "" for item in shape.items)
    return f"{shape.left}{','.join(ends)}{shape.right}"


def _written(items: Sequence[Shape], policies: Policies, repeated: bool = False) -> list[str]:
    """The entries of a long list as comparable texts, sorted."""
    texts = []
    for item in items:
        value = number(item.text, policies) if isinstance(item, Leaf) else None
        texts.append(str(value) if value else key(item.text) if isinstance(item, Leaf) else repr(item))
    return sorted(texts if repeated else set(texts))


def _has_matching(possible: list[list[bool]]) -> bool:
    """Whether each row can have a column of its own (augmenting paths)."""
    partner: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, allowed in enumerate(possible[row]):
            if allowed and column not in tried:
                tried.add(column)
                if column not in partner or place(partner[column], tried):
                    partner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(possible)))
