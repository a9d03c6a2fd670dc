"""Recognise errors of the Prefect server in an exception's causes: the store has the run's work, and it can resume."""

import httpx
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from rloop_core.errors import causes_of

DELETED = "its flow run, or one below it, was deleted on the Prefect server while it ran"


def server_was_gone(error: BaseException) -> bool:
    """Return True if the error or one of its causes is a Prefect server without an answer."""
    return any(
        isinstance(cause, httpx.TransportError)
        or (isinstance(cause, PrefectHTTPStatusError) and cause.response.status_code >= 500)
        for cause in causes_of(error)
    )


def was_deleted(error: BaseException) -> bool:
    """Return True if the error or one of its causes is a flow run that the Prefect server no longer knows."""
    return any(isinstance(cause, ObjectNotFound) for cause in causes_of(error))
