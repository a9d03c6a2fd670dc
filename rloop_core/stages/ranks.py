"""Run a stage in several ranks: torchrun's agent, or `accelerate launch`, starts them below the stage's supervisor.

Every rank gets the same job. Rank 0 alone sends progress events and lays out the artifact. When a rank ends with an
error, the others are ended and the error names the rank. A rank that hangs holds up all of them, so the stage's stall
limit ends the process tree.

torchelastic's error files hold a traceback and an exit code. Ranks here leave error files of their own, which keep an
error's class, field and fix, and tell a rank that failed from one that only lost its peer.

On one machine, the agent and the ranks find each other by files in a folder that only their user can enter, and gloo
and NCCL stay on loopback: a TCP store would listen on all interfaces without a password, and torchrun's agent unpickles
what it reads from one. Several machines need the TCP store.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rloop_core.errors import RESUMES, ConfigError, PeerLost, RLoopError, StageCrashed, error_from_data
from rloop_core.files import replace_text
from rloop_core.plan.memory import sharding_of
from rloop_core.runtime.events import Event, OnEvent, ignore_event
from rloop_core.runtime.lifetime import die_with_parent
from rloop_core.runtime.supervisor import GRACE_SECONDS
from rloop_core.stages.failure import failure_of, killed
from rloop_core.stages.job import StageJob, StageOutcome
from rloop_core.stages.registry import ranks_of, trains

_LOG_PREFIX = "[rank ${rank}] "
_EXIT_DELAY_SECONDS = 2.0
"""A rank with an error waits so long before it exits: one that only lost a peer must not exit before the cause does."""
_FILE_RENDEZVOUS = {"store_type": "file", "keep_alive_interval": 3600}
"""Every keep-alive of the agent makes the file longer, and nobody reads them."""
_JOIN_SECONDS = 300
"""Machines wait so long for each other at the rendezvous."""


def needs_launcher(job: StageJob) -> bool:
    """Return True if a launcher starts the stage's ranks: several, or one with an accelerate config."""
    return trains(job) and (ranks_of(job) > 1 or job.config.placement.accelerate_config is not None)


