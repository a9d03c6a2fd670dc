"""`rloop verify`: JSON lines of completions in, JSON lines of verdicts out, of any length in flat memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from rloop_core.verifier.lines import MAX_LINE_BYTES, Batch, in_batches
from rloop_core.verifier.types import Gold, Verdict
from rloop_core.verifier.verifier import Verifier

_MAX_INTEGER_DIGITS = 4000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def verify_stream(lines: Iterable[bytes], verifier: Verifier) -> Iterator[dict[str, Any]]:
    """Judge `{id, completion, answer}` lines (optionally `finished`), one `{id, correct, verdict, extracted}` each.

    Order is kept and no line is lost: one that cannot be judged gives verdict `error` with a `reason`. Blank lines
    are skipped. Invalid UTF-8 is read with replacement characters. Memory holds one batch of lines.
    """
    for batch in in_batches(lines):
        yield from verify_batch(batch, verifier)


def verify_batch(batch: Batch, verifier: Verifier) -> list[dict[str, Any]]:
    """One row for each line of a batch, as `verify_stream` gives them."""
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
    """A row as one line of UTF-8; with escapes where it holds halves of characters, which UTF-8 cannot carry."""
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row).encode() + b"\n"


def parse_object(number: int, line: bytes) -> dict[str, Any]:
    """A line, counted from 1, as a JSON object. Invalid UTF-8 is read with replacement characters.

    Raises:
        ValueError: Too long, not JSON, nested too deeply, a key given twice, or no object; says which.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES // 2**20} MiB")
    text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).decode("utf-8", errors="replace")
    try:
        row = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({str(error)[:200]})") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


def judgeable(row: dict[str, Any]) -> tuple[str, Gold, bool]:
    """Completion, gold answer, and whether the completion ended by itself.

    Raises:
        ValueError: Names the field that is missing or of another type.
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
    """(id, item, None), or (id, None, reason) for a line that cannot be judged."""
    identity = None
    try:
        row = parse_object(number, line)
        identity = _finite(row.get("id"))
        return identity, judgeable(row), None
    except ValueError as error:
        return identity, None, f"line {number}: {error}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different: of two answers nobody knows which one is meant."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} appears twice")
    return fields


def _integer(digits: str) -> int | str:
    """An integer; one too long for Python to convert quickly stays text."""
    return digits if len(digits) > _MAX_INTEGER_DIGITS else int(digits)


def _finite(value: Any) -> Any:
    """An id that JSON can carry back: NaN and the infinities, which it cannot, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_finite(one) for one in value]
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return value


def _row(identity: Any, verdict: Verdict, extracted: str | None, reason: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": identity,
        "correct": verdict is Verdict.correct,
        "verdict": verdict.value,
        "extracted": extracted,
    }
    return row if reason is None else {**row, "reason": reason}
