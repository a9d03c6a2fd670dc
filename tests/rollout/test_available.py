"""Where vLLM can sample, and how many replicas of it a machine has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rloop_core.errors import ConfigError
from rloop_core.rollout import available
from rloop_core.rollout.available import check_in_loop, check_standalone, replicas_of
from tests.conftest import small_config


def replicas(device: str = "cuda", **placement: Any) -> int:
    return replicas_of(small_config(placement={"engine": "vllm", **placement}), device)


def test_each_replica_has_gpus_of_its_own_among_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert replicas() == 4
    assert replicas(engines=2) == 2
    assert [replicas(vllm={"tensor_parallel": width}) for width in (2, 3, 4)] == [2, 1, 1]
    with pytest.raises(ConfigError, match=r"^placement\.engines: 5 engines of 1 GPUs need more than the 4 .*lower"):
        replicas(engines=5)
    with pytest.raises(ConfigError, match=r"^placement\.vllm\.tensor_parallel: 1 engines of 8 GPUs need more"):
        replicas(vllm={"tensor_parallel": 8})
    assert (replicas("cpu"), replicas("cpu", engines=2)) == (1, 2)
    with pytest.raises(ConfigError, match=r"^placement\.engines: transformers samples with one engine \(fix: set"):
        small_config(placement={"engines": 2})


@pytest.mark.parametrize("server", [None, "http://node-3:8000"])
def test_vllm_is_refused_where_it_cannot_sample(server: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "find_spec", lambda name: None)
    explores: dict[str, Any] = {"explore": {"engine": "vllm"}}
    for config, device in (
        (small_config(**explores), None),
        (small_config(**explores, placement={"device": "auto", "vllm": {"server": server}}), "cpu"),
    ):
        with pytest.raises(ConfigError, match=r"^explore\.engine: .*trained on a CPU \(fix: set it to transformers"):
            check_in_loop(config, device)
    with pytest.raises(ConfigError, match=r"^explore\.engine: vLLM is not installed here \(fix: pip install"):
        check_in_loop(small_config(**explores, placement={"device": "auto"}), "cuda")
    with pytest.raises(ConfigError, match=r"^placement\.engine: vLLM is not installed here \(fix: pip install 'rloop"):
        check_standalone(small_config(placement={"engine": "vllm"}))
    check_standalone(small_config())
    check_in_loop(small_config(), "cpu")
