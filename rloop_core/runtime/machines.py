"""The machines of a Ray cluster that are reserved for a run: an actor on each further one computes its share of calls.

Ray carries the calls, and reports processes and machines that have died. It does not notice a process that is frozen,
and a machine without power or network only after a minute, so the first machine pings the others: it gives up one that
does not answer, and one that hears no ping ends what it computes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rloop_core.errors import (
    RESUMES,
    ConfigError,
    MachineLost,
    PeerLost,
    RLoopError,
    StageCrashed,
    StageError,
    Stopped,
    error_as_data,
    error_from_data,
)
from rloop_core.printable import printable_line

FIELD = "placement.machines"
SILENT_SECONDS = 30.0
"""A machine without a sign of life for so long is taken for dead."""
PAUSE_SECONDS = 0.2
_PING_SECONDS = 2.0
_GRACE_SECONDS = 5.0
"""A share needs less time to end by itself."""
_STOP_SECONDS = 15.0
"""A machine that has not stopped for so long after it was told to is lost."""
_SAME_RELEASES = ("rloop", "torch", "trl", "accelerate", "deepspeed")
"""Packages of which all machines of a run must have the same release."""

ShouldStop = Callable[[], bool]
Work = Callable[..., Any]
"""A share of a computation: called with `should_stop`, which it calls several times a second; returns plain values."""


class Machine:
    """Ray actor on a further machine: computes calls for as long as it hears of the first machine.

    Args:
        folder: Working folder of the first machine's process, used here too if it exists.
        threads: OMP_NUM_THREADS of the first machine; Ray sets its own.
    """

    def __init__(self, folder: str, threads: str | None) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
        self._last_heard = time.monotonic()
        self._stopped: set[str] = set()
        watch = threading.Thread(target=self._exit_if_abandoned, args=(os.getppid(),), daemon=True)
        watch.start()

    def describe(self) -> tuple[str, dict[str, str]]:
        """Return the host name and the releases of packages."""
        return socket.gethostname(), _releases()

    def ping(self) -> None:
        """Note that the first machine is alive."""
        self._last_heard = time.monotonic()

    def run(self, call: str, work: Work) -> tuple[Any, dict[str, Any] | None]:
        """Return the work's result and None, or None and the error that ended it."""
        self._last_heard = time.monotonic()

        def should_stop() -> bool:
            return call in self._stopped or time.monotonic() - self._last_heard > SILENT_SECONDS

        try:
            return work(should_stop=should_stop), None
        except RLoopError as error:
            return None, error_as_data(error)

    def stop(self, call: str) -> None:
        """End a call."""
        self._stopped.add(call)

    def _exit_if_abandoned(self, raylet: int) -> None:
        """End this process, and so all below it, when its raylet has ended, which Ray overlooks, or the run has."""
        while os.getppid() == raylet and time.monotonic() - self._last_heard < SILENT_SECONDS + _GRACE_SECONDS:
            time.sleep(PAUSE_SECONDS)
        os._exit(1)


