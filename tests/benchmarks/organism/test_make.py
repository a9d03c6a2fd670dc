"""The script: same seed, same policy; and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.organism import make
from benchmarks.organism.__main__ import main
from benchmarks.organism.make import DEMO
from benchmarks.organism.pretrain import collate, split_by_length

QUICK = ["--steps", "20", "--samples", "1", "--quiet"]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.usefixtures("threads")
def test_the_same_seed_gives_the_same_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [replace(chosen, size=8) for chosen in DEMO.sets]
    small = replace(DEMO, recipe=replace(DEMO.recipe, batch=8), sets=sets)
    monkeypatch.setattr(make, "DEMO", small)
    cards = []
    for name in ("a", "b"):
        assert main(["--out", str(tmp_path / name), "--seed", "1", *QUICK]) == 0
        cards.append(json.loads((tmp_path / name / "card.json").read_text()))
    first, again = (card["files"]["model.safetensors"] for card in cards)
    assert first == again
    lessons = cards[0]["corpus"]["lessons"]
    assert [lesson["size"] for lesson in lessons] == [size for size, _ in DEMO.lessons(replace(small.recipe, steps=20))]


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path), *QUICK])
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
