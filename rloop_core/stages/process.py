"""Run each stage in an OS process tree of its own: its memory is freed for certain, and a hang can be ended.

Stages are forks of a fork server that has loaded torch and TRL once, so each starts in a fraction of a second.
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
from rloop_core.files import file_sizes, replace_text
from rloop_core.printable import printable_line
from rloop_core.runtime.environment import socket_folder
from rloop_core.runtime.events import Event, OnEvent
from rloop_core.runtime.orphans import ORPHAN_SECONDS, end_orphans, mark_descendants
from rloop_core.runtime.supervisor import supervise
from rloop_core.stages.failure import FREE_SPACE, failure_of, is_full, killed
from rloop_core.stages.job import StageJob, StageOutcome

_PAUSE_SECONDS = 0.1
_lock = threading.Lock()
_context: ForkServerContext | None = None


def fork_server_context() -> ForkServerContext:
    """Return the multiprocessing context whose fork server preloads what stages need."""
    global _context
    with _lock:
        if _context is None:
            end_orphans(ORPHAN_SECONDS)  # of a run that was killed a moment ago, perhaps on the same scratch
            mark_descendants()
            socket_folder()  # the fork server's socket lies there
            _context = multiprocessing.get_context("forkserver")
            _context.set_forkserver_preload(["rloop_core.runtime.fork_server", "rloop_core.stages.preload"])
        return _context


def start_fork_server() -> None:
    """Start the fork server now, so that it loads its libraries while other things start."""
    from multiprocessing import forkserver

    fork_server_context()
    forkserver.ensure_running()


def run_in_process(
    job: StageJob,
    on_event: OnEvent,
    *,
    timeout_seconds: float | None = None,
    stall_seconds: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> StageOutcome:
    """Run a stage, or a share of one, in a process tree of its own on this machine.

    Args:
        job: The stage.
        on_event: Called with each progress event.
        timeout_seconds: End the tree after so long.
        stall_seconds: End the tree after so long without a progress event.
        should_stop: Called several times a second; True ends the tree.

    Raises:
        RLoopError: The stage's own error, as it raised it.
        StageCrashed: The process ended without an outcome, or stalled; trying again may help.
        Stopped: `should_stop` returned True.
        StageError: It ran too long.
    """
    job.outcome_file.unlink(missing_ok=True)
    on_event({"kind": "log", "path": str(job.log_file)})
    context = fork_server_context()
    events, events_writer = context.Pipe(duplex=False)
    control_reader, control = context.Pipe(duplex=False)
    process = context.Process(target=_supervised, args=(job, events_writer, control_reader), name=f"rloop-{job.stage}")
    try:
        with _lock:
            process.start()
    except (EOFError, OSError) as error:  # the fork server was killed, or there is no room for a process
        events.close()
        control.close()
        raise StageCrashed(f"could not be started: {error}", field=job.name, fix=RESUMES) from error
    finally:
        events_writer.close()
        control_reader.close()
    started = last_event = time.monotonic()
    reason: str | None = None
    kind: type[StageError] = StageError

    def on_sign_of_life(event: Event) -> None:
        nonlocal last_event
        last_event = time.monotonic()
        on_event(event)

    sources: list[Any] = [process.sentinel, events]
    try:
        while process.is_alive() and not reason:
            wait(sources, _PAUSE_SECONDS)
            if not _pass_on(events, on_sign_of_life):
                sources = [process.sentinel]
            if should_stop():
                reason, kind = "was told to stop", Stopped
            elif timeout_seconds and time.monotonic() - started > timeout_seconds:
                reason = f"ran longer than {timeout_seconds:.0f} s (placement.stage_timeout_minutes)"
            elif stall_seconds and time.monotonic() - last_event > stall_seconds:
                reason = f"made no progress for {stall_seconds:.0f} s (placement.stage_stall_minutes)"
                kind = StageCrashed
        _pass_on(events, on_event)
    finally:
        control.close()  # the supervisor ends the tree
        process.join()
        events.close()
        if process.exitcode is not None and process.exitcode < 0:
            end_orphans()  # the supervisor itself was killed
    if reason:
        raise kind(reason, field=job.name, fix=RESUMES)
    return _outcome(job, process.exitcode)


def read_outcome(job: StageJob) -> StageOutcome | None:
    """Return the outcome that a stage left in its work folder; None if it is unfinished, or has lost files since."""
    try:
        content = json.loads(job.outcome_file.read_text())
        lost = not job.is_shared and content["files"] != file_sizes(job.out)
        return None if lost else StageOutcome(**content["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _outcome(job: StageJob, exitcode: int | None) -> StageOutcome:
    """Return the outcome that the stage's process left, or raise the error that it left."""
    if outcome := read_outcome(job):
        return outcome
    see_log = f"see {job.log_file}" if job.log_file.exists() else RESUMES  # it may be gone already
    try:
        error = json.loads(job.outcome_file.read_text())["error"]
    except (OSError, ValueError, KeyError):
        if is_full(Path(job.work)):  # no room for the error either
            raise StoreError(os.strerror(errno.ENOSPC), field=job.work, fix=FREE_SPACE) from None
        last_lines = _last_lines(job.log_file)
        if exitcode in (-signal.SIGKILL, 128 + signal.SIGKILL):
            why, fix = killed(job)
            what = f"ended without a result (signal {signal.SIGKILL:d}): {why}{last_lines}"
            raise StageCrashed(what, field=job.name, fix=fix) from None
        how = f"signal {exitcode - 128}" if exitcode and exitcode > 128 else f"exit code {exitcode}"
        raise StageCrashed(f"ended without a result ({how}){last_lines}", field=job.name, fix=see_log) from None
    raise error_from_data(error, job.name, see_log)


def _supervised(job: StageJob, events: Connection, control: Connection) -> None:
    supervise(lambda: _work(job, events), control, job.log_file)


def _work(job: StageJob, events: Connection) -> int:
    """Compute the stage in its own process, and leave the outcome, or the error, as a file; return the exit code."""
    import traceback

    from rloop_core.stages.execute import execute
    from rloop_core.stages.ranks import execute_in_ranks, needs_launcher

    def send(event: Event) -> None:
        events.send_bytes(json.dumps(event).encode())

    content: dict[str, Any]
    try:
        outcome = execute_in_ranks(job, send) if needs_launcher(job) else execute(job, send)
        content = {"outcome": asdict(outcome), "files": file_sizes(job.out)}
    except Exception as error:
        traceback.print_exc()
        content = {"error": failure_of(error, job)}
    replace_text(job.outcome_file, json.dumps(content))
    return 0 if "outcome" in content else 1


def _pass_on(events: Connection, on_event: OnEvent) -> bool:
    """Pass on the events that have arrived; return False when no more will come."""
    try:
        while events.poll(0):
            on_event(json.loads(events.recv_bytes()))
    except (EOFError, OSError):
        return False
    return True


def _last_lines(log_file: Path) -> str:
    """Return the last lines of the stage's log, for a crash that left no other reason."""
    try:
        lines = log_file.read_text(errors="replace").strip().splitlines()[-3:]
    except OSError:
        return ""
    return f"; its log ends: {' | '.join(printable_line(line, 200) for line in lines)}" if lines else ""
