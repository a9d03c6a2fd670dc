"""A stage on several machines: each computes its share below a supervisor; what ends anywhere ends everywhere."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from rloop_core.config import Config, make_config
from rloop_core.runtime.cluster import Cluster, join_cluster
from rloop_core.stages.job import Share, StageJob, StageOutcome, draws, machines_of
from rloop_core.stages.process import run_in_process, warm_up
from rloop_core.stages.ranks import prepare

Event = dict[str, Any]


def check_machines(config: Config, tell: Callable[[str], None], should_stop: Callable[[], bool]) -> None:
    """Wait until the other machines of a run are there, as long as placement says.

    Raises:
        RLoopError: As `join_cluster`.
    """
    if config.placement.machines == 1 or {"explore", "rft"} <= set(config.placement.pools):
        return  # the workers of the pools are the first machines
    _join(config, tell, should_stop)


def run_stage(
    job: StageJob,
    tell: Callable[[Event], None],
    *,
    should_stop: Callable[[], bool] = lambda: False,
    **limits: Any,
) -> StageOutcome:
    """Compute a stage on as many machines as its placement says, this one among them; returns what it computed.

    What trains has its ranks spread over them. What draws has its batches shared out, each a file in the scratch folder
    that all machines see; then this machine alone goes on with all of them.

    Args:
        job: The whole stage.
        tell: Called with each progress event.
        should_stop: Asked several times a second; True ends it on all machines.
        **limits: See `run_in_process`.

    Raises:
        RLoopError: As `run_in_process`; of several machines, what ended it first, with the machine's name.
    """
    if machines_of(job) == 1:
        return run_in_process(job, tell, should_stop=should_stop, **limits)

    def note(line: str) -> None:
        tell({"kind": "note", "note": line})

    cluster = _join(make_config(job.config), note, should_stop)
    for left in Path(job.work).glob("outcome-*.json"):
        left.unlink(missing_ok=True)
    drawing = draws(job)
    if not drawing:
        prepare(job)
    shares = _shares(job, cluster)
    # Of ranks the first alone tells how far they are, so that on the others nothing seems to go on.
    theirs = limits if drawing else {}

    def run_own(should_stop: Callable[[], bool]) -> StageOutcome:
        return run_in_process(shares[0], tell, should_stop=should_stop, **limits)

    outcome, *counts = cluster.run(
        [run_own, *(partial(_run_share, share, theirs) for share in shares[1:])], should_stop
    )
    if not drawing:
        return cast(StageOutcome, outcome)
    note(cluster.tell_shares([count["batches"] for count in (outcome.counts, *counts)]))
    return run_in_process(job, tell, should_stop=should_stop, **limits)


def _join(config: Config, tell: Callable[[str], None], should_stop: Callable[[], bool]) -> Cluster:
    warm_up()  # before Ray's threads are there
    placement = config.placement
    patience = 60 * placement.machines_patience_minutes
    gpus = placement.device != "cpu"
    return join_cluster(placement.machines, gpus, patience, tell, should_stop, at_first=_warm_up)


def _shares(job: StageJob, cluster: Cluster) -> list[StageJob]:
    endpoint = "" if draws(job) else f"{_own_address()}:{_free_port()}"
    return [replace(job, share=Share(number, cluster.machines, endpoint)) for number in range(cluster.machines)]


def _run_share(job: StageJob, limits: dict[str, Any], should_stop: Callable[[], bool]) -> dict[str, Any]:
    """On a further machine: compute a share, and count what it is."""
    return run_in_process(job, lambda event: None, should_stop=should_stop, **limits).counts


def _warm_up(should_stop: Callable[[], bool]) -> None:
    warm_up()


def _own_address() -> str:
    """This machine's, as the others know it."""
    import ray

    return str(ray.util.get_node_ip_address())


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
