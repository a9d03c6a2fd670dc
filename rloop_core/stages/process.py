"""One OS process a heavy stage: memory is really freed, and a hang can be ended.

Stages fork from a warm server that has loaded torch and TRL once, so that each starts in a fraction of a second.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from rloop_core.errors import RESUMES, StageCrashed, StageError, Stopped, StoreError, error_from_data
from rloop_core.files import replace_text
from rloop_core.printable import printable_line
from rloop_core.runtime.orphans import STRAY_SECONDS, end_strays, mark_descendants
from rloop_core.runtime.rank_watchdog import who_stands_still
from rloop_core.runtime.supervisor import supervise
from rloop_core.stages.failure import FREE_SPACE, failure_of, is_full
from rloop_core.stages.job import StageJob, StageOutcome
from rloop_core.stages.oom import kernel_kills, killed

Event = dict[str, Any]

_OUTCOME = "outcome.json"
_PAUSE_SECONDS = 0.1
_lock = threading.Lock()
_context: ForkServerContext | None = None


def warm_context() -> ForkServerContext:
    """The fork server, started on first use."""
    global _context
    with _lock:
        if _context is None:
            end_strays(STRAY_SECONDS)  # of a run that was killed a moment ago, perhaps on the same scratch
            mark_descendants()
            _context = multiprocessing.get_context("forkserver")
            _context.set_forkserver_preload(["rloop_core.stages.guard", "rloop_core.stages.warm"])
        return _context


def warm_up() -> None:
    """Let the fork server load its libraries now, beside whatever else must start."""
    from multiprocessing import forkserver

    warm_context()
    forkserver.ensure_running()


def run_in_process(
    job: StageJob,
    tell: Callable[[Event], None],
    *,
    timeout_seconds: float | None = None,
    stall_seconds: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> StageOutcome:
    """Run a stage, or a share of one, in a process tree of its own on this machine; returns what it computed.

    Args:
        job: The stage.
        tell: Called with each progress event.
        timeout_seconds: End the tree after so long.
        stall_seconds: End the tree after so long without a progress event.
        should_stop: Asked several times a second; True ends the tree.

    Raises:
        RLoopError: The stage's own error, as it raised it.
        StageCrashed: The process ended without an answer, or stood still; trying again may help.
        Stopped: It was told to.
        StageError: It ran too long.
    """
    job.outcome_file.unlink(missing_ok=True)
    tell({"kind": "log", "path": str(job.log_file)})
    context = warm_context()
    events, their_events = context.Pipe(duplex=False)
    their_control, control = context.Pipe(duplex=False)
    process = context.Process(target=_supervised, args=(job, their_events, their_control), name=f"rloop-{job.stage}")
    try:
        with _lock:
            process.start()
    except (EOFError, OSError) as error:  # somebody killed the fork server, or there is no room for a process
        events.close()
        control.close()
        raise StageCrashed(f"could not be started: {error}", field=job.name, fix=RESUMES) from error
    finally:
        their_events.close()
        their_control.close()
    started = moved = time.monotonic()
    kills = kernel_kills()
    reason: str | None = None
    kind: type[StageError] = StageError

    def listen(event: Event) -> None:
        nonlocal moved
        moved = time.monotonic()
        tell(event)

    heard: list[Any] = [process.sentinel, events]
    try:
        while process.is_alive():
            wait(heard, _PAUSE_SECONDS)
            if not _drain(events, listen):
                heard = [process.sentinel]
            if should_stop():
                reason, kind = "was told to stop", Stopped
            elif timeout_seconds and time.monotonic() - started > timeout_seconds:
                reason = f"ran longer than {timeout_seconds:.0f} s (placement.stage_timeout_minutes)"
            elif stall_seconds and time.monotonic() - moved > stall_seconds:
                reason = f"made no progress for {stall_seconds:.0f} s (placement.stage_stall_minutes)"
                kind = StageCrashed
            if reason:
                break
        _drain(events, tell)
    finally:
        control.close()
        process.join()
        events.close()
        if process.exitcode is not None and process.exitcode < 0:
            end_strays()  # the supervisor itself was killed
    if reason:
        if kind is StageCrashed and (who := who_stands_still(Path(job.work))):
            reason = f"{reason}; {who}"
        raise kind(reason, field=job.name, fix=RESUMES)
    return _outcome(job, process.exitcode, kills)


def read_outcome(work: Path) -> StageOutcome | None:
    """The finished outcome in a work folder: computed, whether or not it was published yet."""
    return _read(work / _OUTCOME)


def _read(path: Path) -> StageOutcome | None:
    try:
        return StageOutcome(**json.loads(path.read_text())["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _outcome(job: StageJob, exitcode: int | None, kills: int) -> StageOutcome:
    work = Path(job.work)
    if outcome := _read(job.outcome_file):
        return outcome
    try:
        error = json.loads(job.outcome_file.read_text())["error"]
    except (OSError, ValueError, KeyError):
        if is_full(work):  # no room for the answer either
            raise StoreError(os.strerror(errno.ENOSPC), field=job.work, fix=FREE_SPACE) from None
        if exitcode and (exitcode == -signal.SIGKILL or exitcode == 128 + signal.SIGKILL):
            why, fix = killed(job, kills)
            what = f"ended without a result (signal {signal.SIGKILL:d}): {why}{_tail(job.log_file)}"
            raise StageCrashed(what, field=job.name, fix=fix) from None
        signalled = f"signal {exitcode - 128}" if exitcode and exitcode > 128 else f"exit code {exitcode}"
        raise StageCrashed(
            f"ended without a result ({signalled}){_tail(job.log_file)}", field=job.name, fix=_see(job)
        ) from None
    raise error_from_data(error, job.name, _see(job))


def _see(job: StageJob) -> str:
    """The stage's log, where it is still there: whoever cleans up may have been faster."""
    return f"see {job.log_file}" if job.log_file.exists() else RESUMES


def _supervised(job: StageJob, events: Connection, control: Connection) -> None:
    supervise(lambda: _work(job, events), control, job.log_file)


def _work(job: StageJob, events: Connection) -> int:
    """In the stage's own process: compute, and leave the outcome as a file."""
    import traceback

    from rloop_core.stages.execute import execute
    from rloop_core.stages.ranks import execute_in_ranks, is_launched

    def tell(event: Event) -> None:
        events.send_bytes(json.dumps(event).encode())

    content: dict[str, Any]
    try:
        content = {"outcome": asdict(execute_in_ranks(job, tell) if is_launched(job) else execute(job, tell))}
    except Exception as error:
        traceback.print_exc()
        content = {"error": failure_of(error, job)}
    replace_text(job.outcome_file, json.dumps(content))
    return 0 if "outcome" in content else 1


def _drain(events: Connection, tell: Callable[[Event], None]) -> bool:
    """Pass on what was said; False once nothing more will be."""
    try:
        while events.poll(0):
            tell(json.loads(events.recv_bytes()))
    except (EOFError, OSError):
        return False
    return True


def _tail(log: Path) -> str:
    """The last lines of the stage's log, for a crash that left no other reason."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()[-3:]
    except OSError:
        return ""
    return f"; its log ends: {' | '.join(printable_line(line, 200) for line in lines)}" if lines else ""
