"""Parse the outer structure of an answer: lists, sets, tuples, intervals, unions, matrices, equations, inequalities.

Only brackets, commas and relation signs at the top level are parsed; the text inside (`Leaf`) is not. `\\pm` becomes
both signs: `1 \\pm \\sqrt{2}` is a list of two, `(\\pm 1, 0)` of two points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple, TypeAlias

from rloop_core.verifier.compare.latex import canonical_latex, is_name, latex_key
from rloop_core.verifier.compare.numbers import remove_thousands
from rloop_core.verifier.policies import Policies

MAX_NESTING = 12
_MAX_SIGNS = 3
_STRUCTURAL = re.compile(
    r"[,;=<>\]]|\\(?:[{}]|pm|mp|cup|in|le|ge|infty|begin|emptyset|varnothing|mathbb|langle|text\s*\{\s*(?:and|or))|\b(?:and|or)\b"
)
_AND = re.compile(
    r"\s*+(?:[,;]\s*+)?(?:\\(?:text|mathrm|textrm|mbox)\s*\{\s*[,;]?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*"
)
_TOKEN = re.compile(
    r"\\begin\{[a-z]*matrix\}|\\end\{[a-z]*matrix\}|\\(?:le|ge|in|cup|pm|mp|langle|rangle|lfloor|rfloor|lceil|rceil)(?![A-Za-z])"
    r"|\\.|[()\[\]{},;=<>]",
    re.DOTALL,
)
_OPEN = {"(", "[", "{", "\\{", "\\langle", "\\lfloor", "\\lceil"}
_CLOSE = {")", "]", "}", "\\}", "\\rangle", "\\rfloor", "\\rceil"}
_RELATIONS = {"=", "<", ">", "\\le", "\\ge", "\\in"}
_MATRIX = re.compile(r"\\begin\{([pbBvV]?)(?:small)?matrix\}(.*)\\end\{\1(?:small)?matrix\}", re.DOTALL)
_FRENCH = re.compile(r"([\]\[])([^\[\](){}]*[,;][^\[\](){}]*)([\]\[])")
_SUCH_THAT = re.compile(r"\||:|\\mid(?![A-Za-z])|\\colon")
_CONDITION = re.compile(r"(\S+?)(?: ?\\in ?\\mathbb\{R\})? ?(?:\||:|\\mid(?![A-Za-z])|\\colon) ?(.*(?:[<>]|\\[lg]e).*)")
_SIGNS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_FLIPPED = {">": "<", "\\ge": "\\le", "<": ">", "\\le": "\\ge"}


class Leaf(NamedTuple):
    """A formula or words."""

    text: str


class Group(NamedTuple):
    """Several items: a list, set, union, tuple (`left` and `right` are its brackets) or matrix (`left`: columns)."""

    kind: str
    items: tuple[Shape, ...]
    left: str = ""
    right: str = ""


class Relation(NamedTuple):
    """`x = 5`, `0 \\le x < 1`, `x \\in [0, 1]`: the relation signs, and the texts between them."""

    signs: tuple[str, ...]
    parts: tuple[str, ...]


Shape: TypeAlias = Leaf | Group | Relation
_Mark: TypeAlias = tuple[str, int, int]
"""A sign, its start and its end."""


def parse_structure(text: str, policies: Policies) -> Shape:
    """Return the structure of a normalised answer."""
    return _parse(text, policies, 0) if _STRUCTURAL.search(text) or text.startswith("{") else Leaf(text)


@lru_cache(maxsize=8192)
def _parse(text: str, policies: Policies, depth: int) -> Shape:
    text = canonical_latex(text)
    if depth == 0:
        text = _AND.sub(", ", canonical_latex(remove_thousands(text, policies))).strip(" ,;")
    if depth > MAX_NESTING:
        return Leaf(text)
    below = depth + 1
    marks = _top_level(text) if any(char.isalnum() for char in text) else []  # signs alone
    separators = _separators(marks)
    if separators:
        return _list(_split_at(text, separators), policies, below)
    relations = [mark for mark in marks if mark[0] in _RELATIONS]
    if relations and "\\cup" not in (mark[0] for mark in marks):
        return Relation(tuple(mark[0] for mark in relations), tuple(_split_at(text, relations)))
    unions = [mark for mark in marks if mark[0] == "\\cup"]
    if unions:
        if relations and relations[0][0] in ("=", "\\in") and relations[0][1] < unions[0][1] and len(relations) == 1:
            return Relation((relations[0][0],), tuple(_split_at(text, relations)))
        parts = tuple(_parse(part, policies, below) for part in _split_at(text, unions))
        if all(isinstance(part, Group) and part.kind == "set" for part in parts):
            return Group("set", tuple(item for part in parts if isinstance(part, Group) for item in part.items))
        return Group("union", parts)
    return _single(text, policies, below)


def _single(text: str, policies: Policies, below: int) -> Shape:
    """Return the structure of a text without separators, relations or unions at the top level."""
    if text.startswith("\\{") and text.endswith("\\}") and _encloses(text):
        inner = text[2:-2].strip()
        condition = _CONDITION.fullmatch(inner)
        if condition and is_name(condition.group(1)):
            return _parse(condition.group(2), policies, below)  # {x : x > 3}
        if _SUCH_THAT.search(inner):
            return Leaf(text)
        return _set(inner, policies, below)
    if text in ("\\emptyset", "{}"):
        return Group("set", ())
    if text == "\\mathbb{R}":
        return Group("tuple", (Leaf("-\\infty"), Leaf("\\infty")), "(", ")")
    matrix = _MATRIX.fullmatch(text)
    if matrix and matrix.group(1) not in ("v", "V") and "\\begin" not in matrix.group(2):
        rows = [row.split("&") for row in matrix.group(2).split("\\\\") if row.strip()]
        if rows and len({len(row) for row in rows}) == 1:
            cells = tuple(_parse(cell.strip(), policies, below) for row in rows for cell in row)
            return Group("matrix", cells, str(len(rows[0])))
    if _SIGNS.search(text):
        signed = _both_signs(text)
        if len(signed) > 1:
            return _list(signed, policies, below)
    french = _FRENCH.fullmatch(text)
    if french and (french.group(1), french.group(3)) != ("[", "]"):
        text = f"{'(' if french.group(1) == ']' else '['}{french.group(2)}{')' if french.group(3) == '[' else ']'}"
    for left, right in (("(", ")"), ("[", "]"), ("{", "}"), ("\\langle", "\\rangle")):
        opens = next((sign for sign in "([" if text.startswith(sign)), left) if left in "([" else left
        closes = next((sign for sign in ")]" if text.endswith(sign)), right) if right in ")]" else right
        if not (text.startswith(opens) and text.endswith(closes) and len(text) > len(opens) + len(closes)):
            continue
        if not _encloses(text):
            continue
        inner = text[len(opens) : -len(closes)].strip()
        separators = _separators(_top_level(inner))
        if opens == "{" or (opens == "(" and closes == ")" and not separators):
            return _parse(inner, policies, below)
        if separators:
            parts = _split_at(inner, separators)
            pair = ("(", ")") if opens == "\\langle" else (opens, closes)
            return Group("tuple", tuple(_parse(part, policies, below) for part in parts), *pair)
        return Leaf(text)
    return Leaf(text)


def _list(parts: list[str], policies: Policies, below: int) -> Shape:
    items = _items(parts, policies, below)
    return items[0] if len(items) == 1 else Group("list", items)


def _set(inner: str, policies: Policies, below: int) -> Group:
    marks = [mark for mark in _top_level(inner) if mark[0] in (",", ";")]
    return Group("set", _items(_split_at(inner, marks) if inner else [], policies, below))


def _items(parts: list[str], policies: Policies, below: int) -> tuple[Shape, ...]:
    """Return the entries; an entry with `\\pm` gives one for each sign."""
    items: list[Shape] = []
    for part in parts:
        if not part:
            continue
        shape = _parse(part, policies, below)
        signed = isinstance(shape, Group) and shape.kind == "list" and _SIGNS.search(part) is not None
        items.extend(shape.items if signed and isinstance(shape, Group) else (shape,))
    return tuple(items)


def _both_signs(text: str) -> list[str]:
    """Return the text with each choice of signs; in a text with `\\mp`, all signs change together."""
    signs = list(_SIGNS.finditer(text))
    if len(signs) > _MAX_SIGNS:
        return [text]
    tied = any(match.group() == "\\mp" for match in signs)
    choices = [(plus,) * len(signs) for plus in (True, False)] if tied else product((True, False), repeat=len(signs))
    texts: dict[str, str] = {}
    for choice in choices:
        pieces, at = [], 0
        for match, plus in zip(signs, choice, strict=True):
            before = text[at : match.start()]
            positive = plus == (match.group() == "\\pm")
            first = not before.strip() or before.rstrip().endswith(("(", "{", "[", ",", "="))
            pieces += [before, ("" if first else "+") if positive else "-"]
            at = match.end()
        signed = ("".join(pieces) + text[at:]).strip()
        texts.setdefault(latex_key(signed), signed)
    return list(texts.values())


def _walk(text: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield (sign, start, end, depth of brackets after it) of each token."""
    depth = 0
    for token in _TOKEN.finditer(text):
        sign = token.group()
        if sign in _OPEN or sign.startswith("\\begin"):
            depth += 1
        elif _closes(sign):
            depth -= 1
        yield sign, token.start(), token.end(), depth


