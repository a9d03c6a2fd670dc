"""JSON lines of completions in, JSON lines of verdicts out (`rloop verify`), of any length in flat memory."""

from __future__ import annotations

import io
import json
import math
import os
import select
import stat
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, TypeAlias

from rloop_core.verifier.types import Gold, Verdict
from rloop_core.verifier.verifier import Verifier

MAX_LINE_BYTES = 64 * 2**20
BATCH_LINES = 512
BATCH_BYTES = 16 * 2**20
_READ_BYTES = 2**20
_MAX_INTEGER_DIGITS = 4000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Batch: TypeAlias = list[tuple[int, bytes]]
"""(line number from 1, line) pairs; lines are cut after MAX_LINE_BYTES + 1 bytes."""


class LineReader:
    """Reads the lines of a byte stream as they arrive.

    Args:
        stream: A pipe, terminal or file; a stream without a file descriptor is read as if it never paused.

    Attributes:
        bytes_read: Bytes taken from the stream so far.
        size: Size of the stream in bytes where that is known, as for a file.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        try:
            self._descriptor: int | None = stream.fileno()
            status = os.fstat(self._descriptor)
            self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        except (OSError, io.UnsupportedOperation, AttributeError):
            self._descriptor, self.size = None, None
        self.bytes_read = 0

    def batches(self) -> Iterator[Batch]:
        """Yield the lines in batches; a batch ends early when the input pauses."""
        return _in_batches(self._lines())

    def _lines(self) -> Iterator[bytes | None]:
        """Yield each line without its newline; None whenever the next read would block."""
        parts: list[bytes] = []
        held = 0
        while True:
            if self._would_block():
                yield None
            chunk = self._read()
            if not chunk:
                break
            *complete, rest = chunk.split(b"\n")
            for piece in complete:
                yield b"".join([*parts, piece])[: MAX_LINE_BYTES + 1]
                parts, held = [], 0
            if rest and held <= MAX_LINE_BYTES:
                parts.append(rest)
                held += len(rest)
        if parts:
            yield b"".join(parts)[: MAX_LINE_BYTES + 1]

    def _would_block(self) -> bool:
        if self._descriptor is None:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    def _read(self) -> bytes:
        # os.read returns what is available and does not wait for more.
        fd = self._descriptor
        chunk = self._stream.read(_READ_BYTES) if fd is None else os.read(fd, _READ_BYTES)
        self.bytes_read += len(chunk)
        return chunk


def _in_batches(lines: Iterable[bytes | None]) -> Iterator[Batch]:
    """Yield lines in batches; None ends a batch early. Blank lines are counted and skipped."""
    batch: Batch = []
    number = held = 0
    for line in lines:
        if line is not None:
            number += 1
            if line.strip():
                batch.append((number, line))
                held += len(line)
        if batch and (line is None or len(batch) >= BATCH_LINES or held >= BATCH_BYTES):
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def verify_stream(lines: Iterable[bytes], verifier: Verifier) -> Iterator[dict[str, Any]]:
    """Judge `{id, completion, answer}` lines (optionally `finished`), one `{id, correct, verdict, extracted}` each.

    Order is kept. A line that cannot be judged gives verdict `error` with a `reason`. Blank lines are skipped. Invalid
    UTF-8 is read with replacement characters. Memory holds one batch of lines.
    """
    for batch in _in_batches(lines):
        yield from verify_batch(batch, verifier)


def verify_batch(batch: Batch, verifier: Verifier) -> list[dict[str, Any]]:
    """Return one row for each line of a batch, as `verify_stream` does."""
    read = [_read(number, line) for number, line in batch]
    judgements = iter(verifier.judge_many([item for _, item, _ in read if item is not None]))
    rows = []
    for identity, item, reason in read:
        if item is None:
            rows.append(_row(identity, Verdict.error, None, reason))
            continue
        judgement = next(judgements)
        rows.append(_row(identity, judgement.verdict, judgement.answer, judgement.reason))
    return rows


def encode_row(row: dict[str, Any]) -> bytes:
    """Encode a row as one line of UTF-8; with escapes where it has lone surrogates, which UTF-8 cannot encode."""
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row).encode() + b"\n"


def parse_object(number: int, line: bytes) -> dict[str, Any]:
    """Parse a line (number from 1) as a JSON object. Invalid UTF-8 is read with replacement characters.

    Raises:
        ValueError: The line is too long, not JSON, nested too deeply, not an object, or repeats a key.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES // 2**20} MiB")
    text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).decode("utf-8", errors="replace")
    try:
        row = json.loads(text, object_pairs_hook=_object_without_repeated_keys, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({str(error)[:200]})") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


def judgeable(row: dict[str, Any]) -> tuple[str, Gold, bool]:
    """Return completion, gold answer, and whether the completion ended by itself.

    Raises:
        ValueError: A field is missing or of another type.
    """
    if not isinstance(row.get("completion"), str):
        raise ValueError("field completion must be text")
    if row.get("answer") is None:
        raise ValueError("field answer is missing")
    finished = row.get("finished", True)
    if not isinstance(finished, bool):
        raise ValueError("field finished must be true or false")
    return row["completion"], row["answer"], finished


def _read(number: int, line: bytes) -> tuple[Any, tuple[str, Gold, bool] | None, str | None]:
    """Return (id, item, None), or (id, None, reason) for a line that cannot be judged."""
    identity = None
    try:
        row = parse_object(number, line)
        identity = _finite(row.get("id"))
        return identity, judgeable(row), None
    except ValueError as error:
        return identity, None, f"line {number}: {error}"


def _object_without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the key {name[:40]!r} appears twice")
        fields[name] = value
    return fields


def _integer(digits: str) -> int | str:
    """Return an integer; as text if Python cannot convert it quickly."""
    return digits if len(digits) > _MAX_INTEGER_DIGITS else int(digits)


def _finite(value: Any) -> Any:
    """Return an id that JSON can encode: NaN and infinities become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_finite(member) for member in value]
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    return value


def _row(identity: Any, verdict: Verdict, extracted: str | None, reason: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": identity,
        "correct": verdict is Verdict.correct,
        "verdict": verdict.value,
        "extracted": extracted,
    }
    return row if reason is None else {**row, "reason": reason}
