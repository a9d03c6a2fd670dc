"""One writer per run: a lease with a heartbeat, kept in the store, so that it works across machines.

Clocks are never compared, so a wrong clock can neither steal nor keep a lease. A holder on this machine is looked up by
process id and start time; a holder on another machine lives if its lease changes within the patience. Prefect's limits
and database locks need a server; a lease needs only the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rloop_core.errors import LeaseError, StoreError
from rloop_core.json_text import parse_json
from rloop_core.printable import printable_line
from rloop_core.runtime.lifetime import start_time
from rloop_core.store.objects import Store

HEARTBEAT_SECONDS = 5.0
PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.05
_REQUEST_SECONDS = 10.0
_FIX = "wait for it, stop it, or give this run another --name"


class Lease:
    """Exclusive right to write one run; a context manager.

    Args:
        store: Store of the run.
        run: Name of the run.
        heartbeat: Seconds between heartbeats.
        patience: Seconds without a heartbeat after which a holder on another machine counts as dead.
        note: Called with one line when this process waits for a silent holder, or its heartbeat fails.

    Attributes:
        token: Id of this holder; a `DelegatedLease` is made from it.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        heartbeat: float = HEARTBEAT_SECONDS,
        patience: float = PATIENCE_SECONDS,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store = store
        # A late heartbeat is not retried: the next one comes soon.
        self._quick_store = store.without_retries(max(2 * heartbeat, _REQUEST_SECONDS))
        self._key = f"{run}/lease.json"
        self._run = run
        self._heartbeat = heartbeat
        self._patience = patience
        self._note = note
        self.token = uuid.uuid4().hex
        self._heartbeats = 0
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self._acquire()
        self._thread = threading.Thread(target=self._send_heartbeats, name=f"lease-{self._run}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        with contextlib.suppress(StoreError):
            if (holder := read_holder(self._quick_store, self._key)) and holder.get("token") == self.token:
                self._quick_store.delete(self._key)

    def living_holder(self) -> str | None:
        """Describe the process that holds the run now; None when no living process does. Nothing is taken.

        Raises:
            StoreError: The store cannot be read.
        """
        holder = self._holder()
        return None if holder is None or self._is_dead(holder) else holder_in_words(holder)

    def ensure_held(self) -> None:
        """Check that no other process has taken the lease; called before anything is published.

        Raises:
            LeaseError: The lease was lost.
            StoreError: The store cannot be read.
        """
        holder = self._holder()
        if self._lost.is_set() or (holder is not None and holder.get("token") != self.token):
            self._lost.set()
            raise LeaseError("was taken over by another process", field=self._store.uri_of(self._key), fix=_FIX)

    def _acquire(self) -> None:
        while not self._store.create_bytes(self._key, self._content()):
            holder = self._holder()
            if holder is None:
                time.sleep(_POLL_SECONDS)
                continue
            if holder.get("token") == self.token:
                return  # our own write: the request was repeated because its answer was lost
            if not self._is_dead(holder):
                what = f"run {self._run!r} is being written by {holder_in_words(holder)}"
                raise LeaseError(what, field=self._store.uri_of(self._key), fix=_FIX)
            if self._take_over(holder):
                return

    def _take_over(self, holder: dict[str, Any]) -> bool:
        """Replace a dead holder's lease; of several processes that try, exactly one succeeds.

        A process first creates a claim on the dead token, then reads the lease again: a late one finds it changed. The
        claim of a process that died is never deleted by others (two could, and one of them delete a live claim), but
        superseded by the next number.
        """
        prefix = f"{self._run}/lease-takeover-{holder.get('token')}"
        number = 0
        while not self._claim(f"{prefix}-{number}"):
            time.sleep(_POLL_SECONDS)
            if self._holder() != holder:
                return False
            if self._claimant_is_dead(f"{prefix}-{number}", holder):
                number += 1
        if self._holder() != holder:
            self._store.delete(f"{prefix}-{number}")
            return False
        self._store.write_bytes(self._key, self._content())
        for older in range(number, -1, -1):
            self._store.delete(f"{prefix}-{older}")
        return True

    def _claim(self, claim: str) -> bool:
        """Create a claim. It is ours, too, when our first request succeeded but its answer was lost."""
        if self._store.create_bytes(claim, self._content()):
            return True
        claimant = read_holder(self._store, claim)
        return claimant is not None and claimant.get("token") == self.token

    def _claimant_is_dead(self, claim: str, holder: dict[str, Any]) -> bool:
        claimant = read_holder(self._store, claim)
        if claimant is None:
            return False
        if claimant.get("token") is None:
            return True
        # A claimant on another machine has no heartbeat; it only shows that it lives by replacing the lease.
        return holder_is_gone(claimant) if holder_is_here(claimant) else self._is_silent(holder)

    def _is_dead(self, holder: dict[str, Any]) -> bool:
        if holder_is_here(holder):
            return holder_is_gone(holder)
        self._note(f"run {self._run!r} is leased by {holder.get('host')}; watching its heartbeat")
        return self._is_silent(holder)

    def _is_silent(self, holder: dict[str, Any]) -> bool:
        """Watch a lease. Return True if it is unchanged for the whole patience, or released meanwhile."""
        watch = _HeartbeatWatch(self._store, self._key, holder)
        while watch.silent_seconds < self._patience:
            time.sleep(min(0.5, self._heartbeat))
            if (current := watch.poll()) != holder:
                return current is None
        return True

    def _send_heartbeats(self) -> None:
        missed = False
        while not self._stop.wait(self._heartbeat):
            try:
                self._heartbeats += 1
                if (holder := read_holder(self._quick_store, self._key)) is None:
                    self._quick_store.create_bytes(self._key, self._content())
                elif holder.get("token") == self.token:
                    self._quick_store.write_bytes(self._key, self._content())
                else:
                    self._lost.set()
                    return
                missed = False
            except StoreError as error:
                if not missed:
                    self._note(f"lease heartbeat failed, trying again: {error}")
                missed = True

    def _holder(self) -> dict[str, Any] | None:
        return read_holder(self._store, self._key)

    def _content(self) -> bytes:
        content = {
            "token": self.token,
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": start_time(os.getpid()),
            "heartbeats": self._heartbeats,
        }
        return json.dumps(content).encode()


class DelegatedLease:
    """A run's lease as seen by a process that works for the holder: valid while the holder lives.

    Args:
        store: Store of the run.
        run: Name of the run.
        token: `Lease.token` of the holder.
        patience: Seconds without a heartbeat after which the holder counts as dead.
    """

    def __init__(self, store: Store, run: str, token: str, patience: float = PATIENCE_SECONDS) -> None:
        self._store = store
        self._key = f"{run}/lease.json"
        self._token = token
        self._patience = patience
        self._watch = _HeartbeatWatch(store.without_retries(_REQUEST_SECONDS), self._key)
        self._over = False

    def ensure_held(self) -> None:
        """Check that the holder still holds the run; called before anything is published for it.

        Raises:
            LeaseError: The lease is gone, or another process has it.
            StoreError: The store cannot be read.
        """
        holder = read_holder(self._store, self._key)
        if self._over or holder is None or holder.get("token") != self._token:
            fix = "start the run again: it resumes"
            raise LeaseError("the run that asked for this is over", field=self._store.uri_of(self._key), fix=fix)

    def is_over(self) -> bool:
        """Return True once the holder has lost the run, has died, or was silent for the patience; to be polled."""
        with contextlib.suppress(StoreError):
            holder = self._watch.poll()
            if holder is not None and holder.get("token") is not None:
                self._over |= holder["token"] != self._token or (holder_is_here(holder) and holder_is_gone(holder))
            self._over |= self._watch.silent_seconds >= self._patience
        return self._over


class _HeartbeatWatch:
    """Counts the seconds for which a lease shows no heartbeat: it is unchanged, or missing.

    Only time in which the store answers counts. After an outage the count starts again, since no holder could write.

    Args:
        store: Store of the run.
        key: Key of the lease.
        holder: The lease as last read, if it was read.
    """

    def __init__(self, store: Store, key: str, holder: dict[str, Any] | None = None) -> None:
        self._store, self._key, self._last = store, key, holder
        self._polled = time.monotonic()
        self.silent_seconds = 0.0

    def poll(self) -> dict[str, Any] | None:
        """Read the lease, count, and return its holder.

        Raises:
            StoreError: The store cannot be read.
        """
        began = time.monotonic()
        changed = True  # unless the store answers soon, and with the same
        try:
            holder = read_holder(self._store, self._key)
            changed = holder is not None and holder != self._last
            self._last = holder
        finally:
            ended = time.monotonic()
            if changed or ended - began >= _REQUEST_SECONDS:
                self.silent_seconds = 0.0
            else:
                self.silent_seconds += min(began - self._polled, _REQUEST_SECONDS)
            self._polled = ended
        return holder


def read_holder(store: Store, key: str) -> dict[str, Any] | None:
    """Return the holder that a lease names: None without a lease, `token` None when it cannot be parsed.

    Raises:
        StoreError: The store cannot be read.
    """
    text = store.find_bytes(key)
    if text is None:
        return None
    try:
        holder = parse_json(text)
    except ValueError:
        holder = None
    return holder if isinstance(holder, dict) else {"token": None, "host": "unknown"}


def holder_in_words(holder: dict[str, Any]) -> str:
    """Name the holder's process and machine."""
    return printable_line(f"process {holder.get('pid')} on {holder.get('host')}", 200)


def holder_is_here(holder: dict[str, Any]) -> bool:
    """Return True if the holder is a process of this machine, which can be looked up."""
    return bool(holder.get("machine") == _machine())


def holder_is_gone(holder: dict[str, Any]) -> bool:
    """Return True if a holder on this machine has ended, even if its process id is in use again."""
    pid = holder.get("pid")
    return not isinstance(pid, int) or start_time(pid) != holder.get("started")


def _machine() -> str:
    """Name the scope of process ids: host name, boot, and process namespace (containers may share the first two)."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)
