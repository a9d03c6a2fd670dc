from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from rloop_core.training.groups import GroupBatch, ProblemStream, group_id, informative_groups


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=12))
def test_informative_means_accuracy_has_variance(groups: list[list[bool]]) -> None:
    flat = [outcome for group in groups for outcome in group]
    expected = [index for index, group in enumerate(groups) if 0 < sum(group) < len(group)]
    assert informative_groups(flat, 4) == expected


def _output(groups: int, size: int, prompt: int, completion: int, base: int) -> dict[str, torch.Tensor]:
    rows = groups * size
    values = base + torch.arange(rows)
    return {
        "prompt_ids": values[:, None].repeat(1, prompt),
        "prompt_mask": torch.ones(rows, prompt, dtype=torch.long),
        "completion_ids": values[:, None].repeat(1, completion),
        "completion_mask": torch.ones(rows, completion, dtype=torch.long),
        "advantages": values.float(),
        "num_items_in_batch": torch.tensor(rows * completion),
    }


def test_rounds_are_joined_with_prompts_padded_left_and_completions_right() -> None:
    batch = GroupBatch(wanted=3, group_size=2)
    assert batch.add(_output(3, 2, prompt=2, completion=4, base=100), [1]) == [1]
    assert batch.missing == 2
    assert batch.add(_output(4, 2, prompt=3, completion=5, base=200), [0, 2, 3]) == [0, 2], "surplus is left out"
    tensors = batch.tensors(pad_token_id=0)
    assert tensors["prompt_ids"].tolist()[0] == [0, 102, 102]
    assert tensors["prompt_mask"].tolist()[0] == [0, 1, 1]
    assert tensors["completion_ids"].tolist()[0] == [102, 102, 102, 102, 0]
    assert tensors["completion_mask"].tolist()[0] == [1, 1, 1, 1, 0]
    assert tensors["advantages"].tolist() == [102, 103, 200, 201, 204, 205]
    assert "num_items_in_batch" not in tensors


def test_places_that_no_group_fills_are_silent() -> None:
    batch = GroupBatch(wanted=3, group_size=2)
    batch.add(_output(2, 2, prompt=2, completion=3, base=10), [1])
    tensors = batch.tensors(pad_token_id=0)
    assert tensors["completion_ids"].shape == (6, 3)
    assert tensors["completion_mask"].sum(dim=1).tolist() == [3, 3, 0, 0, 0, 0]
    assert tensors["advantages"].tolist() == [12, 13, 0, 0, 0, 0]


@given(st.integers(1, 9), st.integers(0, 2**31), st.lists(st.integers(0, 12), max_size=8))
def test_the_problem_stream_visits_everything_once_a_pass_and_resumes_anywhere(
    count: int, seed: int, draws: list[int]
) -> None:
    whole = ProblemStream(count, seed).take(sum(draws))
    stream = ProblemStream(count, seed)
    pieces: list[int] = []
    for number in draws:
        pieces += ProblemStream(count, seed, stream.cursor).take(number)
        stream.take(number)
    assert pieces == whole
    for start in range(0, len(whole) - count + 1, count):
        assert sorted(whole[start : start + count]) == list(range(count))


def test_passes_differ_in_order_and_seeds_differ() -> None:
    stream = ProblemStream(50, seed=1)
    first, second = stream.take(50), stream.take(50)
    assert first != second
    assert ProblemStream(50, seed=2).take(50) != first


def test_group_ids_are_unique_over_steps_ranks_rounds_and_groups() -> None:
    ids = {group_id(s, r, b, g) for s in range(3) for r in range(3) for b in range(3) for g in range(3)}
    assert len(ids) == 81
