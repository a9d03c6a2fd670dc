"""Decide exactly, without the math engine, whether two answers are the same; or leave it undecided (None).

`structure` compares lists, sets, tuples, intervals and equations. This module compares the formulas and words inside
them, with `numbers` and `quantities`; sums, roots and variables are left undecided. `policies` lists the choices.
"""

from __future__ import annotations

import re

from rloop_core.verifier.compare.latex import canonical_latex, latex_key
from rloop_core.verifier.compare.numbers import equal_values, parse_number, remove_thousands
from rloop_core.verifier.compare.quantities import in_same_unit
from rloop_core.verifier.compare.structure import compare_structures
from rloop_core.verifier.policies import DEFAULT, Policies

_OPERATOR = re.compile(
    r"(?<=.)[-+]|[*/!]|\^(?!\s*\{?\s*\\circ)|\\(?:times|cdot|div|[dt]?binom|choose|b?mod|pm|sum|prod)(?![A-Za-z])"
)
_TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|texttt|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"\(?[A-Za-z][A-Za-z' -]*\)?[.!]?")
_LONG_WORD = re.compile(r"[A-Za-z]{4}")
_OPTION = re.compile(
    r"\(([A-H])\)(?:\s*[\w$.,:]|\s*\\(?!(?:cdot|times|div|infty|cup|cap|pm|mp|[lg]e)(?![a-z]))).*|\(?([A-H])\)?"
)
_ARTICLE = re.compile(r"^(?:the|an?) (?=\w\w)", re.IGNORECASE)
_BASED = re.compile(r"\(?([+-]?(?=[A-F]*\d)[0-9A-F]++(?:\.\d++)?)\)? ?_ ?\{?(?:\\text\{)?\(?(-?\d+|ten|two)\)?\}?\}?")
_BASES = {"ten": "10", "two": "2"}


def compare(answer: str, gold: str, policies: Policies = DEFAULT) -> bool | None:
    """Return True if two normalised answers are equal, False if not; None when only the math engine can decide."""
    if answer == gold:
        return True
    left, right = parse_number(answer, policies), parse_number(gold, policies)
    if left is not None and right is not None:
        return equal_values(left, right, policies)
    return compare_structures(answer, gold, policies, compare_formulas, _compare_equations_as_written)


def compare_formulas(answer: str, gold: str, policies: Policies) -> bool | None:
    """Compare texts without structure: as written, as numbers, as quantities with units, as words."""
    if policies.units != "require" and latex_key(answer) == latex_key(gold):
        return True
    answer, gold = (canonical_latex(remove_thousands(side, policies)) for side in (answer, gold))
    based = _compare_based(answer, gold)
    if based is not None:
        return based
    left, right = parse_number(answer, policies), parse_number(gold, policies)
    if left is None or right is None:
        quantities = in_same_unit(answer, gold, policies)
        if quantities is None:
            return False
        answer, gold = quantities[0].text, quantities[1].text
        if latex_key(answer) == latex_key(gold):
            return True
        left = right = None
        if quantities[0].pi == quantities[1].pi:
            left, right = (quantity.value(policies) for quantity in quantities)
    if left is not None and right is not None:
        return equal_values(left, right, policies)
    if policies.arithmetic == "refuse" and left is None and right is not None and _OPERATOR.search(answer):
        return False
    return _compare_words(answer, gold, left is not None or right is not None)


def _compare_equations_as_written(left: tuple[str, str], right: tuple[str, str], policies: Policies) -> bool | None:
    """Return True for equations with the same text, in either direction; None when they must be evaluated."""
    left_keys, right_keys = [latex_key(side) for side in left], [latex_key(side) for side in right]
    return True if left_keys in (right_keys, right_keys[::-1]) else None


def _compare_words(answer: str, gold: str, has_number: bool) -> bool | None:
    """Compare words and option letters: `\\text{(C)}` is C, `\\textbf{(C)} 12` is C, `\\text{Evelyn}` is evelyn.

    None unless both sides are words, and one of them is set as text or has four letters in a row: other letters are a
    formula, in which x and X differ. Case, spaces, brackets and a leading article are ignored.

    Args:
        has_number: One side is a number, so words on the other side are wrong.
    """
    left, right = (_TEXT.sub(r"\1", side).replace("~", " ").strip() for side in (answer, gold))
    options = [match for match in (_OPTION.fullmatch(left), _OPTION.fullmatch(right)) if match]
    if len(options) == 2 and sum(match.group(1) is not None for match in options) == 1 and "\\text" in answer + gold:
        return len({match.group(1) or match.group(2) for match in options}) == 1  # (C) 12 is the option C
    words = bool(_WORDS.fullmatch(left)), bool(_WORDS.fullmatch(right))
    as_text = left != answer, right != gold
    if all(words):
        if not any(as_text):
            # Letters alone could be a product in another order; four in a row are a word: seat is not east.
            return _word_key(left) == _word_key(right) if _LONG_WORD.search(left + " " + right) else None
        if _word_key(left) == _word_key(right):
            return True
        # Different words differ, unless the side without \text could be a product of variables in another order.
        return False if all(as_text) or min(len(left), len(right)) > 3 or len(left) != len(right) else None
    return False if has_number and any(word and text for word, text in zip(words, as_text, strict=True)) else None


def _compare_based(answer: str, gold: str) -> bool | None:
    """Compare numerals with a base as subscript: same digits, and same base where both name one (52_8 is 52, not 52_9).

    None where neither side is one. A numeral with a base equals only digits: 40_9 is not 40 degrees.
    """
    left, right = _BASED.fullmatch(answer), _BASED.fullmatch(gold)
    if left and right:
        bases = [_BASES.get(match.group(2), match.group(2)) for match in (left, right)]
        return left.group(1) == right.group(1) and bases[0] == bases[1]
    if left and gold.isalnum():
        return left.group(1) == gold
    if right and answer.isalnum():
        return right.group(1) == answer
    return False if left or right else None


def _word_key(text: str) -> str:
    text = _ARTICLE.sub("", text.rstrip(".!"))
    return text.removeprefix("(").removesuffix(")").replace(" ", "").replace("-", "").casefold()
