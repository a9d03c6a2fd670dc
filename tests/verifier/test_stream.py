"""JSON lines in, JSON lines out."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rloop_core.verifier import Verifier, stream, verify_stream
from rloop_core.verifier.stream import LineReader, verify_batch

pytestmark = pytest.mark.process


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


def test_blank_lines_are_skipped_however_many(verifier: Verifier) -> None:
    rows = [b"\n"] * 2000 + lines({"id": 1, "completion": "\\boxed{7}", "answer": "7"}) + [b"  \n"] * 2000
    assert len(list(verify_stream(rows, verifier))) == 1
    assert list(verify_stream([], verifier)) == []


def test_memory_does_not_grow_with_the_stream(verifier: Verifier) -> None:
    def endless(count: int) -> Iterator[bytes]:
        for i in range(count):
            yield json.dumps({"id": i, "completion": "x" * 5000 + f"\\boxed{{{i}}}", "answer": str(i)}).encode()

    tracemalloc.start()
    try:
        assert sum(row["correct"] for row in verify_stream(endless(4_000), verifier)) == 4_000
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
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
    assert [row.get("reason", "")[:45] for row in verify_stream(rows, verifier)] == [
        "line 1: not valid JSON (Expecting property na",
        "line 2: not valid JSON (the key 'id' appears ",
        "line 3: field answer is missing",
        "the list of gold answers is empty",
        "the gold has an exponent above 100000",
        "the answer has an exponent above 100000",
        "",
    ]


def reader_of(content: bytes, tmp_path: Path) -> LineReader:
    path = tmp_path / "lines"
    path.write_bytes(content)
    return LineReader(open(path, "rb"))


def test_lines_of_a_file(tmp_path: Path) -> None:
    content = b"".join(b"%d\n" % i for i in range(2000)) + b"\n\nlast"
    reader = reader_of(content, tmp_path)
    batches = list(reader.batches())
    assert [len(batch) for batch in batches] == [512, 512, 512, 465]
    assert [line for batch in batches for line in batch] == [
        *((i + 1, b"%d" % i) for i in range(2000)),
        (2003, b"last"),
    ]
    assert reader.bytes_read == reader.size == len(content)
    assert list(LineReader(io.BytesIO(content)).batches()) == batches
    assert list(reader_of(b"", tmp_path).batches()) == []


def test_a_line_beyond_the_limit_is_one_error_and_little_memory(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_LINE_BYTES", 3 * 2**20)
    fine = b'{"id": 1, "completion": "\\\\boxed{7}", "answer": "7"}'
    reader = reader_of(fine + b"\n" + b"x" * (30 * 2**20) + b"\n" + fine, tmp_path)
    tracemalloc.start()
    try:
        rows = [row for batch in reader.batches() for row in verify_batch(batch, verifier)]
        assert tracemalloc.get_traced_memory()[1] < 15 * 2**20
    finally:
        tracemalloc.stop()
    assert [row["verdict"] for row in rows] == ["correct", "error", "correct"]
    assert rows[1]["reason"] == "line 2: longer than 3 MiB"


def test_a_pause_of_the_input_ends_the_batch() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as stream_in, open(writing, "wb", buffering=0) as out:
        batches = LineReader(stream_in).batches()
        out.write(b"one\ntwo\nthr")
        assert next(batches) == [(1, b"one"), (2, b"two")]
        out.write(b"ee\n")
        assert next(batches) == [(3, b"three")]
        out.close()
        assert list(batches) == []
