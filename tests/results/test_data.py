"""The report's section on data: problem sets, and why rows and problems were left out."""

from __future__ import annotations

import csv
import json

from click.testing import CliRunner

from rloop_core.cli.entry import group
from rloop_core.results.page import write_report
from rloop_core.stages.run_record import DataRecord, SetRecord
from tests.results.conftest import report_text

LABEL = "held-out <b>"
SENTENCE = "2 of 14 training problems are also in an evaluation set, and are left out."


def record(run, left_out):
    ledger = {"rows_read": 20, "duplicates_dropped": 3, "malformed_skipped": 5 - left_out, "kept": 12}
    ledger |= {"contaminated_dropped": left_out} if left_out else {}
    sets = (
        SetRecord("training", "train.jsonl", "d" * 64, 12, ledger, ["p1", "p2"], ["half of it <i>repeats</i>"]),
        SetRecord("evaluation", LABEL, "e" * 64, 4, {"rows_read": 4, "kept": 4}, [], []),
    )
    content = {"schema_version": 1, **DataRecord(sets).to_dict()}
    run.store.write_bytes("tiny/data.json", json.dumps(content).encode())


def test_the_page_shows_sets_and_ledgers_and_gets_them_when_they_come(fake_run, tmp_path):
    page, _ = write_report(fake_run.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    assert "<h2>Data</h2>" not in page.read_text()
    record(fake_run, 2)
    write_report(fake_run.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    text = page.read_text()
    assert "half of it &lt;i&gt;repeats&lt;/i&gt;" in text and SENTENCE in text and "<i>" not in text
    with open(page.parent / "problem-sets.csv") as stream:
        sets = list(csv.DictReader(stream))
    names = ("use", "problems", "malformed_skipped", "contaminated_dropped", "golds_refused")
    assert [tuple(row[name] for name in names) for row in sets] == [
        ("training", "12", "3", "2", "2"),
        ("evaluation", "4", "0", "0", "0"),
    ]
    record(fake_run, 0)
    write_report(fake_run.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    assert "<h2>Data</h2>" in page.read_text() and "are left out" not in page.read_text()


def test_status_says_what_is_left_out_and_a_damaged_record_is_a_note(finished, tmp_path):
    record(finished, 2)
    shown = CliRunner().invoke(group, ["status", "tiny", "--store", str(finished.root / "store")])
    assert SENTENCE in " ".join(shown.output.split())
    finished.store.write_bytes("tiny/data.json", b"{")
    assert "data.json: cannot be read" in report_text(finished.store, cache=tmp_path)
