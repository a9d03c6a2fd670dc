"""Regions of the real line: inequalities in one name as intervals and unions of them."""

from __future__ import annotations

from rloop_core.verifier.read.tree import Node, is_label

_FLIPPED = {">": "<", ">=": "<="}
_INFINITY = Node("constant", (), "infty")
_LEFT, _RIGHT = (Node("negative", (_INFINITY,)), "("), (_INFINITY, ")")


def interval(left: tuple[Node, str], right: tuple[Node, str]) -> Node:
    """Return the interval of two ends, each with its bracket."""
    return Node("tuple", (left[0], right[0]), (left[1], right[1]))


REALS = interval(_LEFT, _RIGHT)


def without(point: Node) -> Node:
    """Return all real numbers but one."""
    return Node("union", (interval(_LEFT, (point, ")")), interval((point, "("), _RIGHT)), "cup")


def as_region(relation: Node) -> Node:
    """Return `a < x \\le b`, `x > a`, `x \\ne a`, `x \\in S` as a region; other inequalities rising."""
    signs, parts = relation.value, relation.parts
    if set(signs) <= {">", ">="}:
        signs, parts = tuple(_FLIPPED[sign] for sign in reversed(signs)), parts[::-1]
    if signs in (("!=",), ("in",)) and is_label(parts[0]):
        end = parts[1]
        if signs == ("in",):
            return Node("region", (parts[0], end))
        return Node(
            "region", (parts[0], Node("union", (interval(_LEFT, (end, ")")), interval((end, "("), _RIGHT)), "cup"))
        )
    if not set(signs) <= {"<", "<="}:
        return relation
    opening = ["(" if sign == "<" else "[" for sign in signs]
    closing = [")" if sign == "<" else "]" for sign in signs]
    labels = [is_label(part) and part.kind != "abs" for part in parts]
    if len(parts) == 3 and labels[1]:
        return Node("region", (parts[1], interval((parts[0], opening[0]), (parts[2], closing[1]))))
    if len(parts) == 2 and labels[0] != labels[1]:
        if labels[0]:
            return Node("region", (parts[0], interval(_LEFT, (parts[1], closing[0]))))
        return Node("region", (parts[1], interval((parts[0], opening[0]), _RIGHT)))
    return Node("relation", parts, signs)


def joined(sets: list[Node], joint: str) -> Node | None:
    """Return the union of regions, for `and` the interval that x > 1 and x < 6 share; None where it is none."""
    if joint == "or":
        return Node("union", tuple(sets), "cup")
    lows = [one for one in sets if one.kind == "tuple" and one.parts[1] == _INFINITY]
    highs = [one for one in sets if one.kind == "tuple" and one.parts[0] == _LEFT[0]]
    if not len(lows) == len(highs) == 1 or len(sets) != 2:
        return None
    return interval((lows[0].parts[0], lows[0].value[0]), (highs[0].parts[1], highs[0].value[1]))
