"""The limits refuse what could take for ever, and no gold of the problem sets."""

from __future__ import annotations

import pytest

from rloop_core.verifier.limits import beyond_limits, unreadable
from rloop_core.verifier.read.answers import read_answer
from rloop_core.verifier.read.normalise import normalise, remove_thousands


def refusal(text: str) -> str | None:
    """Return why a text is not evaluated; `unread` for one that equals only itself, so that no engine meets it."""
    tree = read_answer(remove_thousands(normalise(text)))
    return "unread" if tree.kind == "text" else beyond_limits(tree) or unreadable(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9^{9^9}", "exponent"), ("9**9**9", "exponent"), ("9^9^9", "exponent"), ("9^{9!}", "exponent"),
        ("10^{1000000}", "exponent"), ("2\\left(9^{9^9}\\right)", "exponent"), ("9^{1{,}000{,}001}", "exponent"),
        ("9^{1,000,000}", "exponent"), ("9^{1000000.5}", "exponent"), ("9^{10\\cdot 10^9}", "exponent"),
        ("9^{3+10^9}", "exponent"), ("9^{\\binom{100}{50}}", "exponent"), ("2^{\\frac{10^{12}}{3}}", "exponent"),
        ("((9^{999})^{999})^{999}", "digits"), ("x^{x^{x^{x^{x}}}}", "tower"), ("2^{2^{2^{2^{2}}}}", "tower|exponent"),
        ("\\exp(\\exp(\\exp(\\exp(9))))", "tower|exponent"), ("10^9!", "factorial"), ("10^{9}!", "factorial"),
        ("100000!", "factorial"), ("(10\\cdot 10^8)!", "factorial"), ("(9!+1)!", "factorial"),
        ("\\binom{10^6}{5}", "binomial"), ("{10^6 \\choose 5}", "binomial"),
        ("{" * 30 + "7" + "}" * 30, "unread"), ("x" * 3000, "characters"),
        *((text, "unread") for text in (
            "9^{9!!}", "1e999999", "((9!)!)!", "9!!!!", "n!!", "\\sum" * 20 + "x", "\\binom" * 300, "\\pm 1" * 10,
            "9" * 1001, "\\begin{pmatrix}x&y\\end{pmatrix}^{50}", "9^" * 900 + "9", "-(" * 500,
            "\\sqrt" * 300 + "2", "/7" * 900,
        )),
    ],
)  # fmt: skip
def test_what_could_take_for_ever_is_refused_and_what_is_not_read_meets_no_engine(text: str, reason: str) -> None:
    refused = refusal(text)
    assert refused and any(part in refused for part in reason.split("|")), refused


@pytest.mark.parametrize(
    "text",
    [
        "2^{2^{7}}", "2^{2^{n}}", "2^{3^{4}}", "x^{y^{z}}", "e^{x^2}", "2014!", "\\binom{100}{50}", "2^{99999}",
        "e^{23110}", "\\frac{1}{2014!^{2014}}", "\\frac{4^{2024}}{\\binom{4048}{2024}}-2",
        "x^{9900}\\left(\\frac{1+x^{100}}{2}\\right)^{2}",
        "2^{2015}+\\left\\lfloor\\left(\\frac{3}{2}\\right)^{2015}\\right\\rfloor-2",
        "(x-1)(x-2)(x-3)(x-4)(x-5)(x-6)(x-7)(x-8)", "\\sqrt{2+\\sqrt{2+\\sqrt{2+\\sqrt{2}}}}",
        "\\left(1+\\left(1+\\left(1+x\\right)^2\\right)^2\\right)^2",
        "n!\\,(n-1)!", "1.5 \\times 10^{-34}", "12,345,678",
    ],
)  # fmt: skip
def test_ordinary_mathematics_is_not(text: str) -> None:
    assert unreadable(text) is None
    assert refusal(text) is None
