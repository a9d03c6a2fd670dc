"""What is to go wrong with one run, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Where = Literal["disk", "s3"]

ACTS = ("kill flow", "terminate flow", "kill stage", "kill supervisor", "kill fork server", "second start")
"""What happens to a run while it computes."""
DEATHS = ("flow", "stage", "supervisor")
"""Who is killed at a request to the store, at a step of a stage, or at a file of one."""
NETWORK = ("500", "503", "reset", "lost", "cut", "slow", "half", "stale")
"""What S3 does to some of its requests."""
DAMAGES = ("flip", "truncate", "delete")
"""What happens to a stored file between two starts."""
BETWEEN = ("wipe scratch", *DAMAGES, *DAMAGES, "lease of the dead", "leftovers")
ONLY_S3 = ("wipe cache",)
_MOST_EVENTS = 24
_MOST_REQUESTS = {"flow": 60, "stage": 4, "supervisor": 4}


@dataclass(frozen=True)
class Moments:
    """What a stage does that can be counted, in a run to which nothing happens.

    Args:
        stage: Its name.
        iteration: Its iteration.
        at: `step` or `file`.
        count: How many there are.
    """

    stage: str
    iteration: int
    at: Literal["step", "file"]
    count: int


@dataclass(frozen=True)
class Act:
    """One thing that happens to a run while it computes.

    Args:
        kind: One of ACTS; for DEATHS `kill ... at a request`, `kill ... at a step of explore` and the like.
        after: Seconds, events, requests of that process, or steps or files of a stage.
        by: What `after` counts.
        sent: Of what is counted in a process itself: whether the last one is still done.
        stage: Whose steps or files.
        iteration: That stage's.
    """

    kind: str
    after: float
    by: Literal["seconds", "events", "request", "step", "file"]
    sent: bool = False
    stage: str = ""
    iteration: int = 0

    @property
    def in_process(self) -> bool:
        """Whether a process counts by itself and does it to itself."""
        return self.by in ("request", "step", "file")


@dataclass(frozen=True)
class Start:
    """One start of the run.

    Args:
        before: What happens to its files first: some of BETWEEN and ONLY_S3.
        acts: What happens meanwhile, in order of need.
        rate: Share of requests with a fault.
        network: Which faults those are.
        gone: Seconds after which S3 is gone for a while; None when it stays.
        patient: Whether everything the last start left has ended before this one begins.
    """

    before: tuple[str, ...] = ()
    acts: tuple[Act, ...] = ()
    rate: float = 0.0
    network: tuple[str, ...] = ()
    gone: float | None = None
    patient: bool = True


@dataclass(frozen=True)
class Schedule:
    """Starts of one run; after the last of them it is started until it finishes.

    Args:
        seed: What it was drawn from.
        where: Where its store is.
        starts: Each with its faults.
    """

    seed: int
    where: Where
    starts: tuple[Start, ...]


def draw_schedule(seed: int, where: Where, seconds: float, moments: Sequence[Moments]) -> Schedule:
    """The schedule of a seed.

    Args:
        seed: The same seed is the same schedule.
        where: Where the store is.
        seconds: How long the run takes when nothing happens; faults come at any time within.
        moments: What its stages do then.
    """
    draw = random.Random(f"{seed} {where}")
    starts = range(draw.randint(1, 3))
    return Schedule(seed, where, tuple(_start(draw, where, seconds, moments, number) for number in starts))


def _start(draw: random.Random, where: Where, seconds: float, moments: Sequence[Moments], number: int) -> Start:
    between = BETWEEN + (ONLY_S3 if where == "s3" else ())
    before = tuple(draw.choice(between) for _ in range(draw.choice((0, 1, 1, 2)))) if number else ()
    acts = _acts(draw, seconds, moments)
    start = Start(before, acts, patient=draw.random() < 0.5)
    if where == "disk" or draw.random() < 0.3:
        return start
    if draw.random() < 0.15:
        return Start(before, acts, gone=draw.uniform(0, seconds), patient=start.patient)
    kinds = tuple(draw.sample(NETWORK, draw.randint(1, len(NETWORK))))
    return Start(before, acts, rate=draw.choice((0.02, 0.1, 0.2)), network=kinds, patient=start.patient)


def _acts(draw: random.Random, seconds: float, moments: Sequence[Moments]) -> tuple[Act, ...]:
    """One thing, sometimes a second; of deaths at what a process counts there is one at most."""
    acts = [_death(draw, moments) if draw.random() < 0.6 else _act(draw, seconds)]
    if draw.random() < 0.25:
        acts.append(_act(draw, seconds))
    return tuple(acts)


def _death(draw: random.Random, moments: Sequence[Moments]) -> Act:
    who, sent = draw.choice(DEATHS), draw.random() < 0.5
    if draw.random() < 0.4 or not moments:
        return Act(f"kill {who} at a request", draw.randint(1, _MOST_REQUESTS[who]), "request", sent)
    stages = sorted({(one.stage, one.iteration) for one in moments})
    stages += 2 * [one for one in stages if one[0] == "explore"]  # which has most to lose
    stage = draw.choice(stages)
    one = draw.choice([one for one in moments if (one.stage, one.iteration) == stage])
    kind = f"kill {who} at a {one.at} of {one.stage}"
    return Act(kind, draw.randint(1, one.count), one.at, sent, one.stage, one.iteration)


def _act(draw: random.Random, seconds: float) -> Act:
    kind = draw.choice(ACTS)
    if draw.random() < 0.5:
        return Act(kind, draw.uniform(0, seconds), "seconds")
    return Act(kind, draw.randint(1, _MOST_EVENTS), "events")
