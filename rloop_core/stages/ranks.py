"""A heavy stage in several processes: torchrun's agent, or `accelerate launch`, starts the ranks below the supervisor.

Every rank gets the same job; torch.distributed tells them apart. Rank 0 alone speaks and lays out the artifact. When a
rank ends the others are ended too, and the reason names it. A rank that hangs holds up all of them, so that the stage's
stall limit ends the tree.

torchelastic's own error files hold a traceback and an exit code; here a rank's error crosses as what it is, with its
field and its fix, and whoever only lost another rank is told from the one that was lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rloop_core.errors import RESUMES, ConfigError, PeerLost, RLoopError, StageCrashed, error_from_data
from rloop_core.files import replace_text
from rloop_core.runtime.rank_watchdog import pulse, who_stands_still
from rloop_core.runtime.supervisor import GRACE_SECONDS
from rloop_core.stages.failure import failure_of
from rloop_core.stages.job import STAGES_WITH_RANKS, InputRef, Share, StageJob, StageOutcome, ranks_of
from rloop_core.stages.oom import kernel_kills, killed
from rloop_core.stages.rank_group import launch_environment, launch_options, ranks_folder, rendezvous

Event = dict[str, Any]

_PREFIX = "[rank ${rank}] "
_AFTER_SECONDS = 2.0
"""A rank with an error waits so long before it ends: one that only lost a peer must not be taken for the cause."""
_LOST_PEER = re.compile(r"gloo|nccl|connection (closed|reset)|broken pipe|DistBackendError|DistNetworkError", re.I)


def is_launched(job: StageJob) -> bool:
    """Whether a launcher starts the stage's processes: several, or one with an accelerate config of its own."""
    named = job.stage in STAGES_WITH_RANKS and job.config["placement"].get("accelerate_config") is not None
    return named or ranks_of(job) > 1


