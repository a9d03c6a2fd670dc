"""How many replicas of vLLM draw on a machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rloop_core.errors import ConfigError
from rloop_core.rollout.available import replicas_of
from tests.conftest import small_config


def replicas(device: str = "cuda", **placement: Any) -> int:
    return replicas_of(small_config(placement={"engine": "vllm", **placement}), device)


def test_each_replica_has_gpus_of_its_own_among_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert replicas() == 4
    assert replicas(engines=2) == 2
    assert [replicas(vllm={"tensor_parallel": width}) for width in (2, 3, 4)] == [2, 1, 1]
    with pytest.raises(ConfigError, match=r"^placement\.engines: 5 engines cannot be had: 4 GPUs are .*at most 4"):
        replicas(engines=5)
    with pytest.raises(ConfigError, match=r"^placement\.vllm\.tensor_parallel: 1 engine of 8 GPUs cannot be had: 4"):
        replicas(vllm={"tensor_parallel": 8})
    assert (replicas("cpu"), replicas("cpu", engines=2)) == (1, 2)


def test_transformers_has_no_replicas() -> None:
    with pytest.raises(ConfigError, match=r"^placement\.engines: transformers samples with one engine \(fix: set"):
        small_config(placement={"engines": 2})
