"""Compare structures: lists, sets, tuples, intervals, unions, matrices and equations.

The exact comparison and the engine share this module and supply different comparisons of formulas, so both give the
same verdict. Results are three-valued: an undecided part (None) makes the whole undecided, unless another part is
wrong.

Rules:

- Lists (`1, 2`, `1 and 2`, `\\pm 1`): entries in any order (policy `lists`), each as often. Against a set, duplicates
  are merged. A list never equals one number: several candidates for one gold are wrong.
- Sets in braces: any order, duplicates merged. A set of one equals that one.
- Tuples and points: in order (policy `tuples`). A tuple is no set. A list without brackets equals a tuple in the same
  order. A column or row of a matrix is a tuple.
- Intervals: same ends, same brackets (`intervals: lenient`: any brackets). `(1, 2)` may be a point or an interval. Two
  entries in brackets, one of them square, are an interval; three are a tuple, whatever the brackets. `x > 3` is
  `(3, \\infty)`, `x \\in [1, 2]` is `[1, 2]`, `]1, 2[` is `(1, 2)`, `\\mathbb{R}` is `(-\\infty, \\infty)`.
- Unions: any order.
- Equations (policy `equations`): `x = 5` equals 5, `f(x) = x^2` equals x^2, `x = 10/2 = 5` equals 5 (if all sides do),
  also in lists: `x = 1, y = 2` equals (1, 2) in the order of the names. Between equations the names count: x = 5 is not
  y = 5. 2x - y = 1 is y = 2x - 1. `whole`: an equation equals equations only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from rloop_core.verifier.compare.latex import is_name, latex_key
from rloop_core.verifier.compare.numbers import parse_number, remove_thousands
from rloop_core.verifier.compare.parsing import Group, Leaf, Relation, Shape, as_interval, parse_structure, rising
from rloop_core.verifier.policies import Policies

FormulaComparison: TypeAlias = Callable[[str, str, Policies], bool | None]
EquationComparison: TypeAlias = Callable[[tuple[str, str], tuple[str, str], Policies], bool | None]

_MAX_MATCHED = 40
"""Longer lists are compared as written or as numbers, not formula by formula."""


def compare_structures(
    answer: str, gold: str, policies: Policies, formulas: FormulaComparison, equations: EquationComparison
) -> bool | None:
    """Compare two normalised answers.

    Args:
        formulas: Compares two formulas; None where it cannot decide.
        equations: Compares two equations, each as (left side, right side).
    """
    if latex_key(answer) == latex_key(gold):
        return True
    left, right = parse_structure(answer, policies), parse_structure(gold, policies)
    comparison = _Comparison(policies, formulas, equations)
    equal = comparison.shapes(left, right)
    if equal is not False or policies.thousands != "comma":
        return equal
    # `100,200` may be a number or a list: against a list or a set, try it as a list.
    as_list = policies.model_copy(update={"thousands": "none"})
    if isinstance(left, Leaf) and isinstance(right, Group) and _may_be_list(answer, policies):
        return comparison.shapes(parse_structure(answer, as_list), right)
    if isinstance(right, Leaf) and isinstance(left, Group) and _may_be_list(gold, policies):
        return comparison.shapes(left, parse_structure(gold, as_list))
    return False


def _may_be_list(text: str, policies: Policies) -> bool:
    """Return True for a number with thousands separators."""
    return "," in text and remove_thousands(text, policies) != text and parse_number(text, policies) is not None


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
    none_is_true = _all(None if result is None else not result for result in results)
    return None if none_is_true is None else not none_is_true


class _Comparison:
    def __init__(self, policies: Policies, formulas: FormulaComparison, equations: EquationComparison) -> None:
        self._policies = policies
        self._compare_formulas = formulas
        self._compare_equations = equations

    def _parse(self, text: str) -> Shape:
        return parse_structure(text, self._policies)

    def shapes(self, left: Shape, right: Shape) -> bool | None:
        """Compare two structures."""
        if isinstance(left, Leaf) and isinstance(right, Leaf):
            return self._compare_formulas(left.text, right.text, self._policies)
        left, right = self._as_region(left, right), self._as_region(right, left)
        if isinstance(left, Relation) and isinstance(right, Relation):
            return self._relations(left, right)
        if isinstance(left, Relation):
            return self._value(left, lambda value: self.shapes(value, right))
        if isinstance(right, Relation):
            return self._value(right, lambda value: self.shapes(left, value))
        if isinstance(left, Group) and isinstance(right, Group):
            return self._groups(left, right)
        group, other = (left, right) if isinstance(left, Group) else (right, left)
        assert isinstance(group, Group) and isinstance(other, Leaf)
        if group.kind == "matrix" or "\\begin{" in other.text:
            return None if "matrix" in other.text else False
        if group.kind == "set" and len(group.items) == 1:
            item = group.items[0]
            return self.shapes(item, right) if group is left else self.shapes(left, item)
        return False

    def _as_region(self, shape: Shape, other: Shape) -> Shape:
        """Turn inequalities into intervals, and lists of them into unions, if the other side is one."""
        if isinstance(other, Group) and other.kind not in ("tuple", "union"):
            return shape
        if isinstance(shape, Group) and shape.kind == "list" and isinstance(other, Group | Relation):
            intervals = [as_interval(item, self._policies) for item in shape.items]
            if all(intervals):
                return Group("union", tuple(interval[1] for interval in intervals if interval))
        interval = as_interval(shape, self._policies)
        if interval and isinstance(other, Group):
            return interval[1]
        if interval and isinstance(other, Relation) and other.signs == ("\\in",):
            return Relation(("\\in",), (interval[0], _interval_text(interval[1])))
        return shape

    def _value(self, relation: Relation, compare: Callable[[Shape], bool | None]) -> bool | None:
        """Compare the values of `x = 5` or `x \\in S` with a side that has no relation."""
        if relation.signs == ("\\in",):
            return compare(self._parse(relation.parts[1])) if is_name(relation.parts[0]) else False
        if set(relation.signs) != {"="} or self._policies.equations == "whole":
            return False
        parts = relation.parts
        if is_name(parts[0]):
            parts = parts[1:]
        elif is_name(parts[-1]):
            parts = parts[:-1]
        return _all(compare(self._parse(part)) for part in parts)

    def _relations(self, left: Relation, right: Relation) -> bool | None:
        equal = {"=", "\\in"}
        if set(left.signs) <= equal and set(right.signs) <= equal:
            if len(left.parts) == len(right.parts) == 2:
                return self._equations(left, right)
            # `x = 10/2 = 5` against `x = 5`: each value of one side equals each value of the other.
            if not (is_name(left.parts[0]) and latex_key(left.parts[0]) == latex_key(right.parts[0])):
                return False
            values = [[self._parse(part) for part in side.parts[1:]] for side in (left, right)]
            return _all(self.shapes(first, second) for first in values[0] for second in values[1])
        if set(left.signs) & equal or set(right.signs) & equal:
            return False
        intervals = as_interval(left, self._policies), as_interval(right, self._policies)
        if intervals[0] and intervals[1]:
            return self.shapes(intervals[0][1], intervals[1][1]) if intervals[0][0] == intervals[1][0] else False
        (left_signs, left_parts), (right_signs, right_parts) = rising(left), rising(right)
        if left_signs is None or right_signs is None:
            return False
        if self._policies.intervals == "strict" and left_signs != right_signs:
            return False
        return self._ordered([Leaf(part) for part in left_parts], [Leaf(part) for part in right_parts])

    def _equations(self, left: Relation, right: Relation) -> bool | None:
        (left_name, left_value), (right_name, right_value) = left.parts, right.parts
        if "\\in" in left.signs + right.signs and left.signs != right.signs:
            return False
        if is_name(left_name) and is_name(right_name):
            keys = latex_key(left_name), latex_key(right_name)
            if keys[0] == keys[1] or {keys[0][0], keys[1][0]} == {"y", "f"}:
                return self.shapes(self._parse(left_value), self._parse(right_value))
            if parse_number(left_value, self._policies) or parse_number(right_value, self._policies):
                return False
        if left.signs != ("=",):
            return False
        return self._compare_equations((left_name, left_value), (right_name, right_value), self._policies)

    def _groups(self, left: Group, right: Group) -> bool | None:
        kinds = {left.kind, right.kind}
        if kinds == {"list"}:
            if self._policies.lists == "ordered" and not (_are_equations(left) and _are_equations(right)):
                return self._ordered(left.items, right.items)
            return self._matched(left.items, right.items)
        if kinds in ({"set"}, {"set", "list"}):
            return self._as_sets(left.items, right.items)
        if kinds in ({"union"}, {"union", "tuple"}):
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
        if _is_tuple(left) and _is_tuple(right):
            if self._policies.tuples == "unordered":
                return self._matched(left.items, right.items)
        elif (left.left, left.right) != (right.left, right.right) and self._policies.intervals == "strict":
            return False
        return self._ordered(left.items, right.items)

    def _ordered(self, left: Sequence[Shape], right: Sequence[Shape]) -> bool | None:
        if len(left) != len(right):
            return False
        return _all(self.shapes(first, second) for first, second in zip(left, right, strict=True))

    def _as_sets(self, left: Sequence[Shape], right: Sequence[Shape]) -> bool | None:
        """Return True if every entry of each side equals an entry of the other."""
        left, right = list(dict.fromkeys(left)), list(dict.fromkeys(right))
        if not left or not right:
            return not left and not right
        if max(len(left), len(right)) > _MAX_MATCHED:
            return _as_texts(left, self._policies) == _as_texts(right, self._policies)
        table = [[self.shapes(first, second) for second in right] for first in left]
        rows = _all(_any(row) for row in table)
        columns = _all(_any(row[at] for row in table) for at in range(len(right)))
        return _all((rows, columns))

    def _matched(self, left: Sequence[Shape], right: Sequence[Shape]) -> bool | None:
        """Return True if the entries of both sides can be paired so that each pair is equal."""
        if len(left) != len(right):
            return False
        if len(left) > _MAX_MATCHED:
            return _as_texts(left, self._policies, True) == _as_texts(right, self._policies, True)
        table = [[self.shapes(first, second) for second in right] for first in left]
        if _has_matching([[result is True for result in row] for row in table]):
            return True
        return None if _has_matching([[result is not False for result in row] for row in table]) else False


def _is_tuple(group: Group) -> bool:
    """Return True for a point, vector or tuple; two entries with a square bracket are an interval."""
    return (group.left, group.right) == ("(", ")") or ((group.left, group.right) == ("[", "]") and len(group.items) > 2)


def _are_equations(group: Group) -> bool:
    return all(isinstance(item, Relation) for item in group.items)


def _by_name(group: Group) -> tuple[Shape, ...]:
    """Return the entries of `y = 2, x = 1` in the order of the names; other entries in their own order."""
    if not _are_equations(group):
        return group.items
    return tuple(sorted(group.items, key=lambda item: item.parts[0] if isinstance(item, Relation) else ""))


def _interval_text(shape: Shape) -> str:
    assert isinstance(shape, Group)
    ends = (item.text if isinstance(item, Leaf) else "" for item in shape.items)
    return f"{shape.left}{','.join(ends)}{shape.right}"


def _as_texts(items: Sequence[Shape], policies: Policies, repeated: bool = False) -> list[str]:
    """Return the entries of a long list as comparable texts, sorted."""
    texts = []
    for item in items:
        value = parse_number(item.text, policies) if isinstance(item, Leaf) else None
        texts.append(str(value) if value else latex_key(item.text) if isinstance(item, Leaf) else repr(item))
    return sorted(texts if repeated else set(texts))


def _has_matching(possible: list[list[bool]]) -> bool:
    """Return True if each row can have a column of its own (augmenting paths)."""
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
