"""Damaged and partial inputs: the page is written all the same, and says what is missing."""

from __future__ import annotations

import json

from rloop_core.report.comparison import write_comparison
from tests.report.paired import SETS, changed, make_pair, pair_config

NAMES = ("tiny", "tiny-vanilla-rl")


def written(ours, theirs, tmp_path):
    page, found = write_comparison(ours.store, *NAMES, tmp_path / "out", tmp_path / "cache")
    text = page.read_text()
    assert "Compute" in text and "What differs" in text
    return " ".join(found.notes), text, found


def test_without_snapshots_the_page_says_how_to_get_them(tmp_path):
    config = changed(changed(pair_config(1), "evaluate", snapshots=False), "explore", snapshot_every=0)
    ours, theirs = make_pair(tmp_path, config)
    for arm in (ours, theirs):
        arm.finish()
    notes, text, found = written(ours, theirs, tmp_path)
    assert "explore.snapshot_every=N" in notes and "evaluate.snapshots=true" in notes
    assert "No differential forgetting on held-out" in notes and "Table 1" in text
    # theta_i alone still make a history and matrices.
    assert [arm.title for arm in found.dynamics[0].arms] == ["RLoop", "RL"] and found.dynamics[0].blocks is None


def test_without_evaluation_there_are_still_curves_of_training(tmp_path):
    ours, theirs = make_pair(tmp_path, pair_config(1))
    for arm in (ours, theirs):
        arm.finish(evaluate=False)
    notes, text, _ = written(ours, theirs, tmp_path)
    assert "no evaluated final policy" in notes and "no Table 1" in notes
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"reward", "stability"}
    assert "Nothing to compare yet" in text


def test_runs_that_just_began_and_a_run_that_is_under_way(tmp_path):
    ours, theirs = make_pair(tmp_path, pair_config(1))
    notes, _, found = written(ours, theirs, tmp_path)
    assert "not complete" in notes and not list((tmp_path / "out").glob("*.png"))
    ours.finish(iterations=1)
    theirs.finish()
    notes, _, found = written(ours, theirs, tmp_path)
    assert "theta_1 of 2" in notes and found.table.row(next(iter(SETS)), "RLoop").policy == "theta_1"


def test_samples_that_are_damaged_or_not_those_of_the_summary_are_left_out(tmp_path):
    ours, theirs = make_pair(tmp_path, pair_config(1))
    original = ours.evaluated

    def lying(out, iteration):
        found = original(out, iteration)
        if iteration == 0:
            content = json.loads((out / "metrics.json").read_text())
            content["snapshots"]["1"][next(iter(SETS))]["avg@4"]["value"] += 0.1
            (out / "metrics.json").write_text(json.dumps(content))
        return found

    ours.evaluated = lying
    for arm in (ours, theirs):
        arm.finish()
    path = next(ours.store.local_path("tiny/iteration-001/evaluate/step-000002/set-00").glob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    notes, _, found = written(ours, theirs, tmp_path)
    assert "step 1: the samples give avg@4" in notes and "was altered" in notes
    assert found.dynamics[0].blocks.steps == [2, 3]


