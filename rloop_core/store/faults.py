"""Failures of a store: which are transient, how long to retry them, and one-line errors for the others."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from rloop_core.errors import RLoopError, StoreError, StoreUnavailable

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 8.0
_TRANSIENT_CODES = {
    "BadDigest", "IncompleteBody", "InternalError", "OperationAborted", "RequestLimitExceeded", "RequestTimeout",
    "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests",
    "XAmzContentSHA256Mismatch",
    "NoSuchUpload",  # completing an upload was retried after its answer was lost
}  # fmt: skip
_TRANSIENT_ERRNOS = {
    errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH,
    errno.EPIPE, errno.ETIMEDOUT,
}  # fmt: skip
_TRANSIENT_CLASSES = {
    "ConnectionError", "CredentialRetrievalError", "HTTPClientError", "IncompleteRead", "IncompleteReadError",
    "MetadataRetrievalError", "ResponseParserError",
    "ClientError",  # aiohttp: truncated payload, lost connection
}  # fmt: skip
_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "fsspec", "urllib3")
_READING = ("read", "look up", "list", "delete")


def is_transient(error: BaseException) -> bool:
    """Return True if a retry may help: the remote store is overloaded or restarts, or the connection broke."""
    response = _response(error)
    if response is not None:
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _code(response) in _TRANSIENT_CODES or status in (408, 429) or (status >= 500 and status != 501)
    if isinstance(error, OSError) and not _is_of_a_library(error):
        return isinstance(error, (TimeoutError, ConnectionError)) or error.errno in _TRANSIENT_ERRNOS
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith(_LIBRARIES)}
    return "SSLError" not in kinds and bool(kinds & _TRANSIENT_CLASSES or isinstance(error, (TimeoutError, OSError)))


def persist(call: Callable[[], T], patience: float, name: str, note: Callable[[str], None]) -> T:
    """Call until it succeeds, with growing pauses, while its failures are transient; return its result.

    Args:
        call: Function that may be repeated.
        patience: Seconds after which to give up; 0 = no retry.
        name: Name of the object, for errors.
        note: Called with one line when the wait exceeds a second, and when it is over.

    Raises:
        StoreUnavailable: It failed for longer than the patience.
    """
    began, noted = time.monotonic(), False
    for pause in _pauses():
        try:
            result = call()
        except Exception as error:
            waited = time.monotonic() - began
            if isinstance(error, RLoopError) or not is_transient(error):
                raise
            if waited + pause > patience:
                tried = f", tried for {waited:.0f} s" if waited >= 1 else ""
                fix = "check the endpoint and the network, then start the same command again: finished work is kept"
                raise StoreUnavailable(f"does not answer: {reason(error)}{tried}", field=name, fix=fix) from error
            if waited + pause > 1.0 and not noted:
                note(f"the store does not answer ({reason(error)}); trying again for up to {patience:.0f} s")
                noted = True
            time.sleep(pause)
        else:
            if noted:
                note(f"the store answers again, after {time.monotonic() - began:.0f} s")
            return result
    raise AssertionError("pauses never end")


def explain(error: Exception, action: str, name: str, bucket: str | None) -> StoreError | None:
    """Return the one-line error for a permanent failure; None for a bug in rloop.

    Args:
        error: Exception of a library or the system.
        action: The operation that failed, in words.
        name: URI of the object or the store.
        bucket: Bucket of a store on S3.
    """
    response = _response(error)
    if response is not None and _code(response) == "NoSuchBucket" and action not in _READING:
        return StoreError(f"cannot {action}: bucket {bucket!r} does not exist", field=name, fix=_CREATE)
    if response is not None and bucket is not None and (refusal := _REFUSALS.get(_code(response))):
        what = f"cannot {action}: bucket {bucket!r} {refusal[0]} ({_code(response)})"
        return StoreError(what, field=name, fix=refusal[1])
    if isinstance(error, FileNotFoundError):
        if action in _READING:
            return StoreError(f"cannot {action}: there is no such object", field=name)
        what = f"cannot {action}: its folder or bucket does not exist and cannot be made ({reason(error)})"
        return StoreError(what, field=name, fix=_CREATE)
    if bucket is not None and (isinstance(error, PermissionError) or type(error).__name__ in _NO_CREDENTIALS):
        code = f", {_code(response)}" if response is not None else ""
        what = f"cannot {action}: bucket {bucket!r} refuses these credentials ({reason(error)}{code})"
        return StoreError(what, field=name, fix=_CREDENTIALS)
    if isinstance(error, OSError):
        return StoreError(f"cannot {action}: {reason(error)}", field=name, fix=_remedy(error))
    if isinstance(error, (ImportError, ValueError)) and not _is_of_a_library(error):
        return StoreError(f"cannot {action}: {error}", field="placement.store", fix="use a path or a URI")
    if _is_of_a_library(error):
        fix = "check the endpoint, the credentials in the environment and the network"
        return StoreError(f"cannot {action}: {error}", field=name, fix=fix)
    return None


def reason(error: BaseException) -> str:
    """Describe a failure in a few words."""
    if type(error).__name__ == "FSTimeoutError":
        return "no answer in time"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an S3 server's error response, None for other errors."""
    response = _response(error)
    return None if response is None else response.get("ResponseMetadata", {}).get("HTTPStatusCode")


_CREATE = "create it, or name another store with --store"
_CREDENTIALS = (
    "put credentials that may read, write, list and delete there into the environment (AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), or give this machine a role that may"
)
_EXPIRED = (
    "refuses a session token that has expired",
    "get new credentials of a session, put them into the environment, and start the same command again",
)
_REGION = ("is in another region", "put the bucket's region into the environment (AWS_DEFAULT_REGION)")
_REFUSALS = {
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "InvalidToken": (
        "does not know this session token",
        "put the session token that belongs to these keys into the environment (AWS_SESSION_TOKEN), or take it out",
    ),
    "RequestTimeTooSkewed": (
        "refuses requests that are signed at another time than its own",
        "set this machine's clock: S3 refuses requests that are signed more than 15 minutes off",
    ),
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "PermanentRedirect": _REGION,
}
"""What a bucket says by the code of its answer, and the fix."""
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}


def _pauses() -> Iterator[float]:
    """Yield growing pauses with jitter (half to all of the length), so that many clients do not retry at once."""
    longest = _FIRST_PAUSE
    while True:
        yield random.uniform(longest / 2, longest)  # noqa: S311 - not a secret
        longest = min(2 * longest, _LONGEST_PAUSE)


def _response(error: BaseException) -> dict[str, Any] | None:
    """Return the S3 server's response from a botocore error, or from the cause of s3fs's translation of one."""
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict):
            return response
    return None


def _code(response: dict[str, Any]) -> str:
    return str(response.get("Error", {}).get("Code", ""))


def _is_of_a_library(error: BaseException) -> bool:
    return type(error).__module__.startswith(_LIBRARIES)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free disk space and start the same command again: finished work is kept"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) or isinstance(error, PermissionError):
        return "give this user write access, or name another store with --store"
    return "check that the store is reachable, then start the same command again"
