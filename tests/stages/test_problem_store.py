"""Problem sets in the store: read back unaltered, compared with each other, recorded by preflight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rloop_core.config import Config, ProblemSource
from rloop_core.errors import ArtifactDamaged, ProblemsError
from rloop_core.problems import ProblemSet, load_problems
from rloop_core.stages.inputs import Inputs
from rloop_core.stages.preflight import check_light
from rloop_core.stages.problem_store import ensure_problems, read_problems
from rloop_core.stages.run_record import read_data_record
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Store, dump_checksummed, load_checksummed
from tests.conftest import small_config
from tests.stages.running import launch_here

SUMS = [(f"{a} + {b} - 1 =", str(a + b - 1)) for a in range(2, 8) for b in range(1, 5)]
HELD_OUT = [("9 + 9 =", "18"), ("Compute $3 + 2 - 1$.", "4"), ("8 + 9 - 1 =", "16")]


def _file(path: Path, rows: list[tuple[str, str]]) -> str:
    path.write_text("".join(json.dumps({"problem": text, "answer": gold}) + "\n" for text, gold in rows))
    return str(path)


def _config(folder: Path, mode: str, evaluation: list[tuple[str, str]] | None = None, **changes: Any) -> Config:
    sets = [{"source": _file(folder / "held-out.jsonl", evaluation or HELD_OUT), "name": "held-out"}]
    changes = {"verifier": {"arithmetic": "refuse"}, **changes}
    return small_config(
        problems={"source": _file(folder / "train.jsonl", SUMS), "name": "sums", "size": None, "params": {}},
        evaluate={"sets": sets, "samples": 2, "k": [1]},
        decontaminate={"mode": mode},
        **changes,
    )


def _training(config: Config, store: Store) -> ProblemSet:
    ref = Inputs(config, store).of("explore", 0)[1]
    return read_problems(store, ref.location, ref.digest)


def test_a_set_comes_back_with_its_warnings_and_conflicts_and_is_refused_when_altered(tmp_path: Path) -> None:
    rows = [("a", "1"), ("a", "001"), ("b", "2"), ("b", "3"), ("A", "5"), ("c", "4")]
    store, source = Store(str(tmp_path / "store")), ProblemSource(source=_file(tmp_path / "p.jsonl", rows))
    key, digest = ensure_problems(store, "run", source)
    problems = read_problems(store, key, digest)
    assert problems == load_problems(source) and len(problems.warnings) == 1
    assert [variant.gold for variant in problems.conflicts[0].variants] == ["2", "3"]
    text = store.read_bytes(key)
    content = load_checksummed(text)
    content["problems"][-1][2] = "5"
    for altered, why in (
        (text.replace(b'"4"', b'"5"'), "its checksum differs"),
        (dump_checksummed(content), "its digest differs"),
    ):
        store.write_bytes(key, altered)
        with pytest.raises(ArtifactDamaged, match=why):
            read_problems(store, key, digest)
        assert ensure_problems(store, "run", source) == (key, digest), "it is made again"
        assert store.read_bytes(key) == text


def test_what_explore_reads_is_the_clean_set_only_where_dropping_is_asked_for(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    kept = {mode: _training(_config(tmp_path, mode), store) for mode in ("off", "report", "drop")}
    assert kept["off"].digest == kept["report"].digest
    assert len(kept["report"]) == len(SUMS)
    clean = kept["drop"]
    assert "3 + 2 - 1 =" not in {problem.problem for problem in clean}
    assert (len(clean), clean.ledger["contaminated_dropped"]) == (len(SUMS) - 1, 1)
    assert clean.ledger["kept"] + clean.ledger["contaminated_dropped"] == clean.ledger["rows_read"]


def test_the_comparison_is_made_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, config = Store(str(tmp_path / "store")), _config(tmp_path, "drop")
    first = Inputs(config, store)
    digest, ledger = first.training().digest, first.decontamination()
    keys = store.list("small/problems")
    with monkeypatch.context() as patch:
        patch.setattr("rloop_core.stages.problem_store.decontaminate", None)
        second = Inputs(config, store)
        assert (second.training().digest, second.decontamination()) == (digest, ledger)
    assert store.list("small/problems") == keys
    rules = config.decontaminate.model_copy(update={"ngram": 5})
    assert Inputs(config.model_copy(update={"decontaminate": rules}), store).decontamination() is not None
    assert len(store.list("small/problems")) == len(keys) + 1, "other rules are another comparison"


def test_damaged_files_of_the_comparison_are_made_again(tmp_path: Path) -> None:
    store, config = Store(str(tmp_path / "store")), _config(tmp_path, "drop")
    digest = Inputs(config, store).training().digest
    for key in store.list("small/problems"):
        if "clean-" in key or "decontamination-" in key:
            store.write_bytes(key, b'{"digest": "' + digest.encode() + b'", "matches": [{}]')
    assert Inputs(config, store).training().digest == digest
    assert _training(config, store).digest == digest


def test_an_evaluation_set_that_shares_nothing_leaves_the_training_set_as_it_is(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    given = Inputs(_config(tmp_path, "off"), store).training()
    assert Inputs(_config(tmp_path, "drop", [("9 + 9 =", "18")]), store).training() == given


def test_nothing_left_to_train_on_is_said_before_anything_starts(tmp_path: Path) -> None:
    config, store = _config(tmp_path, "drop", SUMS), Store(str(tmp_path / "store"))
    with pytest.raises(ProblemsError, match="sums: all 24 problems are evaluation problems"):
        check_light(config, store, Inputs(config, store))


@pytest.mark.process
@pytest.mark.parametrize("mode", ["report", "drop"])
def test_preflight_tells_counts_and_records(tmp_path: Path, mode: str) -> None:
    store, events = Store(str(tmp_path / "store")), []
    config = _config(tmp_path, mode)
    counts = StageRunner(config, store, None, lambda *event: events.append(event), launch=launch_here).preflight()
    assert (counts["contaminated problems"], counts["near misses of contamination"]) == (1, 0)
    (note,) = [event["note"] for stage, _, event in events if (stage, event["kind"]) == ("preflight", "note")]
    then = "dropped" if mode == "drop" else "kept, and evaluated with and without"
    assert note == f"1 of 24 training problems contaminated by held-out (1): {then}"
    record = read_data_record(store, "small")
    assert record is not None
    assert [(each.use, each.label, each.problems) for each in record.sets] == [
        ("training", "sums", 23 if mode == "drop" else 24),
        ("evaluation", "held-out", 3),
    ]
    assert record.sets[0].digest == Inputs(config, store).training().digest
    assert len(record.known("held-out")) == (0 if mode == "drop" else 1)
    assert record.sentence() == note


@pytest.mark.process
def test_preflight_records_golds_that_do_not_verify_and_nothing_to_compare(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    rows = [*SUMS, ("1 + 100 - 1 =", "x" * 3000), ("7 + 7 =", "14"), ("7 + 7 =", "15")]
    config = small_config(
        problems={"source": _file(tmp_path / "t.jsonl", rows), "size": None, "params": {}},
        verifier={"arithmetic": "refuse"},
    )
    notes: list[str] = []
    runner = StageRunner(
        config, store, None, lambda _, __, event: notes.append(str(event.get("note"))), launch=launch_here
    )
    assert "contaminated problems" not in runner.preflight()
    (warning,) = [note for note in notes if "t.jsonl: " in note]
    assert "'14' and '15'" in warning
    record = read_data_record(store, "small")
    assert record is not None
    assert [(len(each.golds_refused), len(each.warnings)) for each in record.sets] == [(1, 1)]
    assert (record.decontamination, record.sentence(), record.known("x")) == (None, None, frozenset())


def test_a_record_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert read_data_record(store, "small") is None
    for content in (b"{", b"[]", b'{"problem_sets": [{}], "mode": "drop", "decontamination": null}'):
        store.write_bytes("small/data.json", content)
        with pytest.raises(ArtifactDamaged, match=r"small/data\.json: cannot be read"):
            read_data_record(store, "small")


@pytest.mark.process
def test_a_training_set_that_answers_itself_is_warned_of_and_a_policy_ends_it(tmp_path: Path) -> None:
    for arithmetic, warned in (("evaluate", True), ("refuse", False)):
        store = Store(str(tmp_path / arithmetic))
        config = _config(tmp_path, "off", verifier={"arithmetic": arithmetic})
        told: list[str] = []

        def on_event(stage: str, iteration: int, event: Any, told: list[str] = told) -> None:
            told.append(event.get("note", ""))

        StageRunner(config, store, None, on_event, launch_here).preflight()
        record = read_data_record(store, config.name)
        assert record is not None
        for notes in (record.sets[0].warnings, told):
            assert any("set verifier.arithmetic to refuse" in note for note in notes) is warned
        assert not record.sets[1].warnings
