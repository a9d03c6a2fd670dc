"""Compute a stage on several machines: each computes its share below a supervisor, and the first error ends all."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.config import Config
from rloop_core.runtime import events
from rloop_core.runtime.cluster import join_cluster
from rloop_core.runtime.events import OnEvent
from rloop_core.runtime.machines import Cluster, Work
from rloop_core.stages.job import Share, StageJob, StageOutcome
from rloop_core.stages.process import run_in_process, start_fork_server
from rloop_core.stages.ranks import empty_ranks_folder
from rloop_core.stages.registry import machines_of, samples


def check_machines(config: Config, note: Callable[[str], None], should_stop: Callable[[], bool]) -> None:
    """Wait until the run's other machines have joined, as long as placement says.

    Raises:
        RLoopError: As `join_cluster`.
    """
    if config.placement.machines > 1:
        _join(config, note, should_stop)


def run_stage(
    job: StageJob,
    on_event: OnEvent,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    **limits: Any,
) -> StageOutcome:
    """Compute a stage on as many machines as its placement says, this one included.

    Training has its ranks spread over the machines. Sampling has its batches divided: each is a file in the scratch
    folder that all machines share, and then this machine lays out the artifact from all of them.

    The arguments are those of `run_in_process`; `should_stop` ends the stage on all machines.

    Raises:
        RLoopError: As `run_in_process`; with several machines, the first cause, with the machine's name.
    """
    if machines_of(job) == 1:
        return run_in_process(job, on_event, should_stop=should_stop, **limits)

    note = events.as_notes(on_event)
    cluster = _join(job.config, note, should_stop)
    for outcome_file in Path(job.work).glob("outcome-*.json"):
        outcome_file.unlink(missing_ok=True)
    first, *others = _shares(job, cluster)
    if samples(job):
        works: list[Work] = [partial(_sample, first, on_event, **limits)]
        works += [partial(_sample, share, events.ignore_event, **limits) for share in others]
        batches = enumerate(cluster.run(works, should_stop))
        note("sampled: " + ", ".join(f"{count} batches on {cluster.name(number)}" for number, count in batches))
        return run_in_process(job, on_event, should_stop=should_stop, **limits)
    empty_ranks_folder(job)
    # Only rank 0 sends events, so with a stall limit the other machines would seem to stall.
    works = [partial(run_in_process, first, on_event, **limits)]
    works += [partial(run_in_process, share, events.ignore_event) for share in others]
    outcome: StageOutcome = cluster.run(works, should_stop)[0]
    return outcome


def _join(config: Config, note: Callable[[str], None], should_stop: Callable[[], bool]) -> Cluster:
    start_fork_server()  # before Ray starts its threads
    placement = config.placement
    patience = 60 * placement.machines_patience_minutes
    return join_cluster(placement.machines, placement.device != "cpu", patience, note, should_stop)


def _shares(job: StageJob, cluster: Cluster) -> list[StageJob]:
    import ray

    endpoint = "" if samples(job) else f"{ray.util.get_node_ip_address()}:{_free_port()}"
    return [replace(job, share=Share(number, cluster.machines, endpoint)) for number in range(cluster.machines)]


def _sample(job: StageJob, on_event: OnEvent, **settings: Any) -> int:
    """Sample a share's batches; return their number."""
    return int(run_in_process(job, on_event, **settings).counts["batches"])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
