"""Are two answers the same? Decided exactly and without the math engine, or left open.

`compare` returns None where only the engine can tell. `structure` says when lists, sets, tuples, intervals and
equations are equal, `numbers`, `quantities`, `words` and `closed_forms` what is decided of a formula; `policies` lists
the choices.
"""

from __future__ import annotations

import re

from rloop_core.verifier.canonical_latex import clean, key
from rloop_core.verifier.closed_forms import equal_forms
from rloop_core.verifier.numbers import Value, equal_values, number, without_groups
from rloop_core.verifier.policies import DEFAULT, Policies
from rloop_core.verifier.quantities import Scaled, pair
from rloop_core.verifier.structure import same
from rloop_core.verifier.words import compare_based, compare_words

_OPERATOR = re.compile(
    r"(?<=.)[-+]|[*/!]|\^(?!\s*\{?\s*\\circ)|\\(?:times|cdot|div|[dt]?binom|choose|b?mod|pm|sum|prod)(?![A-Za-z])"
)


def compare(answer: str, gold: str, policies: Policies = DEFAULT) -> bool | None:
    """Whether two normalised answers are equal; None when only a math engine can tell."""
    if answer == gold:
        return True
    left, right = number(answer, policies), number(gold, policies)
    if left is not None and right is not None:
        return equal_values(left, right, policies)
    return same(answer, gold, policies, lambda one, other: exact_leaf(one, other, policies), _swapped)


def exact_leaf(answer: str, gold: str, policies: Policies) -> bool | None:
    """Formulas without structure: equal as written, numbers, quantities with units, words; None for all else."""
    if policies.units != "require" and key(answer) == key(gold):
        return True
    answer, gold = clean(without_groups(answer, policies)), clean(without_groups(gold, policies))
    based = compare_based(answer, gold)
    if based is not None:
        return based
    left, right = number(answer, policies), number(gold, policies)
    if left is None or right is None:
        sides = pair(answer, gold, policies)
        if sides is None:
            return False
        answer, gold = sides[0].text, sides[1].text
        if key(answer) == key(gold):
            return True
        left, right = (_value(side, policies) for side in sides) if sides[0].pi == sides[1].pi else (None, None)
    if left is not None and right is not None:
        return equal_values(left, right, policies)
    if policies.arithmetic == "refuse" and left is None and right is not None and _OPERATOR.search(answer):
        return False
    found = compare_words(answer, gold, left is not None or right is not None)
    return equal_forms(answer, gold, policies) if found is None else found


def _value(side: Scaled, policies: Policies) -> Value | None:
    """The exact number in base units, up to a power of pi that both sides share."""
    value = number(side.body, policies)
    return value and value._replace(number=value.number * side.factor + side.offset)


def _swapped(left: tuple[str, str], right: tuple[str, str]) -> bool | None:
    """Equations as written, in either direction; None when they have to be worked out."""
    ours, theirs = [key(side) for side in left], [key(side) for side in right]
    return True if ours == theirs or ours == theirs[::-1] else None