def execute_in_ranks(job: StageJob, on_event: OnEvent) -> StageOutcome:
    """Compute a stage in as many ranks as its placement says.

    Raises:
        RLoopError: A rank's own error, with the rank's number.
        StageCrashed: A rank ended without one; trying again may help.
    """
    if not job.is_shared:
        empty_ranks_folder(job)
    config_file = job.config.placement.accelerate_config
    if config_file is None:
        _launch_by_torchrun(job, on_event)
    elif Path(config_file).is_file():
        sharding_of(job.config)  # it refuses what is no such file; accelerate would quote it in the log
        _launch_by_accelerate(job, on_event)
    else:
        fix = "name a file of this machine; a relative path starts at the clone"
        raise ConfigError(f"{config_file} is not there", field="placement.accelerate_config", fix=fix)
    if job.share.machine:  # rank 0 is on machine 0
        return StageOutcome({}, {})
    try:
        return StageOutcome(**json.loads((job.ranks_folder / "outcome.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StageCrashed("rank 0 ended without a result", field=job.stage, fix=RESUMES) from error


def empty_ranks_folder(job: StageJob) -> None:
    """Make an empty folder for the files that ranks exchange."""
    shutil.rmtree(job.ranks_folder, ignore_errors=True)
    job.ranks_folder.mkdir(parents=True, mode=0o700)


def run_rank(job: StageJob, on_event: OnEvent) -> None:
    """Compute in one rank, whose number is in its environment; on any error, leave an error file and exit with 1."""
    import traceback

    from rloop_core.stages.execute import execute

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # not set for a single rank
    try:
        outcome = execute(job, on_event if rank == 0 else ignore_event, rank, ranks)
        if rank == 0:
            replace_text(job.ranks_folder / "outcome.json", json.dumps(asdict(outcome)))
        _leave_process_group()
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        replace_text(_error_file(job, rank), json.dumps(failure_of(error, job, in_rank=True)))
        time.sleep(_EXIT_DELAY_SECONDS)
        sys.exit(1)


def _leave_process_group() -> None:
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _launch_by_torchrun(job: StageJob, on_event: OnEvent) -> None:
    """Run torchrun's agent in this process; its ranks are forks, which have torch and TRL loaded already."""
    # Otherwise the check for CUDA would initialise it, and it could not be used in forks.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ.update(_launch_environment(job))
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    launch = LaunchConfig(
        min_nodes=job.share.machines,
        max_nodes=job.share.machines,
        nproc_per_node=ranks_of(job) // job.share.machines,
        run_id=job.stage,
        max_restarts=0,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(job.ranks_folder / "logs"), redirects=Std.ALL, tee=Std.ALL),
        log_line_prefix_template=_LOG_PREFIX,
        **_rendezvous(job),
    )
    launch.numa_options = None
    # A rank that is stopped, or deep in its device's driver, does not react to SIGTERM.
    launch.shutdown_timeout = int(GRACE_SECONDS)
    try:
        elastic_launch(launch, run_rank)(job, on_event)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        how = failure.signal_name() if failure.exitcode < 0 else f"exit code {failure.exitcode}"
        raise _error_of_rank(job, rank, how) from failed


def _rendezvous(job: StageJob) -> dict[str, Any]:
    """Return the rendezvous settings of torchrun's agent."""
    if job.is_shared:  # static: each machine is told its number, because rank 0 must be where the run is
        configs = {"rank": job.share.machine, "timeout": _JOIN_SECONDS}
        return {"rdzv_backend": "static", "rdzv_endpoint": job.share.endpoint, "rdzv_configs": configs}
    local = {"rdzv_configs": _FILE_RENDEZVOUS, "local_addr": "127.0.0.1"}
    return {"rdzv_backend": "c10d", "rdzv_endpoint": str(job.ranks_folder / "agent"), **local}


def _launch_environment(job: StageJob) -> dict[str, str]:
    """Return variables for the launcher and the ranks: on one machine, no TCP store and no interface but loopback."""
    if job.is_shared:
        return {}
    settings = _rendezvous(job)
    environment = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # the ranks join by a file of their own: `execute` opens it
        "GLOO_SOCKET_IFNAME": "lo",
        "PET_RDZV_ENDPOINT": settings["rdzv_endpoint"],
        "PET_LOCAL_ADDR": settings["local_addr"],
    }
    if job.config.placement.vllm.server is None:  # a server gets weights by NCCL, perhaps on another machine
        environment["NCCL_SOCKET_IFNAME"] = "lo"
    return environment


def _launch_by_accelerate(job: StageJob, on_event: OnEvent) -> None:
    """Run `accelerate launch` with the config file that placement names; rank 0's events come by a file."""
    job_file = job.ranks_folder / f"job-{job.share.machine}.json"
    replace_text(job_file, TypeAdapter(StageJob).dump_json(job).decode())
    events = job.ranks_folder / "events.jsonl"
    command = accelerate_command(job, job.ranks_folder / "logs")
    command += ["-m", "rloop_core.stages.ranks", str(job_file), str(events)]
    environment = {**os.environ, **_launch_environment(job), "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": _LOG_PREFIX}
    on_event = ignore_event if job.share.machine else on_event
    read_to = 0
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None:
            read_to = _pass_on_events(events, read_to, on_event)
            time.sleep(0.1)
    _pass_on_events(events, read_to, on_event)
    if process.returncode:
        raise _first_error(job, f"accelerate launch ended with exit code {process.returncode}")


def accelerate_command(job: StageJob, logs: Path) -> list[str]:
    """Return the `accelerate launch` command up to the program; its options override the named config file."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(job.config.placement.accelerate_config)]
    # Precision is the run's, and part of its fingerprint; the file's own would change what is computed.
    command += ["--mixed_precision", "bf16" if job.config.policy.dtype == "bfloat16" else "no"]
    command += ["--num_processes", str(ranks_of(job)), "--tee", "3", "--log_dir", str(logs)]
    if not job.is_shared:  # the endpoint of this rendezvous is in `_launch_environment`: no option takes a file
        settings = ",".join(f"{key}={value}" for key, value in _FILE_RENDEZVOUS.items())
        command += ["--num_machines", "1", "--main_process_port", "0"]
        return [*command, "--rdzv_backend", "c10d", "--rdzv_conf", settings]
    address, _, port = job.share.endpoint.rpartition(":")
    command += ["--num_machines", str(job.share.machines), "--machine_rank", str(job.share.machine)]
    command += ["--main_process_ip", address, "--main_process_port", port, "--rdzv_backend", "static", "--same_network"]
    # The default launcher would start the other machines by pdsh; here every machine starts its own processes.
    return [*command, "--deepspeed_multinode_launcher", "standard"]


def _pass_on_events(file: Path, read_to: int, on_event: OnEvent) -> int:
    """Pass on the whole lines of a growing file from an offset on; return the offset of the rest."""
    if file.exists():
        with open(file, "rb") as stream:
            stream.seek(read_to)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                read_to += len(line)
                on_event(json.loads(line))
    return read_to


def _error_of_rank(job: StageJob, rank: int, how: str) -> RLoopError:
    """Return the error that a rank left behind; StageCrashed if it left none, PeerLost if it only lost another rank."""
    try:
        data = json.loads(_error_file(job, rank).read_text())
    except (OSError, ValueError):
        why, fix = killed(job) if how == "SIGKILL" else ("", RESUMES)
        what = f"rank {rank} ended without a result ({how}){why and f': {why}'}"
        return StageCrashed(what, field=job.stage, fix=fix)
    if data["kind"] == PeerLost.__name__:
        return PeerLost(f"rank {rank} lost another: {data['what'][:200]}", field=job.stage, fix=RESUMES)
    return error_from_data({**data, "what": f"rank {rank}: {data['what']}"}, job.stage, "see the stage's log")


def _first_error(job: StageJob, how: str) -> RLoopError:
    """Return the first error of this machine's ranks; crashes and lost peers only if there is nothing else."""
    files = sorted(job.ranks_folder.glob("error-*.json"), key=lambda path: path.stat().st_mtime_ns)
    each = ranks_of(job) // job.share.machines
    ranks = [int(path.stem.removeprefix("error-")) for path in files]
    errors = [_error_of_rank(job, rank, how) for rank in ranks if rank // each == job.share.machine]
    causes = [error for error in errors if not isinstance(error, StageCrashed)]
    return next(iter(causes or errors), StageCrashed(how, field=job.stage, fix=f"see the stage's log; {RESUMES}"))


def _error_file(job: StageJob, rank: int) -> Path:
    return job.ranks_folder / f"error-{rank:02d}.json"


def _main(job_file: Path, events: Path) -> None:
    """Run one rank that `accelerate launch` started; rank 0 appends its events to a file, one JSON line each."""
    die_with_parent()

    def append(event: Event) -> None:
        with open(events, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")

    run_rank(TypeAdapter(StageJob).validate_json(job_file.read_bytes()), append)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
