"""Problem sets in the store: as they were read, with what there was to say about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rloop_core.config import ProblemSource
from rloop_core.errors import ArtifactDamaged
from rloop_core.problems import load_problems
from rloop_core.stages.problem_store import ensure_problems, read_problems
from rloop_core.store import Store, dump_checksummed, load_checksummed


@pytest.fixture
def source(tmp_path: Path) -> ProblemSource:
    rows = [("a", "1"), ("a", "001"), ("b", "2"), ("b", "3"), ("c", "4")]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"problem": problem, "answer": gold}) + "\n" for problem, gold in rows))
    return ProblemSource(source=str(file))


def test_a_set_comes_back_with_its_warnings_and_conflicts(source: ProblemSource, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    key, digest = ensure_problems(store, "run", source)
    again = read_problems(store, key, digest)
    assert again == load_problems(source)
    assert [variant.gold for variant in again.conflicts[0].variants] == ["2", "3"]
    assert len(again.warnings) == 1


def test_an_altered_set_is_refused(source: ProblemSource, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    key, digest = ensure_problems(store, "run", source)
    store.write_bytes(key, store.read_bytes(key).replace(b'"4"', b'"5"'))
    with pytest.raises(ArtifactDamaged, match="its checksum differs"):
        read_problems(store, key, digest)


def test_another_set_in_its_place_is_refused(source: ProblemSource, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    key, digest = ensure_problems(store, "run", source)
    content = load_checksummed(store.read_bytes(key))
    content["problems"][-1][2] = "5"
    store.write_bytes(key, dump_checksummed(content))
    with pytest.raises(ArtifactDamaged, match="its digest differs"):
        read_problems(store, key, digest)
