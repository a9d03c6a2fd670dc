"""Failures of a store: which pass by themselves, how long to go on asking, and what to say about the rest."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from rloop_core.errors import StoreError, StoreUnavailable

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 8.0
_PASSING_CODES = {
    "BadDigest",
    "IncompleteBody",
    "InternalError",
    "NoSuchUpload",  # the answer to a completed upload was lost, and completing it was tried again
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentSHA256Mismatch",
}
_PASSING_NUMBERS = {
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ETIMEDOUT,
}
_PASSING_KINDS = {
    "ClientError",  # aiohttp's: payload cut short, connection lost
    "ConnectionError",
    "CredentialRetrievalError",
    "HTTPClientError",
    "IncompleteRead",
    "IncompleteReadError",
    "MetadataRetrievalError",
    "ResponseParserError",
}
_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "fsspec", "urllib3")
_READING = ("read", "look up", "list", "delete")


def is_passing(error: BaseException) -> bool:
    """Whether asking a remote store again may help: it is overloaded, restarts, or the connection broke."""
    answer = _answer(error)
    if answer is not None:
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _code(answer) in _PASSING_CODES or status in (408, 429) or (status >= 500 and status != 501)
    if isinstance(error, OSError) and not _is_of_a_library(error):
        return isinstance(error, (TimeoutError, ConnectionError)) or error.errno in _PASSING_NUMBERS
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith(_LIBRARIES)}
    return "SSLError" not in kinds and bool(kinds & _PASSING_KINDS or isinstance(error, (TimeoutError, OSError)))


def persist(call: Callable[[], T], patience: float, name: str, tell: Callable[[str], None]) -> T:
    """What `call` returns, asked again with growing pauses while its failures are such as pass.

    Args:
        call: Does the same however often it is called.
        patience: Seconds after which to give up; nothing is asked twice with 0.
        name: Of the object, for errors.
        tell: Called with one line when the wait begins to be felt, and when it is over.

    Raises:
        StoreUnavailable: It failed so for longer than the patience.
    """
    began, told = time.monotonic(), False
    for pause in _pauses():
        try:
            found = call()
        except Exception as error:
            waited = time.monotonic() - began
            if not is_passing(error):
                raise
            if waited + pause > patience:
                raise unavailable(error, name, waited) from error
            if waited + pause > 1.0 and not told:
                tell(f"the store does not answer ({reason(error)}); trying again for up to {patience:.0f} s")
                told = True
            time.sleep(pause)
        else:
            if told:
                tell(f"the store answers again, after {time.monotonic() - began:.0f} s")
            return found
    raise AssertionError("pauses never end")


def unavailable(error: BaseException, name: str, waited: float) -> StoreUnavailable:
    """The error to raise when patience is at its end."""
    tried = f", tried for {waited:.0f} s" if waited >= 1 else ""
    fix = "check the endpoint and the network, then start the same command again: finished work is kept"
    return StoreUnavailable(f"does not answer: {reason(error)}{tried}", field=name, fix=fix)


def explain(error: Exception, action: str, name: str, bucket: str | None) -> StoreError | None:
    """The one line that a user is told about a failure that will not pass; None for a bug of our own.

    Args:
        error: What a library or the system raised.
        action: What was tried, in words.
        name: URI of the object or the store.
        bucket: Of a store on S3.
    """
    answer = _answer(error)
    if answer is not None and _code(answer) == "NoSuchBucket" and action not in _READING:
        return StoreError(f"cannot {action}: bucket {bucket!r} does not exist", field=name, fix=_CREATE)
    if isinstance(error, FileNotFoundError):
        if action in _READING:
            return StoreError(f"cannot {action}: there is no such object", field=name)
        what = f"cannot {action}: its folder or bucket does not exist and cannot be made ({reason(error)})"
        return StoreError(what, field=name, fix=_CREATE)
    if bucket is not None and (isinstance(error, PermissionError) or type(error).__name__ in _NO_CREDENTIALS):
        code = f", {_code(answer)}" if answer is not None else ""
        what = f"cannot {action}: bucket {bucket!r} refuses these credentials ({reason(error)}{code})"
        return StoreError(what, field=name, fix=_CLOCK if code == ", RequestTimeTooSkewed" else _CREDENTIALS)
    if isinstance(error, OSError):
        return StoreError(f"cannot {action}: {reason(error)}", field=name, fix=_remedy(error))
    if isinstance(error, (ImportError, ValueError)) and not _is_of_a_library(error):
        return StoreError(f"cannot {action}: {error}", field="placement.store", fix="use a path or a URI")
    if _is_of_a_library(error):
        fix = "check the endpoint, the credentials in the environment and the network"
        return StoreError(f"cannot {action}: {error}", field=name, fix=fix)
    return None


def reason(error: BaseException) -> str:
    """A failure in a few words."""
    if type(error).__name__ == "FSTimeoutError":
        return "no answer in time"
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said or type(error).__name__


def status_of(error: BaseException) -> int | None:
    """HTTP status of an S3 server's refusal, None for anything else."""
    answer = _answer(error)
    return None if answer is None else answer.get("ResponseMetadata", {}).get("HTTPStatusCode")


_CREATE = "create it, or name another store with --store"
_CLOCK = "set this machine's clock: S3 refuses requests that are signed more than 15 minutes off"
_CREDENTIALS = (
    "put credentials that may read, write, list and delete there into the environment (AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), or give this machine a role that may"
)
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}


def _pauses() -> Iterator[float]:
    """Growing pauses, each drawn from half to all of its length, so that many clients do not come back at once."""
    longest = _FIRST_PAUSE
    while True:
        yield random.uniform(longest / 2, longest)  # noqa: S311 - not a secret
        longest = min(2 * longest, _LONGEST_PAUSE)


def _answer(error: BaseException) -> dict[str, Any] | None:
    """What the S3 server said, in the error or in the one that s3fs made it from."""
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            return response
    return None


def _code(answer: dict[str, Any]) -> str:
    return str(answer.get("Error", {}).get("Code", ""))


def _is_of_a_library(error: BaseException) -> bool:
    return type(error).__module__.startswith(_LIBRARIES)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free disk space and start the same command again: finished work is kept"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) or isinstance(error, PermissionError):
        return "give this user write access, or name another store with --store"
    return "check that the store is reachable, then start the same command again"
