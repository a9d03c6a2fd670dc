"""Errors that are the server's and not the run's: such a run has crashed, and goes on when the server is back."""

import httpx
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.v1.asyncio import ConcurrencySlotAcquisitionError as TagSlotError
from prefect.exceptions import PrefectHTTPStatusError

_TROUBLE = (httpx.TransportError, ConcurrencySlotAcquisitionError, TagSlotError)


def server_was_gone(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is that the Prefect server did not answer or could not."""
    while error is not None:
        if isinstance(error, _TROUBLE):
            return True
        if isinstance(error, PrefectHTTPStatusError) and error.response.status_code >= 500:
            return True
        error = error.__cause__ or error.__context__
    return False
