"""JSON lines in, JSON lines out."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from rloop_core.verifier import Verifier, verify_stream


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier() as one:
        yield one


def lines(*rows: Any) -> list[bytes]:
    return [row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows]


def test_rows_keep_their_order_and_ids(verifier: Verifier) -> None:
    rows = lines(
        {"id": "a", "completion": "\\boxed{7}", "answer": "7"},
        {"id": 2, "completion": "\\boxed{\\sqrt{8}}", "answer": "2\\sqrt{2}"},
        {"completion": "hm", "answer": 7},
        {"id": "d", "completion": "\\boxed{7}", "answer": ["6", 7.0]},
        {"id": "e", "completion": "\\boxed{7}", "answer": "7", "finished": False},
    )
    assert list(verify_stream(rows, verifier)) == [
        {"id": "a", "correct": True, "verdict": "correct", "extracted": "7"},
        {"id": 2, "correct": True, "verdict": "correct", "extracted": "\\sqrt{8}"},
        {"id": None, "correct": False, "verdict": "no_answer", "extracted": None},
        {"id": "d", "correct": True, "verdict": "correct", "extracted": "7"},
        {"id": "e", "correct": False, "verdict": "truncated", "extracted": "7"},
    ]


def test_bad_lines_give_a_reason_in_place(verifier: Verifier) -> None:
    fine = {"id": "ok", "completion": "\\boxed{7}", "answer": "7"}
    bad = [
        b"{not json\n",
        b"[1, 2]\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"\x00\n",
        b"9" * 10_000 + b"\n",
        {"id": "x", "answer": "7"},
        {"id": "x", "completion": 7, "answer": "7"},
        {"id": "x", "completion": "\\boxed{7}"},
        {"id": "x", "completion": "\\boxed{7}", "answer": {}},
        {"id": "x", "completion": "\\boxed{7}", "answer": ""},
        {"id": "x", "completion": "\\boxed{7}", "answer": "7", "finished": "yes"},
    ]
    for one in bad:
        first, second, third = verify_stream(lines(fine, one, fine), verifier)
        assert first["correct"]
        assert third["correct"]
        assert second["verdict"] == "error"
        assert second["reason"]
        json.dumps(second)


def test_invalid_utf8_inside_a_completion_is_still_judged(verifier: Verifier) -> None:
    line = b'{"id": 1, "completion": "\xff\xfe \\\\boxed{7}", "answer": "7"}\n'
    assert next(verify_stream([line], verifier))["correct"]


def test_blank_lines_are_skipped_however_many(verifier: Verifier) -> None:
    rows = [b"\n"] * 2000 + lines({"id": 1, "completion": "\\boxed{7}", "answer": "7"}) + [b"  \n"] * 2000
    assert len(list(verify_stream(rows, verifier))) == 1
    assert list(verify_stream([], verifier)) == []


def test_memory_does_not_grow_with_the_stream(verifier: Verifier) -> None:
    def endless(count: int) -> Iterator[bytes]:
        for i in range(count):
            yield json.dumps({"id": i, "completion": "x" * 2000 + f"\\boxed{{{i}}}", "answer": str(i)}).encode()

    tracemalloc.start()
    try:
        assert sum(row["correct"] for row in verify_stream(endless(10_000), verifier)) == 10_000
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
