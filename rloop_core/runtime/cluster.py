"""Several machines joined by Ray: an actor on each further one, which computes its share of what the first asks for.

Ray finds the machines, reserves them and their GPUs, carries calls, and tells when a process or a machine has died. It
does not tell that a process stands still, and a machine without power or network only after a minute: so each side also
counts how long it has not heard of the other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
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
"""Who was not heard of for so long is taken for dead."""
_PING_SECONDS = 2.0
_GRACE_SECONDS = 5.0
"""A share needs no longer to end by itself."""
_END_SECONDS = 15.0
"""So long is waited for shares that were told to stop."""
_TELL_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_ALIKE = ("rloop", "torch", "trl", "accelerate", "deepspeed")
"""What must be of one release on all machines of a run."""

Work = Callable[[Callable[[], bool]], Any]
"""A share of something: takes `should_stop`, which it asks several times a second, and returns plain values."""

_lock = threading.Lock()
_joined: Cluster | None = None


class Machine:
    """A further machine, as a Ray actor: computes what it is given for as long as it hears of the first.

    Args:
        folder: Where the first machine's process works; this one does too, where the folder is there.
        threads: OMP_NUM_THREADS of the first machine; Ray sets one of its own.
    """

    def __init__(self, folder: str, threads: str | None) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
        self._heard = time.monotonic()
        self._stopped: set[str] = set()
        threading.Thread(target=self._end_alone, args=(os.getppid(),), name="rloop-end-alone", daemon=True).start()

    def describe(self) -> tuple[str, dict[str, str]]:
        """Its host name and its releases."""
        return socket.gethostname(), _releases()

    def ping(self) -> None:
        """The first machine lives."""
        self._heard = time.monotonic()

    def run(self, call: str, work: Work) -> tuple[Any, dict[str, Any] | None]:
        """What the work returns, and None; or None, and the error that ended it."""
        self._heard = time.monotonic()

        def should_stop() -> bool:
            return call in self._stopped or time.monotonic() - self._heard > SILENT_SECONDS

        try:
            return work(should_stop), None
        except RLoopError as error:
            return None, error_as_data(error)

    def stop(self, call: str) -> None:
        """End a call that is under way."""
        self._stopped.add(call)

    def _end_alone(self, raylet: int) -> None:
        """End this process, and with it all below, when its raylet is gone, which Ray forgets, or nobody wants it."""
        while os.getppid() == raylet and time.monotonic() - self._heard < SILENT_SECONDS + _GRACE_SECONDS:
            time.sleep(_PAUSE_SECONDS)
        os._exit(1)


class Cluster:
    """The further machines of a run, reserved for it; see `join_cluster`."""

    def __init__(self, machines: int, group: Any, actors: Sequence[Any]) -> None:
        self.machines = machines
        self._group, self.actors = group, actors
        self.hosts = [socket.gethostname(), *("" for _ in actors)]
        self.heard = [time.monotonic()] * len(actors)
        self.lost = False
        self._left = threading.Event()

    def greet(self, at_first: Work) -> None:
        """Learn who the machines are, give them something to begin with, and from now on listen for them.

        Raises:
            ConfigError: One has another release of something.
        """
        import ray

        for number, (host, theirs) in enumerate(ray.get([actor.describe.remote() for actor in self.actors]), start=1):
            self.hosts[number] = host
            mine = _releases()
            for package in sorted(mine.keys() | theirs.keys()):
                if mine.get(package) != theirs.get(package):
                    what = f"{host} has {package} {theirs.get(package)}, this machine {mine.get(package)}"
                    raise ConfigError(what, field=FIELD, fix="install the same release on all machines")
        for index, actor in enumerate(self.actors):
            actor.run.remote("at first", at_first)
            threading.Thread(target=self._listen, args=(index,), name="rloop-ping", daemon=True).start()

    def name(self, number: int) -> str:
        """Of a machine, for messages; the first is 0."""
        return f"machine {number} ({self.hosts[number]})"

    def run(self, works: Sequence[Work], should_stop: Callable[[], bool] = lambda: False) -> list[Any]:
        """Have each machine do its work, the first in this process; returns what they return.

        Args:
            works: One for each machine.
            should_stop: Asked several times a second; True ends all.

        Raises:
            RLoopError: Of several machines, what ended it first, with the machine's name.
        """
        others = _Calls(self, works[1:])
        try:
            mine = works[0](lambda: should_stop() or others.trouble() is not None)
            others.wait(should_stop)
        except RLoopError as error:
            if should_stop():
                raise
            raise others.cause(error) from error
        finally:
            if not others.end():
                leave_cluster()
        return [mine, *(others.results[number] for number in range(1, self.machines))]

    def tell_shares(self, batches: Sequence[int]) -> str:
        """A line about who drew how many batches."""
        return "drawn: " + ", ".join(f"{count} batches on {self.name(at)}" for at, count in enumerate(batches))

    def leave(self) -> None:
        """Give the machines back; what they still compute is ended."""
        import ray
        from ray.util import remove_placement_group

        self._left.set()
        with contextlib.suppress(Exception):  # whatever Ray says of a cluster that is gone
            for actor in self.actors:
                ray.kill(actor)
            remove_placement_group(self._group)
        ray.shutdown()

    def _listen(self, index: int) -> None:
        import ray

        try:
            while not self._left.wait(_PING_SECONDS):
                ray.get(self.actors[index].ping.remote())
                self.heard[index] = time.monotonic()
        except Exception:  # why, is told by whatever call it does not answer
            self.lost = True


class _Calls:
    """What the further machines of a cluster are at; `results` by machine, of which the first further one is 1."""

    def __init__(self, cluster: Cluster, works: Sequence[Work]) -> None:
        self._cluster = cluster
        self._id = uuid.uuid4().hex
        now = time.monotonic()
        cluster.heard[:] = [max(heard, now) for heard in cluster.heard]
        self._running = {
            number: actor.run.remote(self._id, work)
            for number, (actor, work) in enumerate(zip(cluster.actors, works, strict=True), start=1)
        }
        self._errors: dict[int, RLoopError] = {}
        self.results: dict[int, Any] = {}

    def trouble(self) -> RLoopError | None:
        """What ended first on another machine, if anything did."""
        self._look()
        return next(iter(self._errors.values()), None)

    def wait(self, should_stop: Callable[[], bool]) -> None:
        """Wait until all are done.

        Raises:
            RLoopError: The first trouble; `Stopped` when it was told to.
        """
        while not (error := self.trouble()) and self._running:
            if should_stop():
                raise Stopped("was told to stop", field=FIELD, fix=RESUMES)
            time.sleep(_PAUSE_SECONDS)
        if error:
            raise error

    def cause(self, mine: RLoopError) -> RLoopError:
        """Of what ended on each machine, what ended it first: this machine's own end among them."""
        self.end()
        found = [error_on(self._cluster.name(0), mine), *self._errors.values()]
        return min(found, key=_rank_of)

    def end(self) -> bool:
        """Stop what is still under way; whether every machine answered."""
        for number in self._running:
            self._cluster.actors[number - 1].stop.remote(self._id)
        deadline = time.monotonic() + _END_SECONDS
        while self._running and time.monotonic() < deadline:
            self._look()
            time.sleep(_PAUSE_SECONDS)
        return not self._running and not any(isinstance(error, MachineLost) for error in self._errors.values())

    def _look(self) -> None:
        import ray
        from ray.exceptions import RayActorError, RayError

        for number, call in [*self._running.items()]:
            name = self._cluster.name(number)
            silent = time.monotonic() - self._cluster.heard[number - 1]
            if ray.wait([call], timeout=0)[0]:
                del self._running[number]
                try:
                    self.results[number], data = ray.get(call)
                    if data:
                        self._errors[number] = error_on(name, error_from_data(data, FIELD, "see the stage's log"))
                except RayActorError as error:
                    what = f"{name} is gone, or its process was killed: {printable_line(str(error), 300)}"
                    self._errors[number] = MachineLost(what, field=FIELD, fix=_back_again())
                except RayError as error:
                    what = f"{name}: {printable_line(str(error), 1000)}"
                    self._errors[number] = StageError(what, field=FIELD, fix="see the stage's log")
            elif silent > SILENT_SECONDS:
                del self._running[number]
                what = f"{name} is gone: no sign of life for {silent:.0f} s"
                self._errors[number] = MachineLost(what, field=FIELD, fix=_back_again())


