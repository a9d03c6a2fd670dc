"""Request that a worker of another pool computes a stage; run and worker exchange files in the store.

The run writes `<run>/requests/<name>/request.json`. The worker that starts on it creates `taken.json` next to it and,
if it fails, leaves its error as `error.json`. A request whose file is gone is no longer wanted. The worker publishes
the artifact under the run's own lease, and its manifest decides, as always. Prefect knows how far the worker is.
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
class RemoteRequest:
    """The content of a request: the run's config, as plain data, and what the worker must not get wrong."""

    config: dict[str, Any]
    fingerprint: str
    """Of the requested artifact; a worker that would compute another refuses."""
    token: str
    """Of the lease under which to publish it."""
    reason: str = ""
    """Why it is computed again, for its manifest."""


@dataclass(frozen=True)
class RemoteStage:
    """One attempt to have a stage computed by a worker of another pool, with a unique name."""

    store: Store
    run: str
    stage: str
    iteration: int
    name: str

    @classmethod
    def new(cls, store: Store, run: str, stage: str, iteration: int) -> RemoteStage:
        """Return an attempt with a name of its own; nothing is written yet."""
        return cls(store, run, stage, iteration, f"{stage}-{place_of(iteration)}-{uuid.uuid4().hex[:12]}")

    def send(self, request: RemoteRequest) -> None:
        """Write the request."""
        self.store.write_bytes(self._key("request"), json.dumps(vars(request)).encode())

    def withdraw(self) -> None:
        """Delete the request and the worker's files."""
        for name in ("request", "taken", "error"):
            self.store.delete(self._key(name))

    def is_wanted(self) -> bool:
        """Return True if the request still exists."""
        return self.store.exists(self._key("request"))

    def take(self) -> RemoteRequest:
        """Return the request for a worker to start on; only one worker may.

        Raises:
            StageError: The request is gone, or another worker has taken it.
        """
        try:
            request = RemoteRequest(**parse_json(self.store.read_bytes(self._key("request"))))
        except (ValueError, TypeError) as error:
            raise StageError(f"cannot be read: {error}", field=self._field, fix=RESUMES) from error
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                fix = "start the run itself: it requests its stages as it needs them"
                raise StageError("no run waits for this request", field=self._field, fix=fix) from error
            raise
        if not self.store.create_bytes(self._key("taken"), b"{}"):
            raise StageError("another worker has taken it", field=self._field, fix="wait: its run requests it again")
        return request

    def fail(self, error: RLoopError) -> None:
        """Leave the worker's error for the run."""
        self.store.write_bytes(self._key("error"), json.dumps(error_as_data(error)).encode())

    def error(self) -> RLoopError | None:
        """Return the worker's error as it raised it; None if it left none.

        Raises:
            StoreError: The store cannot be read.
        """
        text = self.store.find_bytes(self._key("error"))
        if text is None:
            return None
        try:
            return error_from_data(parse_json(text), self._field, "see the log of its flow run")
        except (ValueError, TypeError, KeyError) as error:
            return StageError(f"its error cannot be read: {error}", field=self._field, fix=RESUMES)

    def hasty(self, seconds: float) -> RemoteStage:
        """Return the same attempt on a store that gives up after so many seconds."""
        return RemoteStage(self.store.without_retries(seconds), self.run, self.stage, self.iteration, self.name)

    def _key(self, file: str) -> str:
        return f"{self.run}/requests/{self.name}/{file}.json"

    @property
    def _field(self) -> str:
        return self.store.uri_of(self._key("request"))
