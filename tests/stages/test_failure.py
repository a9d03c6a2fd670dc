"""What a user reads of errors that are none of ours: full memory, and an engine that ended in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rloop_core.errors import StageCrashed
from rloop_core.rollout.engine import ENGINE_STARTS
from rloop_core.stages.failure import failure_of

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


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError("no room"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: 8 GB"),
    ],
)
def test_out_of_memory_says_so_and_what_to_lower(error: Exception, tmp_path: Path) -> None:
    found = failure_of(error, tmp_path)
    assert found["kind"] == "StageError" and found["what"].startswith("out of memory: ")
    assert "placement.micro_batch_rollouts" in found["fix"] and "it resumes" in found["fix"]


def test_an_engine_s_own_reason_is_taken_from_the_stage_s_log(tmp_path: Path) -> None:
    (tmp_path / "stage.log").write_text(LOG)
    ended = StageCrashed("vLLM's engine process ended", field="placement.engine", fix="again")
    found = failure_of(ended, tmp_path)
    assert found["kind"] == "StageCrashed"
    assert found["what"] == "vLLM's engine process ended; it says: torch.OutOfMemoryError: CUDA out of memory. 2 GiB"
    other = StageCrashed("rank 0 ended", field="explore")
    assert failure_of(other, tmp_path)["what"] == "rank 0 ended"


def test_a_killed_engine_leaves_no_words(tmp_path: Path) -> None:
    ended = StageCrashed("vLLM's engine process ended", field="placement.engine")
    assert failure_of(ended, tmp_path)["what"] == "vLLM's engine process ended"
