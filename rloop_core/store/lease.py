"""One writer a run: a lease with a heartbeat in the store itself, so that it holds across machines.

Nobody compares clocks. A holder on this machine is looked up by process; a holder elsewhere is alive if its heartbeat
counter moves while we watch. So a skewed clock can neither steal nor keep a lease.

Prefect's limits and databases' locks need a server, which a run is to outlive; the store is there wherever results are.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from rloop_core.errors import LeaseError, StoreError
from rloop_core.json_text import parse_json
from rloop_core.printable import printable_line
from rloop_core.store.objects import Store

HEARTBEAT_SECONDS = 5.0
PATIENCE_SECONDS = 30.0
_PAUSE = 0.05
_BRIEF_SECONDS = 10.0


class Lease:
    """Exclusive right to write one run; a context manager.

    Args:
        store: Where the run lives.
        run: Its name.
        heartbeat: Seconds between heartbeats.
        patience: Seconds without a heartbeat after which a holder on another machine is taken for dead.
        tell: Called with one line when waiting for a silent holder.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        heartbeat: float = HEARTBEAT_SECONDS,
        patience: float = PATIENCE_SECONDS,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        # A heartbeat that is late is worth nothing: the next one comes soon.
        self._hasty = store.hasty(max(2 * heartbeat, _BRIEF_SECONDS))
        self._key = f"{run}/lease.json"
        self._run = run
        self._heartbeat = heartbeat
        self._patience = patience
        self._tell = tell or (lambda line: None)
        self._token = uuid.uuid4().hex
        self._beats = 0
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self._acquire()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{self._run}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        with contextlib.suppress(StoreError):
            if (holder := self._holder(self._hasty)) and holder.get("token") == self._token:
                self._hasty.delete(self._key)

    @property
    def token(self) -> str:
        """What tells this holder from every other; who works for it shows it (`BorrowedLease`)."""
        return self._token

    def living_holder(self) -> str | None:
        """Who holds the run now, in words, without taking anything; None when nobody alive does.

        Raises:
            StoreError: The store cannot be asked.
        """
        holder = self._holder()
        return None if holder is None or self._is_dead(holder) else holder_in_words(holder)

    def ensure_held(self) -> None:
        """Raise before anything is published under a lease that another process has taken.

        Raises:
            LeaseError: The lease was lost.
            StoreError: The store cannot be asked.
        """
        holder = self._holder()
        if self._lost.is_set() or (holder is not None and holder.get("token") != self._token):
            self._lost.set()
            raise LeaseError("was taken over by another process", field=self._store.uri_of(self._key), fix=_FIX)

    def _acquire(self) -> None:
        while not self._store.create_bytes(self._key, self._content()):
            holder = self._holder()
            if holder is None:
                time.sleep(_PAUSE)
                continue
            if holder.get("token") == self._token:
                return  # our own write, whose answer was lost and which was sent again
            if not self._is_dead(holder):
                what = f"run {self._run!r} is being written by {holder_in_words(holder)}"
                raise LeaseError(what, field=self._name(), fix=_FIX)
            if self._take_over(holder):
                return

    def _take_over(self, holder: dict[str, Any]) -> bool:
        """Replace a dead holder's lease; among several takers exactly one wins.

        A taker first creates a claim on the dead token, then looks again: who comes late finds the lease changed. The
        claim of a taker that died is never deleted by another (two could, one of them a live claim), but superseded by
        the next number.
        """
        prefix = f"{self._run}/lease-takeover-{holder.get('token')}"
        number = 0
        while not self._claim(f"{prefix}-{number}"):
            time.sleep(_PAUSE)
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
        """Create a claim; ours too is one whose creation was answered with nothing, and that was created again."""
        if self._store.create_bytes(claim, self._content()):
            return True
        held = read_holder(self._store, claim)
        return held is not None and held.get("token") == self._token

    def _claimant_is_dead(self, claim: str, holder: dict[str, Any]) -> bool:
        text = self._store.find_bytes(claim)
        if text is None:
            return False
        try:
            claimant = parse_json(text)
        except ValueError:
            return True
        if not isinstance(claimant, dict):
            return True
        # A claimant elsewhere shows life by nothing but the lease that it is about to replace.
        return holder_is_gone(claimant) if holder_is_here(claimant) else self._is_silent(holder)

    def _is_dead(self, holder: dict[str, Any]) -> bool:
        if holder_is_here(holder):
            return holder_is_gone(holder)
        self._tell(f"run {self._run!r} is leased by {holder.get('host')}; watching its heartbeat")
        return self._is_silent(holder)

    def _is_silent(self, holder: dict[str, Any]) -> bool:
        """Whether a lease is left as it is for the whole patience, or released meanwhile.

        Only the time in which the store could be asked counts: while it is gone, no holder can show that it lives.
        """
        pause = min(0.5, self._heartbeat)
        watched = 0.0
        while watched < self._patience:
            time.sleep(pause)
            asked = time.monotonic()
            if (now := self._holder()) != holder:
                return now is None
            watched = watched + pause if time.monotonic() - asked < _BRIEF_SECONDS else 0.0
        return True

    def _beat(self) -> None:
        missed = False
        while not self._stop.wait(self._heartbeat):
            try:
                self._beats += 1
                if (holder := self._holder(self._hasty)) is None:
                    self._hasty.create_bytes(self._key, self._content())
                elif holder.get("token") == self._token:
                    self._hasty.write_bytes(self._key, self._content())
                else:
                    self._lost.set()
                    return
                missed = False
            except StoreError as error:
                if not missed:
                    self._tell(f"lease heartbeat failed, trying again: {error}")
                missed = True

    def _holder(self, store: Store | None = None) -> dict[str, Any] | None:
        return read_holder(store or self._store, self._key)

    def _content(self) -> bytes:
        content = {
            "token": self._token,
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "beats": self._beats,
        }
        return json.dumps(content).encode()

    def _name(self) -> str:
        return self._store.uri_of(self._key)


def read_holder(store: Store, key: str) -> dict[str, Any] | None:
    """Who a lease names, None when there is no lease; without a token when it cannot be read.

    Raises:
        StoreError: The store cannot be asked.
    """
    text = store.find_bytes(key)
    if text is None:
        return None
    try:
        holder = parse_json(text)
    except ValueError:
        return {"token": None, "host": "unknown"}
    return holder if isinstance(holder, dict) else {"token": None, "host": "unknown"}


_FIX = "wait for it, stop it, or give this run another --name"


def holder_in_words(holder: dict[str, Any]) -> str:
    """Process and machine."""
    return printable_line(f"process {holder.get('pid')} on {holder.get('host')}", 200)


def holder_is_here(holder: dict[str, Any]) -> bool:
    """Whether a lease was taken by a process of this machine, which can be looked up."""
    return bool(holder.get("machine") == _machine())


def holder_is_gone(holder: dict[str, Any]) -> bool:
    """Whether a process of this machine has ended, even if its id is in use again."""
    pid = holder.get("pid")
    return not isinstance(pid, int) or _started(pid) != holder.get("started")


def _machine() -> str:
    """Where process ids mean the same: host name, boot, and process namespace (containers may share the first two)."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)


def _started(pid: int) -> float | None:
    """Start time of a process, which tells it from a later one with the same id; None when it is gone.

    On Linux in clock ticks since boot: a time of day would move whenever the clock is set.
    """
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else float(fields[19])
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except (psutil.Error, ValueError):
        return None
