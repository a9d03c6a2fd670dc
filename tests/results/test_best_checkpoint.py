"""Choosing the best checkpoint, and the winner's curse."""

from __future__ import annotations

import numpy as np
import pytest

from rloop_core.errors import StageError
from rloop_core.evaluation.outcomes import Outcomes, summarise
from rloop_core.results.selection import best_checkpoints

PROBLEMS, SAMPLES, CHECKPOINTS = 40, 4, 20
RUNS = 200


def summaries(*values: float, name: str = "avg@32") -> dict[tuple[int, int], dict[str, dict[str, float]]]:
    """Thetas in order, each after a snapshot that is worth nothing."""
    thetas = {(i, 0): {name: {"value": value}, "pass@8": {"value": 1 - value}} for i, value in enumerate(values)}
    return thetas | {(i, 50): {name: {"value": 0.0}, "pass@8": {"value": 0.0}} for i in range(len(values))}


def test_the_best_and_its_ties() -> None:
    assert best_checkpoints(summaries(0.2, 0.4, 0.4, 0.3), "held-out", "avg") == ("avg@32", [(1, 0), (2, 0)])
    assert best_checkpoints(summaries(0.2, 0.4), "held-out", "pass@8")[1] == [(0, 0)]
    _, ordered = best_checkpoints(summaries(0.0, 0.0), "held-out", "avg")
    assert ordered == [(0, 50), (0, 0), (1, 50), (1, 0)], "in the order of training"


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(StageError, match="no avg in common: avg@16, avg@32"):
        best_checkpoints(summaries(0.2) | {(1, 0): {"avg@16": {"value": 0.1}}}, "held-out", "avg")
    with pytest.raises(StageError, match="no pass@4 in common: none"):
        best_checkpoints(summaries(0.2, 0.3), "held-out", "pass@4")
    with pytest.raises(StageError, match="not a finite number"):
        best_checkpoints(summaries(0.2, float("nan")), "held-out", "avg")


def test_the_winners_curse_is_on_the_set_of_the_choice_and_on_no_other() -> None:
    """Checkpoints that are all equally good: whichever wins, its true value is that of the others."""
    generator = np.random.default_rng(5)
    chances = generator.uniform(0.05, 0.75, size=PROBLEMS)
    truth = chances.mean()

    def drawn() -> dict[tuple[int, int], dict[str, dict[str, float]]]:
        counts = generator.binomial(SAMPLES, chances, size=(CHECKPOINTS, PROBLEMS))
        return {(i, 0): {"avg@4": {"value": float(one.mean() / SAMPLES)}} for i, one in enumerate(counts)}

    on, elsewhere = [], []
    for _ in range(RUNS):
        chosen_on, other = drawn(), drawn()
        best = best_checkpoints(chosen_on, "validation", "avg")[1][0]
        on.append(chosen_on[best]["avg@4"]["value"] - truth)
        elsewhere.append(other[best]["avg@4"]["value"] - truth)
    sd = np.sqrt((chances * (1 - chances) / SAMPLES).mean() / PROBLEMS)  # of one checkpoint's avg on one draw
    error = sd / np.sqrt(RUNS)
    assert abs(np.mean(elsewhere)) < 4 * error
    assert np.mean(on) == pytest.approx(1.867 * sd, rel=0.1), "the mean of the greatest of 20 normal values"


def test_it_chooses_by_what_an_evaluation_writes() -> None:
    counts = {(0, 0): [1, 1], (0, 2): [4, 0], (1, 0): [2, 1]}
    evaluated = {at: summarise(Outcomes.from_counts(["x", "y"], 4, c), (1, 2, 4)) for at, c in counts.items()}
    assert best_checkpoints(evaluated, "held-out", "avg")[1] == [(0, 2)]
    assert best_checkpoints(evaluated, "held-out", "pass@2")[1] == [(1, 0)]
    assert best_checkpoints(evaluated, "held-out", "pass@4")[1] == [(0, 0), (1, 0)]
