"""Out of memory: which settings of a stage to lower, and whether the kernel is who killed a process."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from rloop_core.errors import RESUMES
from rloop_core.stages.job import STAGES_WITH_RANKS, StageJob

VMSTAT = Path("/proc/vmstat")


def device_advice(job: StageJob) -> str:
    """What to lower where a device has no memory left, with the values that it has now."""
    placement = job.config["placement"]
    lower = []
    if job.stage == "explore":
        lower += [_now("micro_batch_rollouts", placement, "the whole mini-batch"), _now("generation_batch", placement)]
        if job.config["explore"].get("engine") == "vllm":
            lower.append(_now("colocated_memory", placement["vllm"], prefix="placement.vllm."))
    elif job.stage == "rft":
        lower.append(_now("micro_batch_trajectories", placement, "the whole batch"))
    elif placement.get("engine") == "vllm":
        lower.append(_now("memory", placement["vllm"], prefix="placement.vllm."))
    else:
        lower.append(_now("generation_batch", placement))
    more = []
    if job.stage in STAGES_WITH_RANKS:
        if not placement.get("gradient_checkpointing"):
            more.append("set placement.gradient_checkpointing")
        if "offload" not in (placement.get("accelerate_config") or ""):
            more.append("name infra/accelerate/zero2-offload.yaml or zero3-offload.yaml in placement.accelerate_config")
    more.append("free the device of other processes")
    return f"lower {', '.join(lower)}; or {'; or '.join(more)}; then {RESUMES}"


def host_advice(job: StageJob) -> str:
    """What to lower where the machine has no memory left for a process."""
    return f"{_more_or_less(job)}; then {RESUMES}"


def _more_or_less(job: StageJob) -> str:
    placement = job.config["placement"]
    lower = [_now("verifier_workers", placement)] if placement.get("verifier_workers", 1) > 1 else []
    if placement.get("device") != "cuda":
        lower += [_now("micro_batch_rollouts", placement, "the whole mini-batch"), _now("generation_batch", placement)]
    if placement.get("processes", 1) > 1:
        lower.append(f"{_now('processes', placement)} for each of the placement.machines")
    if "offload" in (placement.get("accelerate_config") or ""):
        lower.append("what placement.accelerate_config keeps in the host's memory")
    lower = lower or [_now("generation_batch", placement)]
    return f"give the stage more memory, or lower {', '.join(lower)}"


def kernel_kills() -> int:
    """How many processes of this machine the kernel has ended for want of memory since it started, in any container."""
    with contextlib.suppress(OSError, ValueError):
        for line in VMSTAT.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def killed(job: StageJob, kills_before: int) -> tuple[str, str]:
    """Why a process that got SIGKILL may have ended, and what to do."""
    if kernel_kills() > kills_before:
        return "the kernel ended processes for want of the machine's memory meanwhile", host_advice(job)
    return "killed by somebody, or by a container's memory limit", f"{RESUMES}; if it is memory, {_more_or_less(job)}"


def _now(field: str, values: dict[str, Any], unset: str = "", prefix: str = "placement.") -> str:
    value = values.get(field)
    return f"{prefix}{field} (now {unset if value is None else value})"
