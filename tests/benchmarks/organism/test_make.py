"""The script: same seed, same policy; and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.organism.__main__ import main
from benchmarks.organism.make import RECIPE, lessons_of, make_policy
from benchmarks.organism.pretrain import collate, split_by_length
from benchmarks.organism.sums import RL_SETS


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.usefixtures("threads")
def test_the_same_seed_gives_the_same_policy(tmp_path: Path) -> None:
    sets = [replace(chosen, size=8) for chosen in RL_SETS]
    small = replace(RECIPE, batch=8, steps=20, seed=1)
    first, again = (make_policy(small, 1, tmp_path / name, print, sets) for name in ("a", "b"))
    assert first["files"]["model.safetensors"] == again["files"]["model.safetensors"]
    assert json.loads((tmp_path / "a/card.json").read_text()) == first
    assert [lesson["size"] for lesson in first["corpus"]["lessons"]] == [size for size, _ in lessons_of(small)]


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "not an empty directory" in capsys.readouterr().err
    assert [f.name for f in tmp_path.iterdir()] == ["mine"]


def test_a_batch_is_split_by_length_and_only_solutions_are_learned() -> None:
    batch = [([0] * 3, [1] * n) for n in (5, 1, 4, 2, 3)]
    parts = split_by_length(batch)
    assert [len(solution) for part in parts for _, solution in part] == [1, 2, 3, 4, 5]
    ids, mask, labels = collate([([7, 8], [9]), ([7], [8, 9, 5])], pad=0)
    assert ids.tolist() == [[7, 8, 9, 0], [7, 8, 9, 5]]
    assert mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert labels.tolist() == [[-100, -100, 9, -100], [-100, 8, 9, 5]]
