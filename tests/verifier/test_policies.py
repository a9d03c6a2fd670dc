"""Each value of each policy, with the exact comparison and with the engine: both give the same verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

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


@pytest.mark.parametrize(("answer", "gold", "policies", "same"), TABLES["by_policy"])
def test_each_value_of_a_policy(answer: str, gold: str, policies: dict[str, Any], same: bool) -> None:
    assert equal(answer, gold, Policies(**policies)) is same


@pytest.mark.parametrize(("answer", "gold", "same"), TABLES["told_apart"])
def test_what_the_engine_tells_apart(answer: str, gold: str, same: bool) -> None:
    assert equal(answer, gold) is same
    assert equal(gold, answer) is same
    assert equal(answer, answer)


def test_the_documentation_has_every_policy_with_its_values() -> None:
    lines = (Path(__file__).parents[2] / "docs/verifier.md").read_text(encoding="utf-8").splitlines()
    for name, field in Policies.model_fields.items():
        (row,) = [line for line in lines if line.startswith(f"| `{name}` |")]
        assert all(f"`{value}`" in row for value in (getattr(DEFAULT, name), *get_args(field.annotation)))
        assert row.index(f"`{getattr(DEFAULT, name)}`") < len(f"| `{name}` | ") + 2, "the default comes first"
