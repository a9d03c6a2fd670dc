"""The report's section on data: problem sets, contaminated pairs, and the evaluation with and without them."""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner

from rloop_core.cli.entry import group
from rloop_core.problems.decontamination import Decontamination, Match, Rules
from rloop_core.results.report.evaluation import evaluation_rows
from rloop_core.results.report.write import write_report
from rloop_core.results.run_reader import read_run
from rloop_core.stages.run_record import DataRecord, SetRecord
from tests.results.conftest import report_text

LABEL = "held-out <b>"
EVIL = "<script>alert('y')</script> in the old box"


def match(kind, training, evaluation, share=1.0):
    return Match(kind, training, LABEL, evaluation, share, 2, False, "in the old box", EVIL, EVIL.upper())


def record(run, mode, *matches):
    matched = Decontamination("train", 12, {LABEL: 4, "other": 7}, Rules(), matches)
    ledger = {"rows_read": 20, "duplicates_dropped": 3, "malformed_skipped": 5, "kept": 12}
    sets = (
        SetRecord("training", "train.jsonl", "d" * 64, 12, ledger, ["p1", "p2"], ["half of it <i>repeats</i>"]),
        SetRecord("evaluation", LABEL, "e" * 64, 4, {"rows_read": 4, "kept": 4}, [], []),
    )
    content = {"schema_version": 1, **DataRecord(sets, mode, matched).to_dict()}
    run.store.write_bytes("tiny/data.json", json.dumps(content).encode())


MATCHES = (match("equal", "t1", "p0"), match("overlap", "t2", "p3"), match("near miss", "t3", "p1", 0.25))


@pytest.fixture
def contaminated(finished):
    record(finished, "report", *MATCHES)
    return finished


def test_the_page_shows_sets_ledger_and_pairs_and_escapes_them(evaluated, tmp_path):
    record(evaluated, "report", *MATCHES)
    page = write_report(evaluated.store, ["tiny"], tmp_path / "out", tmp_path / "cache")
    text = page.read_text()
    assert "<script" not in text.lower() and "&lt;script&gt;alert(&#39;y&#39;)" in text
    assert "half of it &lt;i&gt;repeats&lt;/i&gt;" in text
    assert "2 of 12 training problems contaminated by held-out &lt;b&gt; (2): they were trained on" in text
    assert "near miss" in text and "other numbers" in text
    with open(page.parent / "problem-sets.csv") as stream:
        sets = list(csv.DictReader(stream))
    assert [(row["use"], row["problems"], row["malformed_skipped"], row["golds_refused"]) for row in sets] == [
        ("training", "12", "5", "2"),
        ("evaluation", "4", "0", "0"),
    ]
    with open(page.parent / "decontamination.csv") as stream:
        pairs = list(csv.DictReader(stream))
    assert [(row["kind"], row["training_id"], row["evaluation_id"]) for row in pairs] == [
        ("equal", "t1", "p0"), ("overlap", "t2", "p3"), ("near miss", "t3", "p1"),
    ]  # fmt: skip


def test_the_evaluation_is_reported_with_and_without(contaminated, tmp_path):
    rows = evaluation_rows(read_run(contaminated.store, "tiny", tmp_path))
    without = f"{LABEL}, without 2 contaminated"
    assert [(row.problem_set, row.policy) for row in rows] == [
        (label, policy) for label in (LABEL, without) for policy in ("base", "theta_1", "theta_2")
    ]
    # Samples: 4 problems with 4 each; every problem but p0 has one correct, theta_2 has three of p0's.
    assert [row.metrics["avg@4"]["value"] for row in rows] == [0.25, 5 / 16, 6 / 16, 0.25, 0.25, 0.25]
    assert rows[2].differences["avg@4"]["value"] == pytest.approx(2 / 16)
    assert (rows[5].problems, rows[5].samples, rows[5].differences["avg@4"]["value"]) == (2, 8, 0.0)


def test_what_was_dropped_from_training_leaves_the_evaluation_as_it_is(finished, tmp_path):
    record(finished, "drop", match("equal", "t1", "p0"))
    run = read_run(finished.store, "tiny", tmp_path)
    assert {row.problem_set for row in evaluation_rows(run)} == {LABEL}
    assert run.notes[0] == f"1 of 12 training problems contaminated by {LABEL} (1): dropped."
    assert not any("without" in note for note in run.notes[1:])
    assert "they were left out of training" in report_text(finished.store, cache=tmp_path)


def test_a_set_that_training_holds_wholly_has_no_figures_without(finished, tmp_path):
    record(finished, "report", *(match("equal", "t1", f"p{i}") for i in range(4)))
    run = read_run(finished.store, "tiny", tmp_path)
    assert {row.problem_set for row in evaluation_rows(run)} == {LABEL}
    assert f"Every problem of {LABEL} is among the training problems." in run.notes


def test_a_run_without_a_record_has_no_section_and_gets_one_with_it(fake_run, tmp_path):
    page = write_report(fake_run.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    assert "<h2>Data</h2>" not in page.read_text()
    assert not (page.parent / "decontamination.csv").exists()
    record(fake_run, "report")
    write_report(fake_run.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    assert "None of 12 training problems contaminated by held-out &lt;b&gt;, other." in page.read_text()
    assert "contaminated" not in " ".join(read_run(fake_run.store, "tiny", tmp_path).notes)


def test_a_damaged_record_is_a_note(finished, tmp_path):
    finished.store.write_bytes("tiny/data.json", b"{")
    assert "data.json: cannot be read" in report_text(finished.store, cache=tmp_path)


def test_status_says_it(contaminated):
    store = str(contaminated.root / "store")
    shown = CliRunner().invoke(group, ["status", "tiny", "--store", store])
    assert f"2 of 12 training problems contaminated by {LABEL} (2): kept, and evaluated with and without." in " ".join(
        shown.output.split()
    )
