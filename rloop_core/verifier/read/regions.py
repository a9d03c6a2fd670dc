"""Regions of the real line: inequalities in one name as intervals and unions of them."""

from __future__ import annotations

from rloop_core.verifier.read.tree import Node, is_label

_FLIPPED = {">": "<", ">=": "<="}
_INFINITY = Node("constant", (), "infty")
_BELOW = Node("negative", (_INFINITY,))


def _interval(low: Node, high: Node, brackets: str = "()") -> Node:
    return Node("tuple", (low, high), tuple(brackets))


REALS = _interval(_BELOW, _INFINITY)


def without(point: Node) -> Node:
    """Return all real numbers but one."""
    return Node("union", (_interval(_BELOW, point), _interval(point, _INFINITY)), "cup")


def as_region(relation: Node) -> Node:
    """Return `a < x \\le b`, `x > a`, `x \\ne a`, `x \\in S` as a region; other inequalities rising."""
    signs, parts = relation.value, relation.parts
    if signs in (("!=",), ("in",)) and is_label(parts[0]):
        return Node("region", (parts[0], parts[1] if signs == ("in",) else without(parts[1])))
    if set(signs) <= {">", ">="}:
        signs, parts = tuple(_FLIPPED[sign] for sign in reversed(signs)), parts[::-1]
    if not set(signs) <= {"<", "<="}:
        return relation
    labels = [is_label(part) and part.kind != "abs" for part in parts]
    if labels == [True, False]:
        labels, signs, parts = [False, *labels], ("<", *signs), (_BELOW, *parts)
    elif labels == [False, True]:
        signs, parts = (*signs, "<"), (*parts, _INFINITY)
    if len(parts) == 3 and labels[1]:
        brackets = ("[" if signs[0] == "<=" else "(") + ("]" if signs[1] == "<=" else ")")
        return Node("region", (parts[1], _interval(parts[0], parts[2], brackets)))
    return Node("relation", parts, signs)


def joined(sets: list[Node], joint: str) -> Node | None:
    """Return the union of regions, for `and` the interval that x > 1 and x < 6 share; None where it is none."""
    if joint == "or":
        return Node("union", tuple(sets), "cup")
    lows = [one for one in sets if one.kind == "tuple" and one.parts[1] == _INFINITY]
    highs = [one for one in sets if one.kind == "tuple" and one.parts[0] == _BELOW]
    if not len(lows) == len(highs) == 1 or len(sets) != 2:
        return None
    return _interval(lows[0].parts[0], highs[0].parts[1], lows[0].value[0] + highs[0].value[1])
