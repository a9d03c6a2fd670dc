"""Each value of each policy, with the exact comparison and with the engine: both give the same verdict."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from rloop_core.verifier.compare.answers import compare
from rloop_core.verifier.engine.compare import compare_in_engine
from rloop_core.verifier.policies import DEFAULT, Policies
from rloop_core.verifier.read.normalise import normalise
from tests.verifier.conftest import tables


def equal(answer: str, gold: str, policies: Policies = DEFAULT) -> bool:
    """Return the engine's verdict; an exact decision must agree with it."""
    answer, gold = normalise(answer), normalise(gold)
    exact, by_engine = compare(answer, gold, policies), compare_in_engine(answer, gold, policies)
    assert exact is None or exact is by_engine
    return by_engine


TABLES = tables("notations")


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [*((*pair, True) for pair in TABLES["agree"]), *((*pair, False) for pair in TABLES["differ"])],
)
def test_exact_comparison_and_engine_agree(answer: str, gold: str, same: bool) -> None:
    assert equal(answer, gold) is equal(gold, answer) is same


def test_units_ignored_or_required() -> None:
    ignore, require = Policies(units="ignore"), Policies(units="require")
    assert equal("5 \\text{ km}", "5 \\text{ m}", ignore)
    assert not equal("5 \\text{ km}", "6 \\text{ m}", ignore)
    assert not equal("5", "5 \\text{ m}", require)
    assert equal("5 \\text{ m}", "5", require)
    assert equal("0.005 \\text{ km}", "5 \\text{ m}", require)
    assert not equal("60", "60^\\circ", require)


def test_percent() -> None:
    strict = Policies(percent="strict")
    assert equal("50\\%", "0.5") and equal("50\\%", "50") and equal("33\\frac{1}{3}\\%", "\\frac13")
    assert equal("50\\%", "0.5", strict) and not equal("50\\%", "50", strict)
    assert equal("50\\%", "50 \\text{ percent}", strict)
    assert not equal("50\\%", "5")


def test_tolerance() -> None:
    loose = Policies(tolerance=0.01)
    for answer, gold in (("0.333", "\\frac13"), ("3.1416", "\\pi"), ("(0.333,2)", "(\\frac13,2)"), ("1.41", "\\sqrt2")):
        assert not equal(answer, gold)
        assert equal(answer, gold, loose)
    assert equal("5.01 \\text{ km}", "5010 \\text{ m}", loose)
    assert not equal("100", "101", loose), "integers are exact"
    assert not equal("0.3", "\\frac13", loose)
    assert not equal("1.4142135623730950488016887242097", "\\sqrt2"), "no decimal is the root of 2"
    assert not equal("3.14159265358979323846264338327950288", "\\pi")


@pytest.mark.parametrize(("answer", "gold", "same"), TABLES["told_apart"])
def test_what_the_engine_tells_apart(answer: str, gold: str, same: bool) -> None:
    assert equal(answer, gold) is same
    assert equal(gold, answer) is same
    assert equal(answer, answer)


def test_arithmetic() -> None:
    refuse = Policies(arithmetic="refuse")
    for left_open in ("4+3", "10!-3628793", "-7+14", "2^3-1", "\\sqrt{16}+3", "\\frac{6+8}{2}", "x=4+3", "7\\times 1"):
        assert equal(left_open, "7")
        assert not equal(left_open, "7", refuse)
    for done in ("7", "7.0", "\\frac{14}{2}", "\\sqrt{49}", "x=7", "7\\text{ cm}", "700\\%", "7^\\circ"):
        assert equal(done, "7", refuse)
    assert equal("-\\frac{3}{4}", "-0.75", refuse)
    assert (
        equal("2^{10}", "2^{10}", refuse)
        and equal("n+1", "1+n", refuse)
        and equal("\\cos 60^\\circ", "\\frac12", refuse)
    )


def test_the_documentation_has_every_policy_with_its_values() -> None:
    lines = (Path(__file__).parents[2] / "docs/verifier.md").read_text(encoding="utf-8").splitlines()
    for name, field in Policies.model_fields.items():
        (row,) = [line for line in lines if line.startswith(f"| `{name}` |")]
        assert all(f"`{value}`" in row for value in (getattr(DEFAULT, name), *get_args(field.annotation)))
        assert row.index(f"`{getattr(DEFAULT, name)}`") < len(f"| `{name}` | ") + 2, "the default comes first"
