from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from rloop_core.errors import StoreError
from rloop_core.evaluation.outcomes import compare, problem_outcomes
from rloop_core.report.evaluation import evaluation_rows
from rloop_core.report.reading import read_run
from rloop_core.report.write import write_report
from rloop_core.store import Store

FIGURES = ("gains", "learning", "health", "filter", "success-rates", "seconds")


def test_writes_page_png_and_csv_of_everything(finished, tmp_path):
    page = write_report(finished.store, ["tiny"], tmp_path / "out", tmp_path / "cache")
    for name in FIGURES:
        assert (page.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert len((page.parent / f"{name}.csv").read_text().splitlines()) > 1
    with open(page.parent / "evaluation.csv") as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["policy"], row["metric"]) for row in rows} == {
        (policy, metric)
        for policy in ("base", "theta_1", "theta_2")
        for metric in ("avg@4", "pass@1", "pass@4", "majority@4")
    }
    assert len((page.parent / "lineage.csv").read_text().splitlines()) == 1 + 11


def test_html_escapes_model_output_and_names_and_reaches_for_nothing(finished, tmp_path):
    text = write_report(finished.store, ["tiny"], tmp_path / "out", tmp_path / "cache").read_text()
    assert "<script" not in text.lower()
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in text
    assert "held-out &lt;b&gt;" in text and "held-out <b>" not in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
    assert "http://" not in text and "https://" not in text


def test_differences_are_paired_over_problems(finished, tmp_path):
    rows = evaluation_rows(read_run(finished.store, "tiny", tmp_path))
    assert [row.policy for row in rows] == ["base", "theta_1", "theta_2"]
    assert rows[0].differences == {}
    # The base solves 1 of 4 samples of each of 4 problems; theta_2 solves 3 of the first problem's.
    assert rows[2].metrics["avg@4"]["value"] == pytest.approx(6 / 16)
    assert rows[2].differences["avg@4"]["value"] == pytest.approx(2 / 16)
    folder = finished.store.local_path("tiny")
    files = [sorted((folder / part / "evaluate" / "set-00").glob("*.parquet")) for part in ("iteration-001", "base")]
    expected = compare(*(problem_outcomes(one) for one in files), [1, 4], seed=0)["avg@4"]
    assert rows[2].differences["avg@4"] == {key: expected[key] for key in ("value", "low", "high")}


def test_a_missing_evaluation_is_a_note(fake_run, tmp_path):
    for stage in ("explore", "harvest"):
        fake_run.publish(0, stage, getattr(fake_run, stage))
    page = write_report(fake_run.store, ["tiny"], tmp_path / "out", tmp_path / "cache")
    text = page.read_text()
    assert "The run is not complete" in text and "no evaluation in the store yet" in text
    assert (page.parent / "learning.png").exists() and not (page.parent / "gains.png").exists()


def test_a_run_that_just_began_has_a_report(fake_run, tmp_path):
    assert write_report(fake_run.store, ["tiny"], tmp_path / "out", tmp_path / "cache").is_file()


def test_a_missing_base_leaves_out_differences(fake_run, tmp_path):
    fake_run.publish(0, "evaluate", fake_run.evaluate)
    rows = evaluation_rows(read_run(fake_run.store, "tiny", tmp_path))
    assert [row.policy for row in rows] == ["theta_1"] and rows[0].differences == {}


def test_a_damaged_file_is_named_and_not_used(finished, tmp_path):
    path = finished.store.local_path("tiny/iteration-001/explore/metrics.jsonl")
    path.write_text(path.read_text().replace("0.4", "0.9"))
    run = read_run(finished.store, "tiny", tmp_path)
    page = write_report(finished.store, ["tiny"], tmp_path / "out", tmp_path)
    assert "was altered" in page.read_text()
    assert len((page.parent / "learning.csv").read_text().splitlines()) == 1 + 2
    assert run.notes == []


def test_default_folder_and_two_runs_on_one_page(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = write_report(finished.store, ["tiny"], None, tmp_path / "cache")
    assert page == tmp_path / "store" / "tiny" / "report" / "report.html"
    both = write_report(finished.store, ["tiny", "tiny"], None, tmp_path / "cache")
    assert both == Path(".rloop/reports/tiny+tiny/report.html")
    assert both.read_text().count('class="run"') == 2 and (both.parent / "tiny-gains.png").exists()


def test_equal_runs_give_equal_pictures(finished, tmp_path):
    pages = [write_report(finished.store, ["tiny"], tmp_path / name, tmp_path) for name in ("a", "b")]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert (pages[0].parent / "gains.png").read_bytes() == (pages[1].parent / "gains.png").read_bytes()


def test_unknown_run_names_those_that_are_there(finished, tmp_path):
    with pytest.raises(StoreError, match="holds tiny"):
        write_report(finished.store, ["other"], tmp_path / "out", tmp_path)


def test_works_from_a_store_that_is_not_local(finished, tmp_path):
    remote = Store("memory://report-test")
    for key in finished.store.list("tiny"):
        remote.write_bytes(key, finished.store.read_bytes(key))
    page = write_report(remote, ["tiny"], tmp_path / "remote", tmp_path / "cache")
    local = write_report(finished.store, ["tiny"], tmp_path / "local", tmp_path / "cache")
    assert (page.parent / "evaluation.csv").read_text() == (local.parent / "evaluation.csv").read_text()
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_current_report_is_kept_and_an_old_one_is_not(finished, tmp_path):
    page = write_report(finished.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    written = page.stat().st_mtime_ns
    write_report(finished.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    assert page.stat().st_mtime_ns == written
    finished.store.delete("tiny/iteration-001/evaluate/manifest.json")
    write_report(finished.store, ["tiny"], tmp_path / "out", tmp_path, keep_current=True)
    assert "evaluate of iteration 1 not in the store" in page.read_text()
