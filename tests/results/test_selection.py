"""The checkpoint that a run's config chooses: in status, in the run's outcome, and exported."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rloop_core.cli.entry import group
from rloop_core.errors import ConfigError, StageError
from rloop_core.results.run_reader import read_run
from rloop_core.results.selection import best_checkpoints, selected
from rloop_core.stages.run_record import write_run_record
from rloop_core.store import Store, read_manifest
from tests.results.paired import ITERATIONS, PHASE, SAMPLES, SETS, changed, correct, make_pair, pair_config

FIRST, SECOND = SETS


def rloop(*args: object):
    return CliRunner().invoke(group, [str(arg) for arg in args])


@pytest.fixture
def choose(pair, pair_store):
    """Both finished runs, in a store of the test's own, as if their configs had made this choice."""

    def choosing(**choice):
        for arm in pair:
            write_run_record(pair_store, changed(arm.config, "evaluate", **choice))
        return pair_store

    return choosing


def begun(tmp_path, **choice):
    return make_pair(tmp_path, changed(pair_config(), "evaluate", **choice))[0]


def avg(arm: str, iteration: int, step: int, label: str) -> float:
    return sum(correct(arm, iteration, step, label, p) for p in range(SETS[label])) / SAMPLES / SETS[label]


def best_of(arm: str, places: list[tuple[int, int]], label: str) -> tuple[int, int]:
    """The first of the greatest, by counting."""
    return max(places, key=lambda place: (avg(arm, *place, label), -places.index(place)))


@pytest.mark.parametrize("label", SETS)
def test_the_best_of_every_theta_and_snapshot_by_counting(choose, tmp_path, label):
    store = choose(select_on=label)
    places = [(i, step) for i in range(ITERATIONS) for step in [*range(1, PHASE + 1), 0]]
    chosen = selected(read_run(store, "tiny", tmp_path))
    assert (chosen.iteration, chosen.step) == best_of("rloop", places, label)
    assert chosen.checkpoints == len(places)
    for name in SETS:
        expected = avg("rloop", chosen.iteration, chosen.step, name)
        assert chosen.values[name]["value"] == pytest.approx(expected)
        assert chosen.values[name]["biased"] == (name == label)
    # The last snapshot of vanilla RL is its endpoint: one candidate.
    vanilla = selected(read_run(store, "tiny-vanilla-rl", tmp_path))
    steps = [(0, step) for step in [*range(1, ITERATIONS * PHASE), 0]]
    assert (vanilla.iteration, vanilla.step) == best_of("vanilla-rl", steps, label)
    assert vanilla.checkpoints == len(steps)


def test_by_pass_at_k_and_with_ties(choose, tmp_path):
    chosen = selected(read_run(choose(select_on=SECOND, select_by="pass@4"), "tiny", tmp_path))
    solved = {
        (i, step): sum(correct("rloop", i, step, SECOND, p) > 0 for p in range(SETS[SECOND]))
        for i in range(ITERATIONS)
        for step in [*range(1, PHASE + 1), 0]
    }
    best = [place for place, count in solved.items() if count == max(solved.values())]
    assert ((chosen.iteration, chosen.step), len(chosen.tied)) == (best[0], len(best) - 1)
    assert chosen.values[FIRST]["metric"] == "pass@4"


def test_status_names_it_and_marks_the_biased_value(choose):
    store = choose(select_on=FIRST).uri
    shown = " ".join(rloop("status", "tiny", "--store", store).output.split())
    status = json.loads(rloop("status", "tiny", "--store", store, "--json").output)["selected"]
    value, other = (status["values"][label]["value"] for label in SETS)
    marked = f"{FIRST} avg@4 {value:.1%} (biased: chosen on this set), {SECOND} avg@4 {other:.1%}"
    assert f"selected: {status['policy']}, best of 6 checkpoints by avg@4 on {FIRST}" in shown and marked in shown
    assert shown.count("biased") == 1


def test_evaluations_that_cannot_be_compared_are_a_note_and_no_crash(tmp_path):
    ours = begun(tmp_path, select_on=FIRST)
    ours.finish(1)

    def fewer(out):
        content = json.loads(json.dumps(ours.evaluated(out, 1)).replace("avg@4", "avg@3"))
        stored = json.loads((out / "metrics.json").read_text())
        (out / "metrics.json").write_text(json.dumps({**stored, "sets": content}))
        return content

    ours.publish(1, "evaluate", fewer)
    shown = rloop("status", "tiny", "--store", ours.root / "store")
    assert shown.exit_code == 0 and "no avg in common: avg@3, avg@4" in " ".join(shown.output.split())
    refused = rloop("export", "tiny", "--to", tmp_path / "t", "--store", ours.root / "store", "--best")
    assert isinstance(refused.exception, StageError)


def exported(store: Store, target):
    return rloop("export", "tiny", "--to", target, "--store", store.uri, "--best", "--json")


def test_export_writes_the_chosen_checkpoint_with_its_origin(choose, tmp_path):
    """Both sets choose differently here; a snapshot's weights come out of explore's artifact."""
    for label in SETS:
        store = choose(select_on=label)
        target = tmp_path / label[:4] / "theta"
        result = json.loads(exported(store, target).output)
        chosen = result["selected"]
        place = (chosen["iteration"], chosen["step"])
        weights = f"rloop {place[0]} {place[1]}"
        assert (target / "model.safetensors").read_text() == (weights if chosen["step"] else "weights")
        manifest = read_manifest(store, "tiny", place[0], "explore" if chosen["step"] else "rft")
        card = (target / "README.md").read_text()
        assert result["digest"] == manifest.digest and manifest.digest in card
        assert "best of 6 checkpoints" in card and card.count("(biased: chosen on this set)") == 1
        assert "<b>" not in card and f"{100 * chosen['values'][label]['value']:.1f} [" in card


def test_export_without_a_choice_says_how_to_make_one(pair, tmp_path):
    refused = exported(pair[0].store, tmp_path / "theta")
    assert isinstance(refused.exception, ConfigError) and "evaluate.select_on=LABEL" in str(refused.exception)
    assert not (tmp_path / "theta").exists()


def test_the_only_checkpoint_is_not_biased(tmp_path):
    ours = make_pair(tmp_path, changed(pair_config(), "evaluate", select_on=FIRST, snapshots=False))[0]
    ours.finish(1)
    chosen = selected(read_run(ours.store, "tiny", tmp_path))
    assert (chosen.policy, chosen.checkpoints, chosen.biased) == ("theta_1", 1, frozenset())
    assert chosen.sentence().startswith("theta_1, the only checkpoint by avg@4")


def test_a_run_that_has_evaluated_nothing_has_none(tmp_path):
    ours = begun(tmp_path, select_on=FIRST)
    ours.finish(1, evaluate=False)
    assert selected(read_run(ours.store, "tiny", tmp_path)) is None
    assert json.loads(rloop("status", "tiny", "--store", ours.store.uri, "--json").output)["selected"] is None
    assert "no checkpoint is evaluated yet" in str(exported(ours.store, tmp_path / "theta").exception)


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