class Cluster:
    """The machines reserved for a run; see `join_cluster`. Machine 0 is this one, the others have actors."""

    def __init__(self, machines: int, group: Any, actors: Sequence[Any]) -> None:
        self.machines = machines
        self._group, self.actors = group, actors
        self.hosts = [socket.gethostname(), *("" for _ in actors)]
        self.silent: frozenset[int] = frozenset()
        """Numbers of the machines that did not answer the last ping."""
        self.lost = False
        self._left = threading.Event()

    def start(self) -> None:
        """Check the machines' releases, and ping them from now on.

        Raises:
            ConfigError: A machine has another release of a package.
        """
        import ray

        own = _releases()
        for number, (host, releases) in enumerate(ray.get([actor.describe.remote() for actor in self.actors]), start=1):
            self.hosts[number] = host
            for package in sorted(own.keys() | releases.keys()):
                if own.get(package) != releases.get(package):
                    what = f"{host} has {package} {releases.get(package)}, this machine {own.get(package)}"
                    raise ConfigError(what, field=FIELD, fix="install the same release on all machines")
        threading.Thread(target=self._ping, name="rloop-ping", daemon=True).start()

    def name(self, number: int) -> str:
        """Return a machine's name for messages."""
        return f"machine {number} ({self.hosts[number]})"

    def run(self, works: Sequence[Work], should_stop: ShouldStop = lambda: False) -> list[Any]:
        """Compute one work on each machine, the first in this process; return their results in order.

        Raises:
            RLoopError: The first cause, with the machine's name; `Stopped` if `should_stop` returned True.
        """
        stop = threading.Event()
        errors: list[RLoopError] = []
        try:
            with ThreadPoolExecutor(self.machines - 1, "rloop-call") as threads:
                others = [
                    threads.submit(self._call, number, work, stop, errors)
                    for number, work in enumerate(works[1:], start=1)
                ]
                try:
                    first = works[0](should_stop=lambda: should_stop() or bool(errors))
                    while not errors and not all(call.done() for call in others):
                        if should_stop():
                            raise Stopped("was told to stop", field=FIELD, fix=RESUMES)
                        time.sleep(PAUSE_SECONDS)
                except RLoopError as error:
                    if should_stop():
                        raise
                    errors.append(_named(self.name(0), error))
                finally:
                    stop.set()
            if errors:
                raise min(errors, key=_rank)
            return [first, *(call.result() for call in others)]
        finally:
            if self.lost:
                self.leave()

    def _call(self, number: int, work: Work, stop: threading.Event, errors: list[RLoopError]) -> Any:
        """Return the result of a further machine's work, or add its error to `errors`; end it once `stop` is set."""
        import ray
        from ray.exceptions import RayActorError, RayError

        actor, call, name = self.actors[number - 1], uuid.uuid4().hex, self.name(number)
        result, deadline = None, float("inf")
        try:
            running = actor.run.remote(call, work)
            while not ray.wait([running], timeout=PAUSE_SECONDS)[0]:
                if number in self.silent or time.monotonic() > deadline:
                    raise _lost(f"{name} is gone: no sign of life for {SILENT_SECONDS:.0f} s")
                if stop.is_set() and deadline == float("inf"):
                    actor.stop.remote(call)
                    deadline = time.monotonic() + _STOP_SECONDS
            result, data = ray.get(running)
            if data:
                errors.append(_named(name, error_from_data(data, FIELD, "see the stage's log")))
        except MachineLost as error:
            errors.append(error)
            self.lost = True
        except RayActorError as error:
            errors.append(_lost(f"{name} is gone, or its process was killed: {printable_line(str(error), 300)}"))
            self.lost = True
        except RayError as error:
            errors.append(StageError(f"{name}: {printable_line(str(error), 1000)}", field=FIELD, fix="see its log"))
        return result

    def leave(self) -> None:
        """Give the machines back; what they still compute is ended."""
        import ray
        from ray.util import remove_placement_group

        if self._left.is_set():
            return
        self._left.set()
        with contextlib.suppress(Exception):  # the cluster may be gone already
            for actor in self.actors:
                ray.kill(actor)
            remove_placement_group(self._group)
        ray.shutdown()

    def _ping(self) -> None:
        import ray

        with contextlib.suppress(Exception):  # the call that it does not answer reports why
            while not self._left.wait(_PING_SECONDS):
                pings = [actor.ping.remote() for actor in self.actors]
                silent = ray.wait(pings, num_returns=len(pings), timeout=SILENT_SECONDS)[1]
                self.silent = frozenset(number for number, ping in enumerate(pings, start=1) if ping in silent)
                ray.get([ping for ping in pings if ping not in silent])
        self.lost = True


def _lost(what: str) -> MachineLost:
    address = os.environ.get("RAY_ADDRESS", "FIRST:6379")
    return MachineLost(what, field=FIELD, fix=f"lend it again (`ray start --address {address} --block`); {RESUMES}")


def _named(machine: str, error: RLoopError) -> RLoopError:
    """Return an error with the machine's name before its message."""
    return type(error)(f"{machine}: {error.what}", field=error.field, fix=error.fix)


def _rank(error: RLoopError) -> int:
    """Rank causes: a stage's own error, then a crash, then a lost machine; last a lost peer or a stop."""
    ranks = {Stopped: 3, PeerLost: 3, MachineLost: 2, StageCrashed: 1}
    return next((rank for kind, rank in ranks.items() if isinstance(error, kind)), 0)


def _releases() -> dict[str, str]:
    releases = {"python": platform.python_version()}
    for package in _SAME_RELEASES:
        with contextlib.suppress(PackageNotFoundError):
            releases[package] = version(package)
    return releases
