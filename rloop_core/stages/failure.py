"""Turn an exception of a stage's process into plain values, with advice for full memory and full disks."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from rloop_core.config import PlacementConfig
from rloop_core.errors import RESUMES, PeerLost, RLoopError, error_as_data, is_out_of_memory
from rloop_core.printable import printable_line
from rloop_core.rollout.engine import ENGINE_STARTS
from rloop_core.stages.job import StageJob
from rloop_core.stages.registry import trains

VMSTAT = Path("/proc/vmstat")
FREE_SPACE = "free disk space, or name another placement.scratch, and start the same command again"
ENGINE_FIELD = "placement.engine"
_FULL_BYTES = 1 << 16
_LOG_BYTES = 1 << 18
_UNSET = {"micro_batch_tokens": "what rloop plan says"}
_ENGINE_ERROR = re.compile(
    r"^\((?:EngineCore|Worker)[^)]*\) ERROR [^]]*\] ([\w.]*(?:Error|Exception): .*)$", re.MULTILINE
)
_PEER_MESSAGE = re.compile(r"gloo|nccl|connection (closed|reset)|broken pipe", re.IGNORECASE)


def failure_of(error: Exception, job: StageJob, in_rank: bool = False) -> dict[str, Any]:
    """Return `kind`, `what`, `field` and `fix` of an exception, as `error_from_data` reads them.

    The error of a rollout engine is completed from the stage's log: the engine's own process writes its cause there.
    In one of several ranks, the loss of another rank gets the kind PeerLost.
    """
    if isinstance(error, RLoopError):
        data = error_as_data(error)
        if error.field == ENGINE_FIELD and (cause := _engine_error(job.log_file)):
            data["what"] = f"{error.what}; it says: {cause}"
        return data
    if is_out_of_memory(error):
        # A device's error is torch's; a MemoryError, or a plain RuntimeError of torch, is about the host's memory.
        fix = device_advice(job) if type(error).__name__ == "OutOfMemoryError" else host_advice(job)
        what = f"out of memory: {printable_line(str(error), 200)}"
        return {"kind": "StageError", "what": what, "field": "placement", "fix": fix}
    if reason := _disk_trouble(error, Path(job.work)):
        return {"kind": "StoreError", "what": reason, "field": job.work, "fix": FREE_SPACE}
    kind = PeerLost.__name__ if in_rank and is_lost_peer(error) else type(error).__name__
    return {"kind": kind, "what": printable_line(str(error)), "field": None, "fix": None}


def is_lost_peer(error: Exception) -> bool:
    """Return True if a rank failed only because it lost another rank.

    NCCL, the rendezvous stores and sockets raise classes of their own. gloo's errors reach Python as plain
    RuntimeErrors, so for those, and only those, the message decides.
    """
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return True
    distributed = sys.modules.get("torch.distributed")
    if distributed and isinstance(error, getattr(distributed, "DistError", ())):
        return True
    return isinstance(error, RuntimeError) and _PEER_MESSAGE.search(str(error)) is not None


def is_full(work: Path) -> bool:
    """Return True if the disk of a folder has no room left."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(work).free < _FULL_BYTES
    return False


def _disk_trouble(error: Exception, work: Path) -> str | None:
    """Return why the scratch folder cannot be written, if that caused the error.

    Libraries that write from native code raise classes of their own, so the message and the disk itself count too.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return str(error.strerror)
    full = os.strerror(errno.ENOSPC)
    return f"{full} ({type(error).__name__})" if full in str(error) or is_full(work) else None


def _engine_error(log_file: Path) -> str | None:
    """Return the first error that the last engine wrote to the stage's log; later ones are its consequences."""
    try:
        with open(log_file, "rb") as log:
            log.seek(max(0, log_file.stat().st_size - _LOG_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return None
    first = _ENGINE_ERROR.search(text.rpartition(ENGINE_STARTS)[2])
    return printable_line(first[1], 200) if first else None


def device_advice(job: StageJob) -> str:
    """Return which settings to lower when a device is out of memory, with their current values."""
    placement = job.config.placement
    lower = ["vllm.memory" if placement.engine == "vllm" else "generation_batch"]
    if job.stage == "explore":
        lower = ["micro_batch_tokens", "generation_batch"]
        lower += ["vllm.colocated_memory"] if job.config.explore.engine == "vllm" else []
    elif job.stage == "rft":
        lower = ["micro_batch_tokens"]
    more = []
    if trains(job):
        if not placement.gradient_checkpointing:
            more.append("set placement.gradient_checkpointing")
        if "offload" not in (placement.accelerate_config or ""):
            more.append("name infra/accelerate/zero2-offload.yaml or zero3-offload.yaml in placement.accelerate_config")
    more.append("free the device of other processes")
    return f"lower {_current_values(placement, lower)}; or {'; or '.join(more)}; then {RESUMES}"


def host_advice(job: StageJob) -> str:
    """Return which settings to lower when the machine is out of memory."""
    return f"{_lower_host_memory(job.config.placement)}; then {RESUMES}"


def _lower_host_memory(placement: PlacementConfig) -> str:
    fields = ["verifier_workers"] if placement.verifier_workers > 1 else []
    fields += ["micro_batch_tokens", "generation_batch"] if placement.device != "cuda" else []
    lower = [_current_values(placement, fields)] if fields else []
    if placement.processes > 1:
        lower.append(f"{_current_values(placement, ['processes'])} for each of the placement.machines")
    if "offload" in (placement.accelerate_config or ""):
        lower.append("what placement.accelerate_config keeps in the host's memory")
    lower = lower or [_current_values(placement, ["generation_batch"])]
    return f"give the stage more memory, or lower {', '.join(lower)}"


def _current_values(placement: PlacementConfig, fields: Sequence[str]) -> str:
    """Return `placement.a (now 1), placement.b.c (now 2)`."""
    values = {field: attrgetter(field)(placement) for field in fields}
    return ", ".join(
        f"placement.{field} (now {_UNSET.get(field, '') if value is None else value})"
        for field, value in values.items()
    )


def kernel_kills() -> int:
    """Return how many processes of this machine, in any container, the kernel's OOM killer has ended since boot."""
    with contextlib.suppress(OSError, ValueError):
        for line in VMSTAT.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def explain_sigkill(job: StageJob, kills_before: int) -> tuple[str, str]:
    """Return why a process may have got SIGKILL since `kernel_kills` was `kills_before`, and what to do."""
    if kernel_kills() > kills_before:
        return "the kernel's OOM killer ended processes of this machine meanwhile", host_advice(job)
    fix = f"{RESUMES}; if it is memory, {_lower_host_memory(job.config.placement)}"
    return "killed by somebody, or by a container's memory limit", fix
