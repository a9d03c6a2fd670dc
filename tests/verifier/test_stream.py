"""JSON lines in, JSON lines out."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rloop_core.verifier import Verifier, stream
from rloop_core.verifier.stream import read_batches, verify_batch

pytestmark = pytest.mark.process


def lines(*rows: Any) -> list[bytes]:
    return [row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows]


def verified(rows: list[bytes], verifier: Verifier) -> list[dict[str, Any]]:
    batches = read_batches(io.BytesIO(b"".join(rows)))
    return [row for batch in batches for row in verify_batch(batch, verifier)]


def test_rows_keep_their_order_and_ids(verifier: Verifier) -> None:
    rows = lines(
        {"id": "a", "completion": "\\boxed{7}", "answer": "7"},
        {"id": 2, "completion": "\\boxed{\\sqrt{8}}", "answer": "2\\sqrt{2}"},
        {"completion": "hm", "answer": 7},
        {"id": "d", "completion": "\\boxed{7}", "answer": ["6", 7.0]},
        {"id": "e", "completion": "\\boxed{7}", "answer": "7", "finished": False},
    )
    assert verified(rows, verifier) == [
        {"id": "a", "correct": True, "verdict": "correct", "extracted": "7"},
        {"id": 2, "correct": True, "verdict": "correct", "extracted": "\\sqrt{8}"},
        {"id": None, "correct": False, "verdict": "no_answer", "extracted": None},
        {"id": "d", "correct": True, "verdict": "correct", "extracted": "7"},
        {"id": "e", "correct": False, "verdict": "truncated", "extracted": "7"},
    ]


def test_blank_lines_are_skipped_however_many(verifier: Verifier) -> None:
    rows = [b"\n"] * 2000 + lines({"id": 1, "completion": "\\boxed{7}", "answer": "7"}) + [b"  \n"] * 2000
    assert len(verified(rows, verifier)) == 1
    assert verified([], verifier) == []


def test_memory_does_not_grow_with_the_stream(verifier: Verifier, tmp_path: Path) -> None:
    row = {"completion": "x" * 5000 + "\\boxed{7}", "answer": "7"}
    (tmp_path / "lines").write_bytes(b"".join(lines(row)) * 6_000)
    tracemalloc.start()
    try:
        with open(tmp_path / "lines", "rb") as source:
            correct = [row["correct"] for batch in read_batches(source) for row in verify_batch(batch, verifier)]
        assert correct == [True] * 6_000
        assert tracemalloc.get_traced_memory()[1] < 15 * 2**20
    finally:
        tracemalloc.stop()


def test_each_reason_says_what_is_wrong(verifier: Verifier) -> None:
    box = "\\boxed{7}"
    rows = lines(
        b"{\n",
        b'{"id": 1, "id": 2}\n',
        {"completion": box},
        {"completion": box, "answer": []},
        {"completion": box, "answer": "9^{9^9}"},
        {"completion": "\\boxed{9^{9^9}}", "answer": "7"},
        {"completion": box, "answer": "8"},
    )
    assert [row.get("reason", "")[:45] for row in verified(rows, verifier)] == [
        "line 1: not valid JSON (Expecting property na",
        "line 2: not valid JSON (the key 'id' appears ",
        "line 3: field answer is missing",
        "the list of gold answers is empty",
        "the gold has an exponent above 100000",
        "the answer has an exponent above 100000",
        "",
    ]


def test_lines_of_a_file(tmp_path: Path) -> None:
    content = b"".join(b"%d\n" % i for i in range(500_000)) + b"\n\nlast"
    (tmp_path / "lines").write_bytes(content)
    with open(tmp_path / "lines", "rb") as source:
        batches = list(read_batches(source))
    assert len(batches) > 1
    assert [line for batch in batches for line in batch] == [
        *((i + 1, b"%d" % i) for i in range(500_000)),
        (500_003, b"last"),
    ]
    assert list(read_batches(io.BytesIO(content))) == batches
    assert list(read_batches(io.BytesIO(b""))) == []


def test_a_line_beyond_the_limit_is_one_error_and_little_memory(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_LINE_BYTES", 3 * 2**20)
    fine = b'{"id": 1, "completion": "\\\\boxed{7}", "answer": "7"}'
    (tmp_path / "lines").write_bytes(fine + b"\n" + b"x" * (30 * 2**20) + b"\n" + fine)
    tracemalloc.start()
    try:
        with open(tmp_path / "lines", "rb") as source:
            rows = [row for batch in read_batches(source) for row in verify_batch(batch, verifier)]
        assert tracemalloc.get_traced_memory()[1] < 15 * 2**20
    finally:
        tracemalloc.stop()
    assert [row["verdict"] for row in rows] == ["correct", "error", "correct"]
    assert rows[1]["reason"] == "line 2: longer than 3 MiB"


def test_a_pause_of_the_input_ends_the_batch() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as stream_in, open(writing, "wb", buffering=0) as out:
        batches = read_batches(stream_in)
        out.write(b"one\ntwo\nthr")
        assert next(batches) == [(1, b"one"), (2, b"two")]
        out.write(b"ee\n")
        assert next(batches) == [(3, b"three")]
        out.close()
        assert list(batches) == []