def _closes(sign: str) -> bool:
    return sign in _CLOSE or sign.startswith("\\end")


def _top_level(text: str) -> list[_Mark]:
    """Return the separators, relations and unions outside all brackets."""
    return [
        (sign, start, end)
        for sign, start, end, depth in _walk(text)
        if depth == 0 and (sign in (",", ";", "\\cup") or sign in _RELATIONS)
    ]


def _separators(marks: list[_Mark]) -> list[_Mark]:
    """Return the semicolons, or the commas where there are none."""
    semicolons = [mark for mark in marks if mark[0] == ";"]
    return semicolons or [mark for mark in marks if mark[0] == ","]


def _split_at(text: str, marks: list[_Mark]) -> list[str]:
    """Return the texts between the marks."""
    pieces, at = [], 0
    for _, start, end in marks:
        pieces.append(text[at:start].strip())
        at = end
    return [*pieces, text[at:].strip()]


def _encloses(text: str) -> bool:
    """Return True if the first bracket closes at the end of the text."""
    return next((end == len(text) for sign, _, end, depth in _walk(text) if depth == 0 and _closes(sign)), False)


def as_interval(shape: Shape, policies: Policies) -> tuple[str, Shape] | None:
    """Return (name, interval) of an inequality `a < x \\le b` or `x > a` in one name; None for anything else."""
    if not isinstance(shape, Relation) or not set(shape.signs) <= _FLIPPED.keys() or len(shape.parts) > 3:
        return None
    signs, parts = rising(shape)
    if signs is None:
        return None
    left, right = ("-\\infty", "("), ("\\infty", ")")
    if len(parts) == 3 and is_name(parts[1]):
        name = parts[1]
        left = (parts[0], "(" if signs[0] == "<" else "[")
        right = (parts[2], ")" if signs[1] == "<" else "]")
    elif len(parts) == 2 and is_name(parts[0]) and not is_name(parts[1]):
        name, right = parts[0], (parts[1], ")" if signs[0] == "<" else "]")
    elif len(parts) == 2 and is_name(parts[1]) and not is_name(parts[0]):
        name, left = parts[1], (parts[0], "(" if signs[0] == "<" else "[")
    else:
        return None
    return latex_key(name), Group(
        "tuple", (parse_structure(left[0], policies), parse_structure(right[0], policies)), left[1], right[1]
    )


def rising(shape: Relation) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the inequality with `<` and `\\le` only; None instead of the signs when it mixes directions."""
    if all(sign in ("<", "\\le") for sign in shape.signs):
        return shape.signs, shape.parts
    if all(sign in (">", "\\ge") for sign in shape.signs):
        return tuple(_FLIPPED[sign] for sign in reversed(shape.signs)), tuple(reversed(shape.parts))
    return None, shape.parts
