from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from rloop_core.training.groups import GroupBatch, ProblemStream, informative_groups


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
    batch.add(_output(3, 2, prompt=2, completion=4, base=100), {"a": 1})
    assert batch.missing == 2
    batch.add(_output(4, 2, prompt=3, completion=5, base=200), {"b": 0, "c": 2, "d": 3})
    assert (batch.missing, batch.in_update) == (0, {"a", "b", "c"}), "surplus is left out"
    tensors = batch.tensors(pad_token_id=0)
    assert tensors["prompt_ids"].tolist()[0] == [0, 102, 102]
    assert tensors["prompt_mask"].tolist()[0] == [0, 1, 1]
    assert tensors["completion_ids"].tolist()[0] == [102, 102, 102, 102, 0]
    assert tensors["completion_mask"].tolist()[0] == [1, 1, 1, 1, 0]
    assert tensors["advantages"].tolist() == [102, 103, 200, 201, 204, 205]
    assert "num_items_in_batch" not in tensors


def test_places_that_no_group_fills_are_silent() -> None:
    batch = GroupBatch(wanted=3, group_size=2)
    batch.add(_output(2, 2, prompt=2, completion=3, base=10), {"a": 1})
    tensors = batch.tensors(pad_token_id=0)
    assert tensors["completion_ids"].shape == (6, 3)
    assert tensors["completion_mask"].sum(dim=1).tolist() == [3, 3, 0, 0, 0, 0]
    assert tensors["advantages"].tolist() == [12, 13, 0, 0, 0, 0]


Ranks = list[tuple[int, list[str], set[str], list[float]]]
"""(missing everywhere after the last round, ids offered, ids in the update, advantages of the batch) of every rank."""


def _share(rank: int, rounds: list[list[int]], wanted: int, gather: Callable[[Any], list[Any]]) -> Any:
    """Collect one rank's groups; rounds[round][rank] counts its informative ones, of one row each."""
    batch = GroupBatch(wanted, group_size=1)
    offered, missing = [], 0
    for index, counts in enumerate(rounds):
        base = 100 * (rank + 1) + 10 * index
        values = [base + group for group in range(counts[rank])]
        output = _output(len(values) + 1, 1, prompt=1 + rank, completion=2 + index, base=base)
        batch.add(output, {str(value): group for group, value in enumerate(values)})
        offered += [str(value) for value in values]
        missing = batch.share(gather, rank)
    return missing, offered, batch.in_update, batch.tensors(0)["advantages"].tolist()


def _assert_shared(ranks: Ranks, wanted: int) -> None:
    """Every group is used once at most, none is left out while a rank misses one, and owners know of theirs."""
    offered = [name for _, names, _, _ in ranks for name in names]
    used = set().union(*(names for _, _, names, _ in ranks))
    trained = sorted(f"{value:.0f}" for _, _, _, values in ranks for value in values if value)
    filled = min(len(offered), wanted * len(ranks))
    assert [missing for missing, _, _, _ in ranks] == [wanted * len(ranks) - filled] * len(ranks)
    assert len(used) == filled
    assert all(names <= set(own) for _, own, names, _ in ranks), "a group is known to the rank that sampled it"
    assert all(len(values) == wanted for _, _, _, values in ranks)
    assert trained == sorted(used)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_surplus_groups_of_one_rank_fill_the_batches_of_others(count: int, wanted: int, data: st.DataObject) -> None:
    of_ranks = st.lists(st.integers(0, wanted), min_size=count, max_size=count)
    rounds = data.draw(st.lists(of_ranks, min_size=1, max_size=4))
    barrier, passed = threading.Barrier(count), [None] * count

    def gather_of(rank: int) -> Callable[[Any], list[Any]]:
        def gather(own: Any) -> list[Any]:
            passed[rank] = own
            barrier.wait(30)
            everything = list(passed)
            barrier.wait(30)
            return everything

        return gather

    with ThreadPoolExecutor(count) as pool:
        ranks = list(pool.map(lambda rank: _share(rank, rounds, wanted, gather_of(rank)), range(count)))
    _assert_shared(ranks, wanted)


SOURCES = st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 20)), min_size=1, max_size=6)


@given(SOURCES, st.integers(0, 2**31), st.lists(st.integers(0, 24), max_size=8))
@example([(2, weight) for weight in (1.0, 8.0, 1.0, 8.0, 1.0, 1.0, 8.0)], 0, [20, 20])  # most in arrears is too late
def test_the_problem_stream_keeps_shares_and_passes_and_resumes_anywhere(
    sources: list[tuple[int, float]], seed: int, draws: list[int]
) -> None:
    sizes, weights = [size for size, _ in sources], [weight for _, weight in sources]
    whole = ProblemStream(sizes, seed, 0, weights).take(sum(draws))
    stream = ProblemStream(sizes, seed, 0, weights)
    pieces: list[int] = []
    for number in draws:
        pieces += ProblemStream(sizes, seed, stream.cursor, weights).take(number)
        stream.take(number)
    assert pieces == whole
    for source, (size, weight) in enumerate(sources):
        own = range(sum(sizes[:source]), sum(sizes[: source + 1]))
        share = weight / sum(weights)
        assert all(abs(sum(i in own for i in whole[:n]) - share * n) < 1.001 for n in range(len(whole) + 1))
        drawn = [index for index in whole if index in own]
        for start in range(0, len(drawn) - size + 1, size):
            assert sorted(drawn[start : start + size]) == list(own)


def test_passes_differ_in_order_and_seeds_and_sources_differ() -> None:
    stream = ProblemStream([50], seed=1)
    first, second = stream.take(50), stream.take(50)
    assert first != second
    assert first[:12] == np.random.default_rng([1, 0]).permutation(50)[:12].tolist(), "as before there were sources"
    assert ProblemStream([50], seed=2).take(50) != first
    both = ProblemStream([50, 50], 1, 0, [1.0, 1.0]).take(100)
    assert both[::2] == first and [index - 50 for index in both[1::2]] != first
