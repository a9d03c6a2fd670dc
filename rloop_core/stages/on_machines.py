"""A stage on several machines: each computes its share below a supervisor; what ends anywhere ends everywhere."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.cluster import Cluster, join_cluster
from rloop_core.config import Config, make_config
from rloop_core.errors import RLoopError
from rloop_core.stages.job import Share, StageJob, StageOutcome, draws
from rloop_core.stages.ranks import prepare

Event = dict[str, Any]


def check_machines(config: Config, tell: Callable[[str], None], should_stop: Callable[[], bool]) -> None:
    """Wait until the other machines of a run are there, as long as placement says.

    Raises:
        RLoopError: As `join_cluster`.
    """
    if {"explore", "rft"} <= set(config.placement.pools):
        return  # the workers of the pools are the first machines
    from rloop_core.stages.process import warm_up

    warm_up()
    _join(config, tell, should_stop)


def run_on_machines(
    launch: Callable[..., StageOutcome],
    job: StageJob,
    tell: Callable[[Event], None],
    *,
    should_stop: Callable[[], bool],
    **limits: Any,
) -> StageOutcome:
    """Compute a stage on several machines, this one among them.

    What trains has its ranks spread over them. What draws has its batches shared out, each a file in the scratch folder
    that all machines see; then this machine alone goes on with all of them.

    Args:
        launch: Runs a share, or a stage, on this machine: `run_in_process`.
        job: The whole stage.
        tell: Called with each progress event.
        should_stop: Asked several times a second; True ends it on all machines.
        **limits: For `launch`.

    Raises:
        RLoopError: Whatever ended it first, naming the machine.
    """

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
    with cluster.calls([partial(_run_share, share, theirs) for share in shares[1:]]) as others:
        try:
            outcome = launch(
                shares[0], tell, should_stop=lambda: should_stop() or others.trouble() is not None, **limits
            )
            others.wait(should_stop)
        except RLoopError as error:
            if should_stop():
                raise
            raise others.cause(error) from error
        if not drawing:
            return outcome
        counts = {0: outcome.counts, **others.results}
        note("drawn: " + ", ".join(f"{counts[at]['batches']} batches on {cluster.name(at)}" for at in sorted(counts)))
    return launch(replace(job, share=Share(0, 1)), tell, should_stop=should_stop, **limits)


def _join(config: Config, tell: Callable[[str], None], should_stop: Callable[[], bool]) -> Cluster:
    placement = config.placement
    patience = 60 * placement.machines_patience_minutes
    gpus = placement.device != "cpu"
    return join_cluster(placement.machines, gpus, patience, tell, should_stop, at_first=_warm_up)


def _shares(job: StageJob, cluster: Cluster) -> list[StageJob]:
    endpoint = "" if draws(job) else f"{_own_address()}:{_free_port()}"
    return [replace(job, share=Share(number, cluster.machines, endpoint)) for number in range(cluster.machines)]


def _run_share(job: StageJob, limits: dict[str, Any], should_stop: Callable[[], bool]) -> dict[str, Any]:
    """On a further machine: compute a share, and count what it is."""
    from rloop_core.stages.process import run_in_process

    return run_in_process(job, lambda event: None, should_stop=should_stop, **limits).counts


def _warm_up(should_stop: Callable[[], bool]) -> None:
    from rloop_core.stages.process import warm_up

    warm_up()


def _own_address() -> str:
    """This machine's, as the others know it."""
    import ray

    return str(ray.util.get_node_ip_address())


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
