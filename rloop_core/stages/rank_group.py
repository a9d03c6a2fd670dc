"""How the ranks of a stage find each other: by files on one machine, by a TCP store on several.

A TCP store listens on all interfaces and asks nobody for a password, and torchrun's agent unpickles what it finds in
one. So on one machine none is opened: the agent and the ranks each share a file of a folder that only their user can
enter, and gloo and NCCL stay on loopback.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from rloop_core.stages.job import StageJob

_STORE = {"store_type": "file", "keep_alive_interval": 3600}
"""Each sign of life of the agent makes its file longer, and nobody reads them."""
_JOIN_SECONDS = 300
"""Machines that were told to start wait so long for each other."""


def ranks_folder(job: StageJob) -> Path:
    """Where the ranks of a stage leave things for each other; `prepare` empties it before each attempt."""
    return Path(job.work) / "ranks"


def rendezvous(job: StageJob) -> dict[str, Any]:
    """Settings of torchrun's agent: by a file on one machine, at the first machine's endpoint on several."""
    if job.share:  # static: each machine is told its number, for rank 0 must be where the run is
        configs = {"rank": job.share.machine, "timeout": _JOIN_SECONDS}
        return {"rdzv_backend": "static", "rdzv_endpoint": job.share.endpoint, "rdzv_configs": configs}
    file = str(ranks_folder(job) / "agent")
    return {"rdzv_backend": "c10d", "rdzv_endpoint": file, "rdzv_configs": _STORE, "local_addr": "127.0.0.1"}


def launch_options(job: StageJob) -> list[str]:
    """The same as options of `accelerate launch`, as far as it has them; `launch_environment` has the rest."""
    if job.share is None:
        store = ",".join(f"{key}={value}" for key, value in _STORE.items())
        return ["--num_machines", "1", "--main_process_port", "0", "--rdzv_backend", "c10d", "--rdzv_conf", store]
    address, _, port = job.share.endpoint.rpartition(":")
    options = ["--num_machines", str(job.share.machines), "--machine_rank", str(job.share.machine)]
    options += ["--main_process_ip", address, "--main_process_port", port, "--rdzv_backend", "static", "--same_network"]
    # Its own default would start the other machines by pdsh; here every machine starts its own processes.
    return [*options, "--deepspeed_multinode_launcher", "standard"]


def launch_environment(job: StageJob) -> dict[str, str]:
    """Variables of the process that starts the ranks, and of the ranks."""
    if job.share:
        return {}
    settings = rendezvous(job)
    chosen = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # the agent's other store, for the ranks; see `join`
        "GLOO_SOCKET_IFNAME": "lo",
        "PET_RDZV_ENDPOINT": settings["rdzv_endpoint"],
        "PET_LOCAL_ADDR": settings["local_addr"],
    }
    if job.config["placement"]["vllm"]["server"] is None:  # which gets weights by NCCL, perhaps on another machine
        chosen["NCCL_SOCKET_IFNAME"] = "lo"
    return chosen


def join(job: StageJob, device: str, rank: int, ranks: int) -> None:
    """Join the other ranks, before a trainer would do it by a TCP store and, on CPUs, without a limit of waiting.

    Args:
        job: The stage.
        device: "cpu" or "cuda"; there, the rank's own GPU is the current one.
        rank: This process among the ranks.
        ranks: How many there are.
    """
    import torch
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    if ranks == 1 and (device == "cpu" or not torch.distributed.is_torchelastic_launched()):
        return
    minutes = job.config["placement"]["collective_timeout_minutes"]
    here: dict[str, Any] = {}
    if job.share is None:
        store = FileStore(str(ranks_folder(job) / "group"), ranks)
        here = {"store": store, "rank": rank, "world_size": ranks}
    torch.distributed.init_process_group(_backend(device), timeout=timedelta(minutes=minutes), **here)


def _backend(device: str) -> str:
    """As accelerate would choose it: FSDP may also exchange what it keeps in the host's memory."""
    if device == "cpu":
        return "gloo"
    return "cuda:nccl,cpu:gloo" if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" else "nccl"
