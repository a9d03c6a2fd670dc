"""An errand: a stage that a run has computed on another machine, and what the two say to each other in the store.

The run lays down an order, `<run>/errands/<name>/order.json`. Whoever carries it out says how far it is in
`report.json` beside it, several times a minute, and last of all how it ended. Each file has one writer. An order that
is gone is no longer wanted; a report that stands still is of somebody who died. The artifact itself is published where
it is computed, under the run's own lease, and its manifest decides, as always.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from rloop_core.errors import RESUMES, StageError, StoreError
from rloop_core.json_text import parse_json
from rloop_core.store import Store

Event = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """What is asked for.

    Args:
        config: The run's config as plain data.
        fingerprint: Of the artifact that is wanted; who would compute another refuses.
        token: Of the lease under which to publish it.
    """

    config: dict[str, Any]
    fingerprint: str
    token: str


@dataclass(frozen=True)
class Report:
    """How far an errand is.

    Args:
        beats: Grows as long as somebody is at it.
        events: The last events, each with its number from 0.
        ended: Whether it is over.
        error: What went wrong, as `error_as_data` gives it; None where nothing did.
    """

    beats: int
    events: list[tuple[int, Event]]
    ended: bool = False
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class Errand:
    """One try at one stage of one iteration, elsewhere.

    Args:
        store: The object store, which both sides reach.
        run: Name of the run.
        stage: One of STAGES.
        iteration: i; -1 for the evaluation of theta_0.
        name: Tells this try from others.
    """

    store: Store
    run: str
    stage: str
    iteration: int
    name: str

    @classmethod
    def new(cls, store: Store, run: str, stage: str, iteration: int) -> Errand:
        """An errand of its own name, of which the store knows nothing yet."""
        return cls(store, run, stage, iteration, f"{stage}-{place_of(iteration)}-{uuid.uuid4().hex[:12]}")

    def lay(self, order: Order) -> None:
        """Ask for it."""
        self.store.write_bytes(self._key("order"), json.dumps(vars(order)).encode())

    def withdraw(self) -> None:
        """No longer want it, whether it is done or not."""
        self.store.delete(self._key("order"))
        self.store.delete(self._key("report"))

    def is_wanted(self) -> bool:
        """Whether the order still stands."""
        return self.store.exists(self._key("order"))

    def take(self) -> Order:
        """Begin it: of all who try, one may.

        Raises:
            StageError: Nobody wants it any more, or somebody has begun it.
        """
        try:
            order = Order(**parse_json(self.store.read_bytes(self._key("order"))))
        except (ValueError, TypeError) as error:
            raise StageError(f"cannot be read: {error}", field=self._field, fix=RESUMES) from error
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                fix = "start the run itself: it asks for its stages as it needs them"
                raise StageError("nobody waits for this any more", field=self._field, fix=fix) from error
            raise
        if not self.store.create_bytes(self._key("report"), _as_bytes(Report(0, []))):
            raise StageError("somebody has begun this already", field=self._field, fix="wait: its run asks again")
        return order

    def write(self, report: Report) -> None:
        """Say how far it is."""
        self.store.write_bytes(self._key("report"), _as_bytes(report))

    def read(self) -> Report | None:
        """How far it is; None before anybody began.

        Raises:
            StageError: It cannot be read.
            StoreError: The store cannot be asked.
        """
        try:
            content = parse_json(self.store.read_bytes(self._key("report")))
            events = [(int(number), dict(event)) for number, event in content.pop("events")]
            return Report(events=events, **content)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise StageError(f"its report cannot be read: {error}", field=self._field, fix=RESUMES) from error
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def hasty(self, seconds: float) -> Errand:
        """The same errand, on a store that is asked once and given up after so many seconds."""
        return Errand(self.store.hasty(seconds), self.run, self.stage, self.iteration, self.name)

    def _key(self, file: str) -> str:
        return f"{self.run}/errands/{self.name}/{file}.json"

    @property
    def _field(self) -> str:
        return self.store.uri_of(self._key("order"))


def place_of(iteration: int) -> str:
    """`000`, or `base` for what belongs to theta_0."""
    return "base" if iteration < 0 else f"{iteration:03d}"


def _as_bytes(report: Report) -> bytes:
    return json.dumps(vars(report)).encode()
