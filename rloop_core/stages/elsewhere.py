"""A stage on another machine as its run sees it: sent there, followed, and never waited for in vain.

That it is done is believed of its manifest alone; see `errand` for what the two sides say to each other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

from rloop_core.errors import RESUMES, StageCrashed, StageError, StoreError, error_from_data
from rloop_core.stages.errand import Errand, Order, Report

Event = dict[str, Any]

UNTAKEN_SECONDS = 60.0
"""When to say that no worker has taken a stage; again after twice as long, and so on."""
SILENT_SECONDS = 60.0
"""A worker whose report stands still for so long is taken for dead."""
_PAUSE_SECONDS = 1.0
_ASK_SECONDS = 3.0
_BRIEF_SECONDS = 10.0


class Sent(Protocol):
    """A stage that was handed to a scheduler."""

    def ended(self) -> str | None:
        """How it ended as the scheduler knows it, in words; None while it has not, or nobody can say."""
        ...

    def end(self) -> None:
        """Have it stopped, wherever it is; fails silently."""
        ...


class Pools(Protocol):
    """Where stages can be sent."""

    def is_here(self, pool: str) -> bool:
        """Whether the run itself computes in this pool, so that nothing need be sent."""
        ...

    def send(self, pool: str, errand: Errand) -> Sent:
        """Have an errand carried out by a worker of a pool.

        Raises:
            RLoopError: There is no such pool, or nobody to ask.
        """
        ...


def follow(
    errand: Errand,
    order: Order,
    pools: Pools,
    pool: str,
    tell: Callable[[Event], None],
    *,
    untaken_seconds: float | None,
    should_stop: Callable[[], bool],
) -> None:
    """Send a stage elsewhere and wait until it is over, forwarding its progress; leaving in any other way stops it.

    Args:
        errand: The errand.
        order: What is asked for.
        pools: Where stages can be sent.
        pool: The one for this.
        tell: Called with each of its events.
        untaken_seconds: Give up when nobody has taken it for so long; None waits for ever.
        should_stop: Asked every second; True stops it.

    Raises:
        RLoopError: The stage's own error, as it raised it.
        StageCrashed: Whoever was at it ended without an answer, fell silent, or never came; trying again may help.
        StageError: It was told to stop.
    """
    following: _Following | None = None
    errand.lay(order)
    try:
        following = _Following(errand, pools.send(pool, errand), pool, tell, untaken_seconds)
        following.until_over(should_stop)
    finally:
        with contextlib.suppress(StoreError):
            errand.hasty(_BRIEF_SECONDS).withdraw()
        if following and not following.over:
            following.sent.end()


class _Following:
    """The time between sending a stage and its end."""

    def __init__(
        self, errand: Errand, sent: Sent, pool: str, tell: Callable[[Event], None], untaken_seconds: float | None
    ) -> None:
        self._errand = errand.hasty(_BRIEF_SECONDS)
        self.sent = sent
        self._pool = pool
        self._tell = tell
        self._untaken_seconds = untaken_seconds
        self._field = f"{errand.run}: {errand.stage} in pool {pool}"
        self.over = False
        self._beats = -1
        self._told = -1
        self._waited = 0.0
        self._next_note = UNTAKEN_SECONDS
        self._silent = 0.0

    def until_over(self, should_stop: Callable[[], bool]) -> None:
        """See `follow`."""
        asked = looked = time.monotonic()
        while not should_stop():
            now = time.monotonic()
            if self._look(now - looked):
                return
            looked = now
            if now - asked > _ASK_SECONDS:
                asked = now
                if (how := self.sent.ended()) is not None:
                    if self._look(0.0):  # its last words may have come since
                        return
                    raise StageCrashed(f"ended without a result ({how})", field=self._field, fix=RESUMES)
            time.sleep(_PAUSE_SECONDS)
        raise StageError("was told to stop", field=self._field, fix=RESUMES)

    def _look(self, passed: float) -> bool:
        """Read the report; whether it is the last. Only time in which the store answers counts as silence."""
        try:
            report = self._errand.read()
        except StoreError:
            return False
        if report is None:
            self._wait(passed)
            return False
        self._forward(report)
        self.over = report.ended
        if report.error is not None:
            raise error_from_data(report.error, self._field, "see the log of its flow run")
        if report.ended:
            return True
        self._silent = 0.0 if report.beats != self._beats else self._silent + min(passed, _BRIEF_SECONDS)
        self._beats = report.beats
        if self._silent > SILENT_SECONDS:
            what = f"its worker has shown no sign of life for {SILENT_SECONDS:.0f} s"
            raise StageCrashed(what, field=self._field, fix=RESUMES)
        return False

    def _wait(self, passed: float) -> None:
        self._waited += passed
        if self._waited > self._next_note:
            start = f"prefect worker start --pool {self._pool}"
            note = f"no worker of pool {self._pool} has taken it for {self._next_note:.0f} s (start one: {start})"
            self._tell({"kind": "note", "note": note})
            self._next_note *= 2
        if self._untaken_seconds and self._waited > self._untaken_seconds:
            what = f"no worker has taken it for {self._untaken_seconds:.0f} s (placement.stage_stall_minutes)"
            raise StageCrashed(what, field=self._field, fix=f"start a worker of pool {self._pool}, and the run again")

    def _forward(self, report: Report) -> None:
        for number, event in report.events:
            if number > self._told:
                self._told = number
                self._tell(event)
