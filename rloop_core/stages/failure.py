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
from rloop_core.stages.registry import STAGES, trains

FREE_SPACE = "free disk space, or name another placement.scratch, and start the same command again"
ENGINE_FIELD = "placement.engine"
_FULL_BYTES = 1 << 16
_LOG_BYTES = 1 << 18
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
    fields = ["vllm.memory" if placement.engine == "vllm" else "generation_batch"]
    more = ["free the device of other processes"]
    if trains(job):
        fields = ["micro_batch_tokens"]
        if STAGES[job.stage].judges:  # it samples as well
            fields += ["generation_batch", *(["vllm.colocated_memory"] if job.config.explore.engine == "vllm" else [])]
        if "offload" not in (placement.accelerate_config or ""):
            file = "infra/accelerate/zero2-offload.yaml or zero3-offload.yaml"
            more.insert(0, f"name {file} in placement.accelerate_config")
        if not placement.gradient_checkpointing:
            more.insert(0, "set placement.gradient_checkpointing")
    return f"lower {_current_values(placement, fields)}; or {'; or '.join(more)}; then {RESUMES}"


def host_advice(job: StageJob) -> str:
    """Return which settings to lower when the machine is out of memory."""
    fields = ("processes", "verifier_workers", "micro_batch_tokens", "generation_batch")
    return f"give the stage more memory, or lower {_current_values(job.config.placement, fields)}; then {RESUMES}"


def killed(job: StageJob) -> tuple[str, str]:
    """Return why a process may have got SIGKILL, after a colon, and what to do."""
    why = ": killed by somebody, or because memory ran out, as the kernel's log then says"
    return why, f"{RESUMES}; if it was memory, {host_advice(job)}"


def _current_values(placement: PlacementConfig, fields: Sequence[str]) -> str:
    """Return `placement.a (now 1), placement.b.c (now 2)`."""
    values = {field: attrgetter(field)(placement) for field in fields}
    return ", ".join(
        f"placement.{field} (now {'what rloop plan says' if value is None else value})"
        for field, value in values.items()
    )