def join_cluster(
    machines: int,
    gpus: bool,
    patience_seconds: float,
    tell: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
    at_first: Work = lambda should_stop: None,
) -> Cluster:
    """So many machines of the Ray cluster at RAY_ADDRESS, or of the one that this machine is of; the first is this one.

    They stay this process's until `leave_cluster`, or until one of them is lost. A fork server must have been started
    before: Ray's threads do not survive a fork.

    Args:
        machines: How many, this one included.
        gpus: Reserve GPUs too: on each as many as this one has.
        patience_seconds: Wait so long for them.
        tell: Called now and then with a line about what is waited for.
        should_stop: Asked several times a second.
        at_first: What each further machine does at once, beside whatever comes next.

    Raises:
        ConfigError: They are not there, or not free, or have other releases; it says what to do.
        Stopped: It was told to.
    """
    global _joined
    with _lock:
        if _joined is None or _joined.lost or _joined.machines != machines:
            if _joined:
                _joined.leave()
                _joined = None
            try:
                import ray  # noqa: F401
            except ImportError as error:
                fix = "pip install 'rloop[cluster]' on each of them"
                raise ConfigError("several machines need Ray, which is not installed", field=FIELD, fix=fix) from error
            waiting = _Waiting(time.monotonic() + patience_seconds, tell, should_stop)
            _connect(waiting)
            cluster = _reserve(machines, gpus, waiting)
            try:
                cluster.greet(at_first)
            except BaseException:
                cluster.leave()
                raise
            _joined = cluster
        return _joined


