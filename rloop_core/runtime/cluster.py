"""Join the machines of a run: find the Ray cluster, wait for its machines, reserve them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rloop_core.errors import RESUMES, ConfigError, Stopped
from rloop_core.printable import printable_line
from rloop_core.runtime.machines import FIELD, PAUSE_SECONDS, Cluster, Machine, ShouldStop

_FIRST_NOTE_SECONDS = 5.0
_NOTE_SECONDS = 60.0

_lock = threading.Lock()
_joined: Cluster | None = None


def join_cluster(
    machines: int,
    gpus: bool,
    patience_seconds: float,
    note: Callable[[str], None] = lambda line: None,
    should_stop: ShouldStop = lambda: False,
) -> Cluster:
    """Reserve machines of the Ray cluster at RAY_ADDRESS, or of the one that this machine belongs to.

    They stay reserved until `leave_cluster`, or until one is lost. Start the fork server first: Ray's threads do not
    survive a fork.

    Args:
        machines: Number of machines, this one included.
        gpus: Reserve GPUs too: on each machine as many as this one has.
        patience_seconds: Wait so long for them.
        note: Called now and then with a line about the wait.
        should_stop: Called several times a second.

    Raises:
        ConfigError: The machines are missing, reserved by others, or have other releases.
        Stopped: `should_stop` returned True.
    """
    global _joined
    with _lock:
        if _joined is None or _joined.lost or _joined.machines != machines:
            leave_cluster()
            try:
                import ray  # noqa: F401
            except ImportError as error:
                fix = "pip install 'rloop[cluster]' on each of them"
                raise ConfigError("several machines need Ray, which is not installed", field=FIELD, fix=fix) from error
            waiting = _Waiting(time.monotonic() + patience_seconds, note, should_stop)
            _connect(waiting)
            cluster = _reserve(machines, gpus, waiting)
            try:
                cluster.start()
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


class _Waiting:
    """Waits for machines until a deadline, with a note every minute."""

    def __init__(self, deadline: float, note: Callable[[str], None], should_stop: ShouldStop) -> None:
        self._deadline, self._note, self._should_stop = deadline, note, should_stop
        self._next_note = time.monotonic() + _FIRST_NOTE_SECONDS

    def is_over(self, state: Callable[[], str]) -> bool:
        """Return True after the deadline; otherwise pause for a moment.

        Raises:
            Stopped: `should_stop` returned True.
        """
        now = time.monotonic()
        if now > self._deadline:
            return True
        if self._should_stop():
            raise Stopped("was told to stop while it waited for machines", field=FIELD, fix=RESUMES)
        if now > self._next_note:
            self._next_note = now + _NOTE_SECONDS
            self._note(f"waits for machines: {state()}")
        time.sleep(PAUSE_SECONDS)
        return False


def _connect(waiting: _Waiting) -> None:
    import ray

    if ray.is_initialized():
        return
    handler = signal.getsignal(signal.SIGTERM)
    while True:
        try:
            ray.init("auto", log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            break
        except Exception as error:  # without a cluster: ConnectionError, RuntimeError or ValueError
            why = printable_line(str(error), 300)
            if waiting.is_over(lambda why=why: why):  # type: ignore[misc]
                address = os.environ.get("RAY_ADDRESS")
                what = f"no Ray cluster answers at {address}" if address else "no Ray cluster is known on this machine"
                fix = (
                    "`ray start --port 6379 --head` here, `ray start --address THIS_MACHINE:6379 --block` on the "
                    "others, then the same command with RAY_ADDRESS=THIS_MACHINE:6379"
                )
                raise ConfigError(f"{what}: {why}", field=FIELD, fix=fix) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray replaces it


def _reserve(machines: int, gpus: bool, waiting: _Waiting) -> Cluster:
    import ray
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    count = int(next(node for node in ray.nodes() if node["NodeID"] == here)["Resources"].get("GPU", 0)) if gpus else 0
    bundle = {"CPU": 1.0} | ({"GPU": float(count)} if count else {})
    labels = [{"ray.io/node-id": here}, *({} for _ in range(machines - 1))]
    group = placement_group([bundle] * machines, strategy="STRICT_SPREAD", bundle_label_selector=labels)
    try:
        while not group.wait(PAUSE_SECONDS):
            if waiting.is_over(lambda: _joined_hosts(machines)):
                raise _missing(machines, count)
    except BaseException:
        remove_placement_group(group)
        raise
    actor = ray.remote(max_restarts=0, max_concurrency=16, num_cpus=0, num_gpus=count)(Machine)
    arguments = (str(Path.cwd()), os.environ.get("OMP_NUM_THREADS"))
    return Cluster(
        machines,
        group,
        [
            actor.options(  # type: ignore[attr-defined]
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            ).remote(*arguments)
            for number in range(1, machines)
        ],
    )


def _joined_hosts(machines: int) -> str:
    import ray

    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    hosts = [node["NodeManagerHostname"] + (" (this one)" if node["NodeID"] == here else "") for node in alive]
    return f"{len(alive)} of {machines} are there: {', '.join(sorted(hosts))}"


def _missing(machines: int, gpus: int) -> ConfigError:
    import ray

    missing = machines - sum(node["Alive"] for node in ray.nodes())
    if missing <= 0:
        each = f"{gpus} GPUs and a CPU" if gpus else "a CPU"
        what = f"{_joined_hosts(machines)}, but not {machines} with {each} that nobody else holds"
        return ConfigError(what, field=FIELD, fix=f"wait for the run that holds them; {RESUMES}")
    address = ray.get_runtime_context().gcs_address
    fix = f"`ray start --address {address} --block` on {missing} more, or set {FIELD} to how many there are"
    return ConfigError(_joined_hosts(machines), field=FIELD, fix=fix)
