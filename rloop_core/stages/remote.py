"""A stage that a run has computed by a worker of another pool: what the two say to each other in the store.

The run writes `<run>/orders/<name>/order.json`. The worker that begins it creates `taken.json` beside it, and, if it
fails, leaves its error as `error.json`. An order that is gone is no longer wanted. The artifact is published where it
is computed, under the run's own lease, and its manifest decides, as always. How far the worker is, Prefect knows.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from rloop_core.errors import RESUMES, RLoopError, StageError, StoreError, error_as_data, error_from_data
from rloop_core.json_text import parse_json
from rloop_core.stages.job import place_of
from rloop_core.store import Store


@dataclass(frozen=True)
class Order:
    """What is asked for.

    Args:
        config: The run's config as plain data.
        fingerprint: Of the artifact that is wanted; a worker that would compute another refuses.
        token: Of the lease under which to publish it.
    """

    config: dict[str, Any]
    fingerprint: str
    token: str


@dataclass(frozen=True)
class RemoteStage:
    """One try to have a stage computed by a worker of another pool.

    Args:
        store: The run's store.
        run: Its name.
        stage: The stage.
        iteration: Its iteration; -1 for the evaluation of theta_0.
        name: Tells this try from others.
    """

    store: Store
    run: str
    stage: str
    iteration: int
    name: str

    @classmethod
    def new(cls, store: Store, run: str, stage: str, iteration: int) -> RemoteStage:
        """A try of its own name, of which the store knows nothing yet."""
        return cls(store, run, stage, iteration, f"{stage}-{place_of(iteration)}-{uuid.uuid4().hex[:12]}")

    def order(self, order: Order) -> None:
        """Ask for it."""
        self.store.write_bytes(self._key("order"), json.dumps(vars(order)).encode())

    def withdraw(self) -> None:
        """No longer want it, whether it is done or not."""
        for name in ("order", "taken", "error"):
            self.store.delete(self._key(name))

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
        if not self.store.create_bytes(self._key("taken"), b"{}"):
            raise StageError("somebody has begun this already", field=self._field, fix="wait: its run asks again")
        return order

    def fail(self, error: RLoopError) -> None:
        """Tell the run why there will be no artifact."""
        self.store.write_bytes(self._key("error"), json.dumps(error_as_data(error)).encode())

    def error(self) -> RLoopError | None:
        """The worker's error, as it raised it; None where it left none.

        Raises:
            StoreError: The store cannot be asked.
        """
        text = self.store.find_bytes(self._key("error"))
        if text is None:
            return None
        try:
            return error_from_data(parse_json(text), self._field, "see the log of its flow run")
        except (ValueError, TypeError, KeyError) as error:
            return StageError(f"its error cannot be read: {error}", field=self._field, fix=RESUMES)

    def hasty(self, seconds: float) -> RemoteStage:
        """The same, on a store that is asked once and given up after so many seconds."""
        return RemoteStage(self.store.hasty(seconds), self.run, self.stage, self.iteration, self.name)

    def _key(self, file: str) -> str:
        return f"{self.run}/orders/{self.name}/{file}.json"

    @property
    def _field(self) -> str:
        return self.store.uri_of(self._key("order"))
