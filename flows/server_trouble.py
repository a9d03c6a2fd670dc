"""Errors that are the server's and not the run's: the store has what such a run computed, and it can go on."""

import httpx
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.v1.asyncio import ConcurrencySlotAcquisitionError as TagSlotError
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

_TROUBLE = (httpx.TransportError, ConcurrencySlotAcquisitionError, TagSlotError)

DELETED = "its flow run, or one below it, was deleted on the Prefect server while it ran"


def server_was_gone(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is that the Prefect server did not answer or could not."""
    while error is not None:
        if isinstance(error, _TROUBLE):
            return True
        if isinstance(error, PrefectHTTPStatusError) and error.response.status_code >= 500:
            return True
        error = error.__cause__ or error.__context__
    return False


def was_deleted(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is that the Prefect server does not know a flow run any more."""
    while error is not None:
        if isinstance(error, ObjectNotFound):
            return True
        error = error.__cause__ or error.__context__
    return False