def leave_cluster() -> None:
    """Give all machines back."""
    global _joined
    if _joined:
        _joined.leave()
        _joined = None


def error_on(machine: str, error: RLoopError) -> RLoopError:
    """An error with the machine's name."""
    return type(error)(f"{machine}: {error.what}", field=error.field, fix=error.fix)


class _Waiting:
    """Patience, with a word now and then."""

    def __init__(self, deadline: float, tell: Callable[[str], None], should_stop: Callable[[], bool]) -> None:
        self.deadline, self._tell, self._should_stop = deadline, tell, should_stop
        self._told = time.monotonic() - _TELL_SECONDS + _GRACE_SECONDS

    def is_over(self, what: Callable[[], str]) -> bool:
        """Whether nobody is willing to wait any longer; else a moment passes."""
        now = time.monotonic()
        if now > self.deadline:
            return True
        if self._should_stop():
            raise Stopped("was told to stop while it waited for machines", field=FIELD, fix=RESUMES)
        if now - self._told > _TELL_SECONDS:
            self._told = now
            self._tell(f"waits for machines: {what()}")
        time.sleep(_PAUSE_SECONDS)
        return False


def _connect(waiting: _Waiting) -> None:
    import ray

    if ray.is_initialized():
        return
    before = signal.getsignal(signal.SIGTERM)
    while True:
        try:
            ray.init("auto", log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            break
        except Exception as error:  # ConnectionError, RuntimeError, ValueError: each for some cluster that is not there
            why = printable_line(str(error), 300)
            if waiting.is_over(lambda why=why: why):  # type: ignore[misc]
                where = os.environ.get("RAY_ADDRESS")
                what = f"no Ray cluster answers at {where}" if where else "no Ray cluster is known on this machine"
                fix = (
                    f"`{_start()} --head` here, `{_start('THIS_MACHINE:6379')} --block` on the others, then the same "
                    "command with RAY_ADDRESS=THIS_MACHINE:6379"
                )
                raise ConfigError(f"{what}: {why}", field=FIELD, fix=fix) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # Ray takes it


def _reserve(machines: int, gpus: bool, waiting: _Waiting) -> Cluster:
    import ray
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    count = int(next(node for node in ray.nodes() if node["NodeID"] == here)["Resources"].get("GPU", 0)) if gpus else 0
    bundle = {"CPU": 1.0} | ({"GPU": float(count)} if count else {})
    labels = [{"ray.io/node-id": here}, *({} for _ in range(machines - 1))]
    group = placement_group([bundle] * machines, strategy="STRICT_SPREAD", bundle_label_selector=labels)
    while not group.wait(_PAUSE_SECONDS):
        try:
            over = waiting.is_over(lambda: _who(machines))
        except BaseException:
            remove_placement_group(group)
            raise
        if over:
            remove_placement_group(group)
            raise _missing(machines, count)
    actor = ray.remote(max_restarts=0, max_concurrency=16, num_cpus=0, num_gpus=count)(Machine)
    given = (str(Path.cwd()), os.environ.get("OMP_NUM_THREADS"))
    return Cluster(
        machines,
        group,
        [
            actor.options(  # type: ignore[attr-defined]
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            ).remote(*given)
            for number in range(1, machines)
        ],
    )


def _who(machines: int) -> str:
    import ray

    here = ray.get_runtime_context().get_node_id()
    there = [node for node in ray.nodes() if node["Alive"]]
    hosts = [node["NodeManagerHostname"] + (" (this one)" if node["NodeID"] == here else "") for node in there]
    return f"{len(there)} of {machines} are there: {', '.join(sorted(hosts))}"


def _missing(machines: int, gpus: int) -> ConfigError:
    import ray

    missing = machines - sum(node["Alive"] for node in ray.nodes())
    if missing <= 0:
        each = f"{gpus} GPUs and a CPU" if gpus else "a CPU"
        what = f"{_who(machines)}, but not {machines} with {each} that nobody else holds"
        return ConfigError(what, field=FIELD, fix=f"wait for the run that holds them; {RESUMES}")
    address = ray.get_runtime_context().gcs_address
    fix = f"`{_start(address)} --block` on {missing} more, or set {FIELD} to how many there are"
    return ConfigError(_who(machines), field=FIELD, fix=fix)


def _start(address: str | None = None) -> str:
    """The command that lends a machine."""
    return f"ray start --address {address}" if address else "ray start --port 6379"


def _back_again() -> str:
    return f"lend it again (`ray start --address {os.environ.get('RAY_ADDRESS', 'FIRST:6379')} --block`); {RESUMES}"


def _rank_of(error: RLoopError) -> int:
    """Own errors first, then what crashed by itself, then who is gone; last who lost another or was told to stop."""
    later = {Stopped: 3, PeerLost: 3, MachineLost: 2, StageCrashed: 1}
    return next((rank for kind, rank in later.items() if isinstance(error, kind)), 0)


def _releases() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _ALIKE:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
