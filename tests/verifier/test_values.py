"""Exact comparison without the math engine."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.verifier.compare.answers import compare
from rloop_core.verifier.read.normalise import acceptable_golds, gold_text, normalise


def equal(answer: str, gold: str) -> bool | None:
    return compare(normalise(answer), normalise(gold))


EQUAL = [
    ("42.", "42"), ("042", "42"), ("+42", "42"), ("$42$", "42"), ("$\\$42$", "42"), ("$\\$1.50$", "\\$1.50"),
    ("\\(42\\)", "42"), ("**42**", "42"), ("(42)", "42"), ("1,000,000", "1000000"), ("1\\,000\\,000", "1000000"),
    ("1{,}000{,}000", "1000000"), ("1 000 000", "1000000"), ("1\\!000", "1000"), ("42.0", "42"), (".5", "0.5"),
    ("0.50", "1/2"), ("\\frac12", "0.5"), ("\\frac{1}{2}", "1/2"), ("\\dfrac{2}{4}", "\\tfrac12"),
    ("-\\frac{1}{2}", "\\frac{-1}{2}"), ("4.7e19", "4.7\\times10^{19}"), ("4.7 \\cdot 10^{19}", "4.7E+19"),
    ("10^{-3}", "0.001"), ("1\\frac{1}{2}", "1.5"), ("1 1/2", "3/2"), ("50\\%", "50"), ("50\\%", "0.5"),
    ("0.5", "50\\%"), ("\\$5", "5"), ("5 \\text{ cm}", "5"), ("5\\mathrm{~kg}", "5"), ("5 \\text{ cm}^2", "5"),
    ("5 dollars", "5"), ("60^\\circ", "60"), ("5 \\text{ million}", "5000000"), ("x=5", "5"), ("5", "x = 5"),
    ("f(x) = 5", "5"), ("52_8", "52_{8}"), ("½", "0.5"), ("1½", "1.5"), ("\u22123", "-3"), ("7", "7"),
    ("7\u200b", "7"), ("\\text{(C)}", "C"), ("\\text{c}", "C"), ("\\text{Tuesday}", "tuesday"),
    ("\\left( 3, 4 \\right)", "(3,4)"), ("\\dfrac{\\pi}{2}", "\\frac{\\pi}{2}"), ("\\boxed{7}", "7"),
    ("0.\\overline{3}", "\\frac{1}{3}"), ("0.1\\overline{6}", "1/6"), ("0.(142857)", "1/7"), ("0.333...", "\\frac13"),
    ("0.142857142857...", "\\frac17"), ("٣", "3"), ("33\\frac{1}{3}\\%", "\\frac13"),
    ("60º", "60^\\circ"), ("\u211d", "(-\\infty,\\infty)"), ("x ∈ [1,2]", "[1,2]"), ("3\u00d710⁸", "3e8"),
    ("\uff15\uff10\uff05", "0.5"), ("\\{4\\}\\cup\\{-2\\}", "\\{-2,4\\}"), ("\\{x : x > 3\\}", "(3,\\infty)"),
    ("Tuesday", "tuesday"), ("11,\\! 111,\\! 100", "11111100"),
]  # fmt: skip
DIFFERENT = [
    ("43", "42"), ("-42", "42"), ("12345678901234567891", "12345678901234567890"), ("0.333", "\\frac{1}{3}"),
    ("0.1", "0.10000001"), ("1e30", "1e31"), ("1½", "11/2"), ("52_8", "52_9"), ("x=5", "6"), ("50\\%", "51"),
    ("\\text{no answer}", "7"), ("\\text{yes}", "\\text{no}"), ("5 \\text{ million}", "5"),
    ("\\frac{1}{2}", "\\frac{2}{1}"), ("1,2", "12"), ("0.333...", "0.333"), ("\\{x : x > 3\\}", "[3,\\infty)"),
    ("seat", "east"), ("1 2", "12"),
]  # fmt: skip
UNDECIDED = [
    ("\\frac{1}{0}", "1"), ("\\sin 2x", "2\\sin x\\cos x"), ("2^{n+1}", "2\\cdot 2^n"),
    ("1/2x", "x/2"), ("f(x)", "g(x)"), ("\\sqrt{3+2\\sqrt{2}}", "1+\\sqrt{2}"), ("\\sqrt{8}", "2\\sqrt{2}"),
    ("(x+1)^2", "x^2+2x+1"), ("x_1", "x_2"), ("x", "X"),
]  # fmt: skip
DECORATED = [
    "\\mathbf{7}", "\\textcolor{red}{7}", "{\\bf 7}", "\\underline{7}", "\\large 7", "7 \\tag{1}", "\\hspace{1cm}7",
    "\\approx 7", "\\text{7}", "{7}", "7\\quad", "\uff17",
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        *((*pair, True) for pair in EQUAL),
        *((*pair, False) for pair in DIFFERENT),
        *((*pair, None) for pair in UNDECIDED),
        *((answer, gold, gold == "7") for answer in DECORATED for gold in ("7", "8")),
    ],
)
def test_numbers_and_formulas_in_any_notation_need_no_engine(answer: str, gold: str, same: bool | None) -> None:
    assert equal(answer, gold) is same
    assert equal(gold, answer) is same


@pytest.mark.parametrize(
    "text",
    [
        "1," * 1000, "\\{" + "1," * 900 + "\\}", "(x+1)" * 300, "(a+b+c+d+k)^{24}" * 20, "\\pm" * 600,
        "\\pm 1," * 300, "(" * 1000, "[" * 900 + "]" * 900, "1 " * 1000, "0." + "12" * 900 + "...", "\\frac{" * 300,
        "x=1," * 400, "a<" * 800, "(1,2)\\cup" * 150, "5 km " * 400, "\\mathrm{km}/" * 160, "\\text{ and }" * 180,
        "400!" * 400, "(2^5000)^5000", "\\sqrt{" + "9" * 1900 + "}",
    ],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_no_text_keeps_the_caller_busy(text: str) -> None:
    for other in ("7", "\\{1,2\\}", "x^2", text + "1"):
        equal(text, other)
        equal(other, text)


def _spellings(value: Fraction) -> st.SearchStrategy[str]:
    top, bottom = value.numerator, value.denominator
    forms = [f"{top}/{bottom}", f"\\frac{{{top}}}{{{bottom}}}", f"${top * 3}/{bottom * 3}$", f"x = {top}/{bottom}"]
    sign = "-" if top < 0 else ""
    forms.append(f"{sign}\\dfrac{{{abs(top)}}}{{{bottom}}}")
    if bottom == 1:
        forms += [str(top), f"{top}.", f"{top}.00", f"{top:,}", f"{top:,}".replace(",", "\\,"), f"{top} \\text{{ m}}"]
        forms += [f"{sign}00{abs(top)}", f"{top}e0", f"\\${top}", f"{top}^\\circ"]
    return st.sampled_from(forms)


fractions = st.fractions(max_denominator=10_000).filter(lambda value: abs(value.numerator) < 10**12)


@settings(max_examples=40)
@given(fractions.flatmap(lambda value: st.tuples(_spellings(value), _spellings(value))))
def test_equal_values_in_any_two_spellings_are_equal(pair: tuple[str, str]) -> None:
    assert equal(*pair) is True


@settings(max_examples=40)
@given(fractions, fractions, st.data())
def test_unequal_values_are_never_equal(left: Fraction, right: Fraction, data: st.DataObject) -> None:
    if left != right:
        assert equal(data.draw(_spellings(left)), data.draw(_spellings(right))) is False


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    plain = normalise(text)
    assert normalise(plain) is not None
    compare(plain, "7")


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (7, "7"), (7.0, "7"), (0.5, "0.5"), (-3, "-3"), ("025", "025"), (" 7 ", "7"), ("3+4=7\n#### 7", "7"),
        ("$\\frac{1}{2}$", "\\frac{1}{2}"), ("\\boxed{7}", "7"), ("\\frac{11}{2^{20}", "\\frac{11}{2^{20}}"),
        ("108^{\\\\circ}", "108^{\\circ}"), ("}{", "}{"),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
        ("The number of colourings is \\(\\boxed{6}\\).", "6"),
    ],
)  # fmt: skip
def test_typed_golds_become_text(stored: object, text: str) -> None:
    assert gold_text(stored) == text


@pytest.mark.parametrize("stored", [None, "", "  ", "####", float("nan"), float("inf"), True, {"a": 1}])
def test_unusable_golds_are_refused(stored: object) -> None:
    with pytest.raises(ValueError, match="gold answer"):
        gold_text(stored)


def test_a_list_of_golds_gives_each() -> None:
    assert acceptable_golds(["1", 2, 3.0]) == ["1", "2", "3"]
    assert acceptable_golds("$x^2$ OR $y$") == ["x^2", "y", "$x^2$ OR $y$"]
    assert acceptable_golds("$5$ or $6$") == ["5 or 6"]
    with pytest.raises(ValueError, match="empty"):
        acceptable_golds([])
