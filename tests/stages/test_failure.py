"""Errors of libraries as a user reads them: full memory, a lost rank, an engine that ended in its own process."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rloop_core.errors import StageCrashed, StoreError
from rloop_core.rollout.engine import ENGINE_STARTS
from rloop_core.stages.failure import failure_of
from rloop_core.stages.job import StageJob
from tests.conftest import small_config

# As vLLM 0.29 writes them; what follows an error are its consequences.
LOG = f"""\
(EngineCore pid=8) ERROR 11-21 22:50:40 [core.py:1376] ValueError: of an earlier start
{ENGINE_STARTS}
(EngineCore pid=18) WARNING 11-21 22:59:26 [vllm.py:1371] Enforce eager set
(Worker pid=19) ERROR 11-21 22:56:39 [multiproc_executor.py:1055] Traceback (most recent call last):
(Worker pid=19) ERROR 11-21 22:56:39 [multiproc_executor.py:1055] torch.OutOfMemoryError: CUDA out of memory. 2 GiB
(EngineCore pid=18) ERROR 11-21 22:56:40 [core.py:1376] ValueError: No available memory for the cache blocks.
(EngineCore pid=18) ERROR 11-21 22:56:40 [core.py:1376] RuntimeError: Worker failed with error
"""


DEVICE = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
HOST = MemoryError("no room")
TORCH_ON_HOST = RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: 8 GB")
ZERO = "infra/accelerate/zero2-offload.yaml"


@pytest.mark.parametrize(
    ("error", "stage", "placement", "lower"),
    [
        (
            DEVICE,
            "explore",
            {"micro_batch_tokens": 4096},
            r"lower placement.micro_batch_tokens \(now 4096\), placement.generation_batch \(now 256\); or "
            rf"set placement.gradient_checkpointing; or name {ZERO}",
        ),
        (
            DEVICE,
            "rft",
            {"gradient_checkpointing": True, "accelerate_config": ZERO},
            r"lower placement.micro_batch_tokens \(now what rloop plan says\); or free the device",
        ),
        (DEVICE, "evaluate", {}, r"lower placement.generation_batch \(now 256\); or free the device"),
        (DEVICE, "evaluate", {"engine": "vllm"}, r"lower placement.vllm.memory \(now 0.85\)"),
        (TORCH_ON_HOST, "explore", {}, r"more memory, or lower .*micro_batch_tokens \(now what rloop plan says\)"),
        (
            HOST,
            "rft",
            {"processes": 2, "verifier_workers": 3},
            r"processes \(now 2\), placement.verifier_workers \(now 3",
        ),
    ],
)
def test_out_of_memory_says_so_and_what_to_lower(
    error: Exception, stage: str, placement: dict[str, Any], lower: str, tmp_path: Path
) -> None:
    found = failure_of(error, _job(tmp_path, stage, **placement))
    assert found["kind"] == "StageError" and found["what"].startswith("out of memory: ")
    assert re.search(lower, found["fix"]) and found["fix"].endswith("it resumes")


def test_vllm_beside_the_trainer_can_take_less(tmp_path: Path) -> None:
    config = small_config(explore={"engine": "vllm"}, placement={"device": "cuda"})
    job = replace(_job(tmp_path, "explore"), config=config)
    assert "placement.vllm.colocated_memory (now 0.3)" in failure_of(DEVICE, job)["fix"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), "PeerLost"),
        (torch.distributed.DistNetworkError("the client socket has timed out"), "PeerLost"),
        (ConnectionResetError(104, "Connection reset by peer"), "PeerLost"),
        (RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer"), "PeerLost"),
        (RuntimeError("[third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting"), "PeerLost"),
        (ConnectionRefusedError(111, "Connection refused"), "ConnectionRefusedError"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "RuntimeError"),
        (ValueError("gloo is not a backend"), "ValueError"),
        (StoreError("the store closed the connection: Connection reset by peer"), "StoreError"),
    ],
)
def test_only_what_torch_and_sockets_raise_counts_as_the_loss_of_another_rank(
    error: Exception, kind: str, tmp_path: Path
) -> None:
    assert failure_of(error, _job(tmp_path), in_rank=True)["kind"] == kind
    assert failure_of(error, _job(tmp_path))["kind"] == type(error).__name__, "a stage in one process has no other rank"


def _job(work: Path, stage: str = "explore", **placement: Any) -> StageJob:
    config = small_config(placement=placement)
    return StageJob(stage, "small", 0, config, "memory://s", (), str(work), str(work), 0)


def test_an_engine_s_own_reason_is_taken_from_the_stage_s_log(tmp_path: Path) -> None:
    (tmp_path / "stage.log").write_text(LOG)
    ended = StageCrashed("vLLM's engine process ended", field="placement.engine", fix="again")
    found = failure_of(ended, _job(tmp_path))
    assert found["kind"] == "StageCrashed"
    assert found["what"] == "vLLM's engine process ended; it says: torch.OutOfMemoryError: CUDA out of memory. 2 GiB"
    other = StageCrashed("rank 0 ended", field="explore")
    assert failure_of(other, _job(tmp_path))["what"] == "rank 0 ended"


def test_a_killed_engine_leaves_no_words(tmp_path: Path) -> None:
    ended = StageCrashed("vLLM's engine process ended", field="placement.engine")
    assert failure_of(ended, _job(tmp_path))["what"] == "vLLM's engine process ended"
