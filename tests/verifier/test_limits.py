"""The limits refuse what could take for ever, and no gold of the problem sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rloop_core.errors import RLoopError
from rloop_core.problems.sources import problem_and_gold
from rloop_core.verifier.limits import MAX_CHARS, beyond_limits, unreadable
from rloop_core.verifier.read.normalise import acceptable_golds, normalise

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9^{9^9}", "exponent"), ("9**9**9", "exponent"), ("9^9^9", "exponent"), ("9^{9!}", "exponent"),
        ("10^{1000000}", "exponent"), ("2\\left(9^{9^9}\\right)", "exponent"), ("9^{9!!}", "double factorial"),
        ("9^{1,000,000}", "exponent"), ("9^{1000{,}000}", "exponent"), ("9^{1000000.5}", "exponent"),
        ("9^{10\\cdot 10^9}", "exponent"), ("9^{3+10^9}", "exponent"), ("9^{\\binom{100}{50}}", "exponent"),
        ("2^{\\frac{10^{12}}{3}}", "exponent"), ("1e999999", "exponent"), ("((9^{999})^{999})^{999}", "digits"),
        ("x^{x^{x^{x^{x}}}}", "tower"), ("2^{2^{2^{2^{2}}}}", "tower|exponent"),
        ("\\exp(\\exp(\\exp(\\exp(9))))", "tower"), ("10^9!", "factorial"), ("10^{9}!", "factorial"),
        ("((9!)!)!", "factorial"), ("9!!!!", "factorial"), ("100000!", "factorial"),
        ("(10\\cdot 10^8)!", "factorial"), ("((3!)!)!", "factorial"), ("n!!", "factorial"),
        ("\\binom{10^6}{5}", "binomial"), ("{10^6 \\choose 5}", "binomial"), ("(x+y+z)^{500}", "sum to a power"),
        ("(a+b+c+d)^{60}", "monomials"), ("(x+1)" * 20, "monomials"), ("\\prod_{k=1}^{100000} k", "range"),
        ("\\sum" * 20 + "x", "sums"), ("\\gcd(10^{99999},7)", "remainder"),
        ("\\lfloor 10^{99999}/7\\rfloor", "remainder"),
        ("\\begin{pmatrix}" + "x&" * 200 + "\\end{pmatrix}", "matrix"),
        ("\\begin{pmatrix}x&y\\end{pmatrix}^{50}", "matrix"), ("\\pm 1" * 10, "sign"), ("9" * 1001, "digits"),
        ("(" * 10 + "7" + ")" * 10, "parentheses"), ("{" * 30 + "7" + "}" * 30, "nested"),
        ("\\binom" * 300, "nested|symbols|binomial"), ("1+" * 600 + "1", "symbols"), ("x" * 3000, "characters"),
    ],
)  # fmt: skip
def test_what_could_take_for_ever_is_refused(text: str, reason: str) -> None:
    refused = beyond_limits(normalise(text))
    assert refused and any(part in refused for part in reason.split("|")), refused


@pytest.mark.parametrize(
    "text",
    [
        "2^{2^{7}}", "2^{2^{n}}", "2^{3^{4}}", "x^{y^{z}}", "e^{x^2}", "2014!", "\\binom{100}{50}", "2^{99999}",
        "e^{23110}", "\\frac{1}{2014!^{2014}}", "\\frac{4^{2024}}{\\binom{4048}{2024}}-2",
        "x^{9900}\\left(\\frac{1+x^{100}}{2}\\right)^{2}",
        "2^{2015}+\\left\\lfloor\\left(\\frac{3}{2}\\right)^{2015}\\right\\rfloor-2",
        "(x-1)(x-2)(x-3)(x-4)(x-5)(x-6)(x-7)(x-8)", "\\sqrt{2+\\sqrt{2+\\sqrt{2+\\sqrt{2}}}}",
        "\\left(1+\\left(1+\\left(1+x\\right)^2\\right)^2\\right)^2", "\\sum_{k=1}^{2019} \\frac{1}{k}",
        "n!\\,(n-1)!", "1.5 \\times 10^{-34}", "12,345,678",
    ],
)  # fmt: skip
def test_ordinary_mathematics_is_not(text: str) -> None:
    assert unreadable(text) is None
    assert beyond_limits(normalise(text)) is None


def golds() -> list[str]:
    every = []
    for path in sorted(DATA.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            try:
                texts = acceptable_golds(row["gold"]) if "gold" in row else [problem_and_gold(row)[1]]
            except (ValueError, RLoopError):
                continue  # one example has no gold on purpose
            every += texts
    return every


@pytest.mark.skipif(not DATA.is_dir(), reason="the problem sets are not at hand")
def test_no_gold_of_the_problem_sets_is_refused() -> None:
    every = golds()
    assert len(every) > 12_400
    assert [gold for gold in every if unreadable(gold) or beyond_limits(normalise(gold))] == []


UNITS = ("(", "{", "1+", "^", "_", "\\binom", "\\frac", "x!", "9^", "|", "&", "\\left(", "1,", "\\sum_", "\u0667")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", UNITS)
def test_the_limits_keep_nobody_busy(unit: str) -> None:
    beyond_limits((unit * MAX_CHARS)[:MAX_CHARS])
