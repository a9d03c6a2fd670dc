"""`rloop verify`: JSON lines of completions in, JSON lines of verdicts out, of any length in flat memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from rloop_core.verifier.types import Gold, Verdict
from rloop_core.verifier.verifier import Verifier

_BATCH_LINES = 512
_BATCH_BYTES = 32 * 2**20


def verify_stream(lines: Iterable[bytes], verifier: Verifier) -> Iterator[dict[str, Any]]:
    """Judge `{id, completion, answer}` lines (optionally `finished`), one `{id, correct, verdict, extracted}` each.

    Order is kept and no line is lost: one that cannot be judged gives verdict `error` with a `reason`. Blank lines
    are skipped. Invalid UTF-8 is read with replacement characters. Memory holds one batch of lines.
    """
    numbered = iter(enumerate(lines, start=1))
    while (batch := _batch(numbered)) is not None:
        read = [_read(number, line) for number, line in batch]
        judgements = iter(verifier.judge_many([item for _, item, _ in read if item is not None]))
        for identity, item, reason in read:
            if item is None:
                yield _row(identity, Verdict.error, None, reason)
                continue
            judgement = next(judgements)
            why = "the gold answer is unusable or the comparison failed" if judgement.verdict is Verdict.error else None
            yield _row(identity, judgement.verdict, judgement.answer, why)


def _batch(numbered: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]] | None:
    """The next lines that are not blank, up to a count and a size; None at the end."""
    batch: list[tuple[int, bytes]] = []
    size = number = 0
    for number, line in islice(numbered, _BATCH_LINES):
        size += len(line)
        if line.strip():
            batch.append((number, line))
        if size > _BATCH_BYTES:
            break
    return batch if number else None


def _read(number: int, line: bytes) -> tuple[Any, tuple[str, Gold, bool] | None, str | None]:
    """(id, item, None), or (id, None, reason) for a line that cannot be judged."""
    try:
        row = json.loads(line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        return None, None, f"line {number}: not valid JSON ({str(error)[:200]})"
    if not isinstance(row, dict):
        return None, None, f"line {number}: not a JSON object"
    identity, completion = row.get("id"), row.get("completion")
    if not isinstance(completion, str):
        return identity, None, f"line {number}: field completion must be text"
    if row.get("answer") is None:
        return identity, None, f"line {number}: field answer is missing"
    finished = row.get("finished", True)
    if not isinstance(finished, bool):
        return identity, None, f"line {number}: field finished must be true or false"
    return identity, (completion, row["answer"], finished), None


def _row(identity: Any, verdict: Verdict, extracted: str | None, reason: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": identity,
        "correct": verdict is Verdict.correct,
        "verdict": verdict.value,
        "extracted": extracted,
    }
    return row if reason is None else {**row, "reason": reason}