def execute_in_ranks(job: StageJob, tell: Callable[[Event], None]) -> StageOutcome:
    """Compute a stage in as many processes as its placement says.

    Raises:
        RLoopError: A rank's own error, with the rank's number.
        StageCrashed: A rank ended without one; trying again may help.
    """
    if job.share is None:
        prepare(job)
    if (given := job.config["placement"].get("accelerate_config")) is not None:
        if not Path(given).is_file():
            fix = "name a file of this machine; a relative path starts at the clone"
            raise ConfigError(f"{given} is not there", field="placement.accelerate_config", fix=fix)
        _launch_by_accelerate(job, tell)
    else:
        _launch_by_torchrun(job, tell)
    if job.share and job.share.machine:
        return StageOutcome({}, {})
    try:
        return StageOutcome(**json.loads((ranks_folder(job) / "outcome.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StageCrashed("rank 0 ended without a result", field=job.stage, fix=RESUMES) from error


def prepare(job: StageJob) -> None:
    """An empty folder for what the ranks leave for each other."""
    folder = ranks_folder(job)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)


def run_rank(job: StageJob, tell: Callable[[Event], None]) -> None:
    """The body of one rank, whose number is in its environment; exits with 1 on any error, which a file then holds."""
    import traceback

    from rloop_core.stages.execute import execute

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # unset for a single one
    folder = ranks_folder(job)
    try:
        with pulse(folder, rank):
            outcome = execute(job, tell if rank == 0 else _silently, rank, ranks)
            if rank == 0:
                replace_text(folder / "outcome.json", json.dumps(asdict(outcome)))
            _leave_group()
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        replace_text(_error_file(folder, rank), json.dumps(failure_of(error, job)))
        time.sleep(_AFTER_SECONDS)
        sys.exit(1)


def read_job(path: Path) -> StageJob:
    """A job that was written as JSON for ranks that are no forks."""
    content = json.loads(path.read_text())
    content["inputs"] = tuple(InputRef(**ref) for ref in content["inputs"])
    content["share"] = content["share"] and Share(**content["share"])
    return StageJob(**content)


def _launch_by_torchrun(job: StageJob, tell: Callable[[Event], None]) -> None:
    """torchrun's agent in this process; its ranks are forks, which have torch and TRL loaded already."""
    # Asked in any other way, CUDA could not be used in forks.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ.update(launch_environment(job))
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    machines = job.share.machines if job.share else 1
    launch = LaunchConfig(
        min_nodes=machines,
        max_nodes=machines,
        nproc_per_node=ranks_of(job) // machines,
        run_id=job.stage,
        max_restarts=0,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(ranks_folder(job) / "logs"), redirects=Std.ALL, tee=Std.ALL),
        log_line_prefix_template=_PREFIX,
        **rendezvous(job),
    )
    launch.numa_options = None
    # A rank that is stopped, or deep in its device's driver, hears no SIGTERM.
    launch.shutdown_timeout = int(GRACE_SECONDS)
    kills = kernel_kills()
    try:
        elastic_launch(launch, run_rank)(job, tell)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        how = failure.signal_name() if failure.exitcode < 0 else f"exit code {failure.exitcode}"
        raise _error_of(job, rank, how, kills) from failed


def _launch_by_accelerate(job: StageJob, tell: Callable[[Event], None]) -> None:
    """accelerate's own command with the config file that placement names; events come by a file."""
    folder = ranks_folder(job)
    job_file = folder / f"job-{job.share.machine if job.share else 0}.json"
    replace_text(job_file, json.dumps(asdict(job)))
    command = accelerate_command(job, folder / "logs")
    command += ["-m", "rloop_core.stages.rank", str(job_file), str(folder / "events.jsonl")]
    environment = {**os.environ, **launch_environment(job), "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": _PREFIX}
    rank_0_is_here = job.share is None or job.share.machine == 0
    events = _Tail(folder / "events.jsonl")
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None:
            events.tell_new(tell if rank_0_is_here else _silently)
            time.sleep(0.1)
    events.tell_new(tell if rank_0_is_here else _silently)
    if process.returncode:
        raise _first_error(job, f"accelerate launch ended with exit code {process.returncode}")


def accelerate_command(job: StageJob, logs: Path) -> list[str]:
    """`accelerate launch` with the file that placement names, up to the program; what the run decides is overridden."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", job.config["placement"]["accelerate_config"]]
    # Precision is the run's, and part of its fingerprint; the file's own would change what is computed.
    command += ["--mixed_precision", "bf16" if job.config["policy"]["dtype"] == "bfloat16" else "no"]
    command += ["--num_processes", str(ranks_of(job)), "--tee", "3", "--log_dir", str(logs)]
    return command + launch_options(job)


class _Tail:
    """Reads the lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def tell_new(self, tell: Callable[[Event], None]) -> None:
        """Hand on each whole line that was not handed on yet."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as stream:
            stream.seek(self._read)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                tell(json.loads(line))


def _error_of(job: StageJob, rank: int, how: str, kills: int | None = None) -> RLoopError:
    """What a rank left behind as its error; a crash where that is nothing, or nothing but the loss of another rank."""
    try:
        data = json.loads(_error_file(ranks_folder(job), rank).read_text())
    except (OSError, ValueError):
        why, fix = killed(job, kills) if kills is not None and how == "SIGKILL" else ("", RESUMES)
        what = f"rank {rank} ended without a result ({how}){why and f': {why}'}"
        return StageCrashed(what, field=job.stage, fix=fix)
    if _LOST_PEER.search(f"{data['kind']} {data['what']}"):
        who = who_stands_still(Path(job.work))
        what = f"rank {rank} lost another: {f'{who}; ' if who else ''}{data['what'][:200]}"
        return PeerLost(what, field=job.stage, fix=RESUMES)
    return error_from_data({**data, "what": f"rank {rank}: {data['what']}"}, job.stage, "see the stage's log")


def _first_error(job: StageJob, how: str) -> RLoopError:
    """The error of whichever rank had one first, losses of another rank apart."""
    files = sorted(ranks_folder(job).glob("error-*.json"), key=lambda path: path.stat().st_mtime_ns)
    ranks = [int(path.stem.removeprefix("error-")) for path in files]
    errors = [_error_of(job, rank, how) for rank in ranks if rank in _ranks_here(job)]
    own = [error for error in errors if not isinstance(error, StageCrashed)]
    return next(iter(own or errors), StageCrashed(how, field=job.stage, fix=f"see the stage's log; {RESUMES}"))


def _ranks_here(job: StageJob) -> range:
    """Numbers of the ranks that this machine has."""
    machine, machines = (job.share.machine, job.share.machines) if job.share else (0, 1)
    each = ranks_of(job) // machines
    return range(machine * each, (machine + 1) * each)


def _leave_group() -> None:
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _error_file(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank:02d}.json"


def _silently(event: Event) -> None:
    """Rank 0 speaks for all."""
