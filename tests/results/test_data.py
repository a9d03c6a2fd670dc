"""The report's section on data: the problem sets that a run uses, and what was left out of them."""

from __future__ import annotations

import csv
import json

from rloop_core.results.page import write_report
from rloop_core.stages.run_record import DataRecord, SetRecord
from tests.results.conftest import report_text


def record(run):
    ledger = {"rows_read": 20, "duplicates_dropped": 3, "malformed_skipped": 5, "kept": 12}
    sets = (
        SetRecord("training", "train.jsonl", "d" * 64, 12, ledger, ["p1", "p2"], ["half of it <i>repeats</i>"]),
        SetRecord("evaluation", "held-out <b>", "e" * 64, 4, {"rows_read": 4, "kept": 4}, [], []),
    )
    content = {"schema_version": 1, **DataRecord(sets).to_dict()}
    run.store.write_bytes("tiny/data.json", json.dumps(content).encode())


def test_the_page_shows_sets_and_ledgers_and_gets_them_when_they_come(fake_run, tmp_path):
    page, _ = write_report(fake_run.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    assert "<h2>Data</h2>" not in page.read_text()
    record(fake_run)
    write_report(fake_run.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    text = page.read_text()
    assert "half of it &lt;i&gt;repeats&lt;/i&gt;" in text and "held-out &lt;b&gt;" in text and "<i>" not in text
    with open(page.parent / "problem-sets.csv") as stream:
        sets = list(csv.DictReader(stream))
    assert [(row["use"], row["problems"], row["malformed_skipped"], row["golds_refused"]) for row in sets] == [
        ("training", "12", "5", "2"),
        ("evaluation", "4", "0", "0"),
    ]


def test_a_damaged_record_is_a_note(finished, tmp_path):
    finished.store.write_bytes("tiny/data.json", b"{")
    assert "data.json: cannot be read" in report_text(finished.store, cache=tmp_path)
