"""A heavy stage in several processes: torchrun's agent, or `accelerate launch`, starts the ranks below the supervisor.

Every rank gets the same job; torch.distributed tells them apart. Rank 0 alone speaks and lays out the artifact. When a
rank ends the others are ended too, and the reason names it. A rank that hangs holds up all of them, so that the stage's
stall limit ends the tree.
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

from rloop_core.errors import ConfigError, RLoopError, StageCrashed, error_from_data
from rloop_core.files import replace_text
from rloop_core.stages.failure import failure_of
from rloop_core.stages.job import InputRef, StageJob, StageOutcome

Event = dict[str, Any]

STAGES_WITH_RANKS = ("explore", "rft")
"""The stages that train; the others are one process whatever placement says."""
_PREFIX = "[rank ${rank}] "
_AFTER_SECONDS = 2.0
"""A rank with an error waits so long before it ends: one that only lost a peer must not be taken for the cause."""
_LOST_PEER = re.compile(r"gloo|nccl|connection (closed|reset)|broken pipe|DistBackendError|DistNetworkError", re.I)
_AGAIN = "start the same command again: it resumes"


def ranks_of(job: StageJob) -> int:
    """Processes that a job is to have."""
    return int(job.config["placement"].get("processes", 1)) if job.stage in STAGES_WITH_RANKS else 1


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
    folder = _folder(job)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if (given := job.config["placement"].get("accelerate_config")) is not None:
        if not Path(given).is_file():
            fix = "name a file of this machine; a relative path starts at the clone"
            raise ConfigError(f"{given} is not there", field="placement.accelerate_config", fix=fix)
        _launch_by_accelerate(job, tell)
    else:
        _launch_by_torchrun(job, tell)
    try:
        return StageOutcome(**json.loads((folder / "outcome.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StageCrashed("rank 0 ended without a result", field=job.stage, fix=_AGAIN) from error


def run_rank(job: StageJob, tell: Callable[[Event], None]) -> None:
    """The body of one rank, whose number is in its environment; exits with 1 on any error, which a file then holds."""
    import traceback

    from rloop_core.stages.execute import execute

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # unset for a single one
    folder = _folder(job)
    try:
        outcome = execute(job, tell if rank == 0 else _silently, rank, ranks)
        if rank == 0:
            replace_text(folder / "outcome.json", json.dumps(asdict(outcome)))
        _leave_group()
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        replace_text(_error_file(folder, rank), json.dumps(failure_of(error, Path(job.work))))
        time.sleep(_AFTER_SECONDS)
        sys.exit(1)


def read_job(path: Path) -> StageJob:
    """A job that was written as JSON for ranks that are no forks."""
    content = json.loads(path.read_text())
    content["inputs"] = tuple(InputRef(**ref) for ref in content["inputs"])
    return StageJob(**content)


def _launch_by_torchrun(job: StageJob, tell: Callable[[Event], None]) -> None:
    """torchrun's agent in this process; its ranks are forks, which have torch and TRL loaded already."""
    # Asked in any other way, CUDA could not be used in forks.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks_of(job),
        run_id=job.stage,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(_folder(job) / "logs"), redirects=Std.ALL, tee=Std.ALL),
        log_line_prefix_template=_PREFIX,
    )
    launch.numa_options = None
    try:
        elastic_launch(launch, run_rank)(job, tell)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        killed = failure.signal_name() if failure.exitcode < 0 else ""
        raise _error_of(job, rank, killed or f"exit code {failure.exitcode}") from failed


def _launch_by_accelerate(job: StageJob, tell: Callable[[Event], None]) -> None:
    """accelerate's own command with the config file that placement names; events come by a file."""
    folder = _folder(job)
    replace_text(folder / "job.json", json.dumps(asdict(job)))
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", job.config["placement"]["accelerate_config"]]
    # Precision is the run's, and part of its fingerprint; the file's own would change what is computed.
    command += ["--mixed_precision", "bf16" if job.config["policy"]["dtype"] == "bfloat16" else "no"]
    command += ["--num_processes", str(ranks_of(job)), "--num_machines", "1", "--main_process_port", "0"]
    command += ["--tee", "3", "--log_dir", str(folder / "logs")]
    command += ["-m", "rloop_core.stages.rank", str(folder / "job.json"), str(folder / "events.jsonl")]
    environment = {**os.environ, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": _PREFIX}
    events = _Tail(folder / "events.jsonl")
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None:
            events.tell_new(tell)
            time.sleep(0.1)
    events.tell_new(tell)
    if process.returncode:
        raise _first_error(job, f"accelerate launch ended with exit code {process.returncode}")


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


def _error_of(job: StageJob, rank: int, how: str) -> RLoopError:
    """What a rank left behind as its error; a crash where that is nothing, or nothing but the loss of another rank."""
    try:
        data = json.loads(_error_file(_folder(job), rank).read_text())
    except (OSError, ValueError):
        return StageCrashed(f"rank {rank} ended without a result ({how})", field=job.stage, fix=_AGAIN)
    if _LOST_PEER.search(f"{data['kind']} {data['what']}"):
        return StageCrashed(f"rank {rank} lost another: {data['what'][:200]}", field=job.stage, fix=_AGAIN)
    return error_from_data({**data, "what": f"rank {rank}: {data['what']}"}, job.stage, "see the stage's log")


def _first_error(job: StageJob, how: str) -> RLoopError:
    """The error of whichever rank had one first, losses of another rank apart."""
    files = sorted(_folder(job).glob("error-*.json"), key=lambda path: path.stat().st_mtime_ns)
    errors = [_error_of(job, int(path.stem.removeprefix("error-")), how) for path in files]
    own = [error for error in errors if not isinstance(error, StageCrashed)]
    return next(iter(own or errors), StageCrashed(how, field=job.stage, fix=f"see the stage's log; {_AGAIN}"))


def _leave_group() -> None:
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _folder(job: StageJob) -> Path:
    return Path(job.work) / "ranks"


def _error_file(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank:02d}.json"


def _silently(event: Event) -> None:
    """Rank 0 speaks for all."""
