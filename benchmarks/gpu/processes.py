"""Processes of the check: with a time limit, alone, killed in the middle of a stage, or without memory left."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import psutil

from rloop_core.config import Config
from rloop_core.runtime.events import Event, OnRunEvent
from rloop_core.runtime.lifetime import adopt_orphans, die_with_parent, end_below
from rloop_core.stages.process import run_in_process
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Store

Result = TypeVar("Result")
_EXTRA_ADDRESS_SPACE = 96 * 2**20


def run_limited(command: Sequence[str], seconds: float, log: Path) -> tuple[float, str | None]:
    """Run a command with its output in a file, and end every descendant of this process afterwards.

    SIGTERM ends this process as Ctrl-C does, with everything below it. Returns the seconds that it took, and why it
    failed: None, its exit code, its signal, or the limit in seconds.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    adopt_orphans()
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    trouble: str | None = None
    try:
        with open(log, "wb") as output:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        code = child.wait(seconds)
        if code:
            ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            tail = " | ".join(line.strip()[:160] for line in log.read_text(errors="replace").strip().splitlines()[-2:])
            trouble = f"{ending}; {log} ends: {tail or 'nothing'}"
    except subprocess.TimeoutExpired:
        trouble = f"ran longer than its limit of {seconds:g} s and was ended"
    finally:
        end_below(os.getpid())
    return time.monotonic() - started, trouble


def run_alone(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what the function returns or raises, called in a fresh process that frees its GPU memory at the end."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=die_with_parent) as pool:
        return pool.submit(function, *arguments).result()


@contextlib.contextmanager
def stage_runner(config: Config, on_event: OnRunEvent = lambda stage, iteration, event: None) -> Iterator[StageRunner]:
    """Yield a runner that holds the run's lease: stages as `rloop run` calls them, without Prefect."""
    store = Store(config.placement.store)
    with Lease(store, config.name) as lease:
        yield StageRunner(config, store, lease, on_event, run_in_process)


class StageKiller:
    """Kills processes of a stage with SIGKILL once it has done so many steps or batches: for `stage_runner`.

    `chosen` returns True for the command line of a process to kill; None kills the stage's whole tree.
    """

    def __init__(self, stage: str, after: float, chosen: Callable[[str], bool] | None = None) -> None:
        self._stage, self._after, self._chosen = stage, after, chosen
        self._idle = psutil.Process().children(recursive=True)
        self.killed: list[int] = []

    def __call__(self, stage: str, iteration: int, event: Event) -> None:
        """Kill once."""
        if stage != self._stage or self.killed or event["kind"] != "step" or event["done"] < self._after:
            return
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = f"{process.name()} {' '.join(process.cmdline())}"
                if process not in self._idle and (self._chosen is None or self._chosen(line)):
                    process.kill()
                    self.killed.append(process.pid)


@contextlib.contextmanager
def memory_taken(device: str, left: int) -> Iterator[None]:
    """Leave only so many bytes of the GPU free while the block runs: another process holds the rest.

    On a CPU the fork server, from which stages start, may take only a little more address space than it has: a stage
    has its libraries, and no room for its tensors. One stage must have run before, so that it has loaded them.
    """
    if device == "cpu":
        children = psutil.Process().children()
        server = next(child for child in children if any("forkserver" in word for word in child.cmdline()))
        before = server.rlimit(resource.RLIMIT_AS)
        server.rlimit(resource.RLIMIT_AS, (server.memory_info().vms + _EXTRA_ADDRESS_SPACE, before[1]))
        try:
            yield
        finally:
            server.rlimit(resource.RLIMIT_AS, before)
        return
    context = multiprocessing.get_context("spawn")
    connection, other_end = context.Pipe()
    process = context.Process(target=_hold_memory, args=(left, other_end), daemon=True)
    process.start()
    other_end.close()
    try:
        connection.recv()
        yield
    finally:
        connection.close()
        process.join(30)


def _hold_memory(left: int, connection: Connection) -> None:
    import torch

    die_with_parent()
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - left), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    connection.send(held.numel())
    with contextlib.suppress(EOFError):
        connection.recv()
