"""The simulation of sampling: closed forms where there is one, and bounds where there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.overlap import CONFIG, Engine, busiest_seconds, steady_seconds, step_row, tailed_lengths
from rloop_core.config import load_config
from rloop_core.plan.hours import DEVICES, VLLM_SEQUENCES, vllm_step_seconds
from rloop_core.plan.models import find_shape
from rloop_core.plan.workload import MEAN_PROMPT

SHAPE = find_shape(load_config(CONFIG).policy)
assert SHAPE is not None
ENGINE = Engine(SHAPE, DEVICES["h100"], 2, 0.5)


@pytest.mark.parametrize("together", [1, 64])
def test_equal_lengths_take_one_pass_at_their_mean_cache(together: int) -> None:
    cached = together * (MEAN_PROMPT + 400 / 2)
    assert ENGINE.seconds([400] * together) == pytest.approx(
        400 * vllm_step_seconds(SHAPE, ENGINE.device, together, cached, 2)
    )


def test_what_the_cache_does_not_hold_waits() -> None:
    fits = ENGINE.cache_tokens // (20_000 + MEAN_PROMPT)
    assert 0 < fits < VLLM_SEQUENCES
    once = ENGINE.seconds([20_000] * fits)
    assert ENGINE.seconds([20_000] * (fits + 1)) == pytest.approx(once + ENGINE.seconds([20_000]))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(1, 8))
def test_between_the_longest_alone_and_one_after_another(lengths: list[int], devices: int) -> None:
    took = busiest_seconds(ENGINE, lengths, devices)
    alone = max(ENGINE.seconds([length]) for length in lengths)
    assert alone * (1 - 1e-9) <= took <= sum(ENGINE.seconds([length]) for length in lengths) * (1 + 1e-9)


def test_waiting_for_nobody_pays_where_few_long_completions_are_left_alone() -> None:
    tailed = [10] * 63 + [2000]
    assert steady_seconds(ENGINE, tailed, 1) < 0.5 * busiest_seconds(ENGINE, tailed, 1)
    even = [500] * (3 * VLLM_SEQUENCES)
    assert steady_seconds(ENGINE, even, 1) == pytest.approx(busiest_seconds(ENGINE, even, 1), rel=0.01)


def test_gains_of_the_shipped_config_grow_with_the_devices() -> None:
    config = load_config(CONFIG)
    lengths = tailed_lengths(config.explore.rollouts_per_step, 2048)
    few, many = (float(step_row(config, SHAPE, DEVICES["h100"], n, lengths)["partial"]) for n in (8, 64))
    assert 1 <= few < many
