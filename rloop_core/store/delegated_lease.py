"""A run's lease as seen by somebody who works for its holder: worth something while the holder lives."""

from __future__ import annotations

import time
from typing import Any

from rloop_core.errors import LeaseError, StoreError
from rloop_core.store.lease import PATIENCE_SECONDS, holder_is_gone, holder_is_here, read_holder
from rloop_core.store.objects import Store

_BRIEF_SECONDS = 10.0


class BorrowedLease:
    """The lease of another process, known by its token. No clocks are compared, as in `Lease`.

    Args:
        store: Where the run lives.
        run: Its name.
        token: What the holder's lease says; another token is another holder.
        patience: Seconds without a heartbeat after which the holder is taken for dead.
    """

    def __init__(self, store: Store, run: str, token: str, patience: float = PATIENCE_SECONDS) -> None:
        self._store = store
        self._hasty = store.hasty(_BRIEF_SECONDS)
        self._key = f"{run}/lease.json"
        self._token = token
        self._patience = patience
        self._seen: dict[str, Any] | None = None
        self._asked = time.monotonic()
        self._silent = 0.0
        self._over = False

    def ensure_held(self) -> None:
        """Raise before anything is published for a holder that no longer holds the run.

        Raises:
            LeaseError: The lease is gone, or another's.
            StoreError: The store cannot be asked.
        """
        holder = read_holder(self._store, self._key)
        if self._over or holder is None or holder.get("token") != self._token:
            fix = "start the run again: it goes on where it was"
            raise LeaseError("the run that asked for this is over", field=self._store.uri_of(self._key), fix=fix)

    def is_over(self) -> bool:
        """Whether the holder has lost the run, has died, or was silent for the whole patience; to be asked often.

        Only the time in which the store could be asked counts: while it is gone, no holder can show that it lives.
        """
        asked = time.monotonic()
        try:
            holder = read_holder(self._hasty, self._key)
        except StoreError:
            self._asked = time.monotonic()
            return self._over
        if holder is not None and holder != self._seen:
            self._silent = 0.0
        else:
            self._silent += min(asked - self._asked, _BRIEF_SECONDS)
        self._seen, self._asked = holder, asked
        if holder is not None and holder.get("token") is not None:
            self._over |= holder["token"] != self._token or (holder_is_here(holder) and holder_is_gone(holder))
        self._over |= self._silent >= self._patience
        return self._over
