"""Hostile inputs among good ones: every verdict right, no hang, no crash, bounded memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rloop_core.verifier import Verifier
from rloop_core.verifier.compare.answers import compare
from tests.processes import descendants
from tests.verifier import hostile_inputs

GIB_KB = 2**20
pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@contextmanager
def peaks_of(pid: int) -> Iterator[dict[int, int]]:
    """Sample the peak resident KiB of every new descendant process, by pid, ten times a second."""
    peaks: dict[int, int] = {}
    earlier = descendants(pid)  # fork servers of other tests
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for child in descendants(pid) - earlier:
                try:
                    status = Path(f"/proc/{child}/status").read_text()
                except OSError:
                    continue
                row = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
                if row:
                    peaks[child] = max(peaks.get(child, 0), int(row.split()[1]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        stop.set()
        watcher.join()


@pytest.mark.parametrize(("hostile", "good"), [(230, 300), pytest.param(1000, 10_000, marks=pytest.mark.long)])
def test_hostile_among_good_through_the_api(hostile: int, good: int) -> None:
    """At least one of each: 61 wrappings, long texts and golds, and 167 formulas."""
    cases = hostile_inputs.hostile_cases(hostile) + hostile_inputs.good_cases(good, engine_share=0.05)
    random.Random(5).shuffle(cases)
    assert compare("3\\sin^2 x+3\\cos^2 x+4", "7") is None  # so the share of the good cases does need the engine
    with peaks_of(os.getpid()) as peaks, Verifier(workers=2, timeout=1.0) as verifier:
        judged = verifier.judge_many([(case.completion, case.gold, True) for case in cases])
    bad = [
        (judgement.verdict.value, case.completion[:100], str(case.gold)[:100])
        for case, judgement in zip(cases, judged, strict=True)
        if judgement.verdict.value not in case.verdicts
    ]
    assert not bad
    assert all(judgement.reason for judgement in judged if judgement.verdict.value in ("timeout", "error"))
    assert peaks and max(peaks.values()) < GIB_KB


GOOD = b'{"id": "good", "completion": "so \\\\boxed{\\\\sqrt{8}}", "answer": "2\\\\sqrt{2}"}'
BAD_LINES = [
    b"\xff\xfe\x00\x01", b"\x00", b"nonsense", b"{", b"[" * 200_000, b'{"a":' * 50_000, b"9" * 10_000, b'"text"',
    b"null", b"NaN", b"[]", b"{}",
    b'{"id": 1, "completion": "\\\\boxed{7}", "completion": "\\\\boxed{8}", "answer": "7"}',
    b'{"id": 1, "completion": "\\\\boxed{7}", "answer": NaN}',
    b'{"id": 1, "completion": "\\\\boxed{7}", "answer": -Infinity}',
    b'{"id": 1, "completion": "\\\\boxed{7}", "answer": 1e999}',
    b'{"id": 1, "completion": "\\\\boxed{7}", "answer": {"a": 7}}',
    b'{"id": 1, "completion": "\\\\boxed{7}", "answer": [[7]]}',
    b'{"id": 1, "completion": "\\\\boxed{7}", "answer": true}',
    b'{"id": 1, "completion": "\\\\boxed{7}", "answer": ""}',
    b'{"id": 1, "completion": ["\\\\boxed{7}"], "answer": "7"}', b'{"id": 1, "completion": null, "answer": "7"}',
    b'{"id": 1, "completion": "\\\\boxed{7}", "answer": "7", "finished": 1}', b'{"id": 1, "answer": "7"}',
    b'{"id": 1, "completion": "\\\\boxed{7}"}', b'{"id": 1, "completion": "\\\\boxed{7}", "answer": "7"',
    b'{"id": 1, "completion": "' + b"x" * (70 * 2**20) + b'\\\\boxed{7}", "answer": "7"}',
]  # fmt: skip
ODD_IDS = [
    (b'"\\ud800"', "\ud800"), (b'"\\u0000\\n"', "\x00\n"), (b"9" * 5000, "9" * 5000), (b"[1, {}]", [1, {}]),
    (b"Infinity", "inf"), (b"NaN", "nan"), (b"-0.0", -0.0), ('"\u202e7"'.encode(), "\u202e7"), (b'"\xff"', "\ufffd"),
]  # fmt: skip


@pytest.mark.long
def test_hostile_lines_through_the_command(tmp_path: Path) -> None:
    cases = [case for case in hostile_inputs.hostile_cases(500) if len(str(case.gold)) < 10**6]
    lines, expected = [b"\xef\xbb\xbf" + GOOD + b"\r\n"], [("good", {"correct"})]
    for index, case in enumerate(cases):
        row = {"id": index, "completion": case.completion, "answer": case.gold}
        lines.append(json.dumps(row).encode() + b"\n")
        # JSON cannot tell a missing gold of a completion without an answer apart: the line is bad either way.
        expected.append((index, case.verdicts | ({"error"} if case.gold is None else set())))
        bad = BAD_LINES[index % len(BAD_LINES)] if index < len(BAD_LINES) else b"{" * (index % 90 + 1)
        lines += [bad + b"\n", GOOD + b"\n", b"  \r\n"]
        expected += [(None, {"error"}), ("good", {"correct"})]
    lines.append(GOOD.replace(b"so ", b"\xff\xfe so ") + b"\n")
    lines.append(b'{"id": "odd", "completion": "\\\\boxed{\\udfff}", "answer": "7"}\n')
    expected += [("good", {"correct"}), ("odd", {"wrong"})]
    for written, read in ODD_IDS:
        lines.append(GOOD.replace(b'"good"', written) + b"\n")
        expected.append((read, {"correct"}))
    lines[-1] = lines[-1].rstrip(b"\n")
    source = tmp_path / "lines.jsonl"
    source.write_bytes(b"".join(lines))
    with open(source, "rb") as stdin, open(tmp_path / "out", "wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "rloop_core", "verify", "--workers", "2", "--timeout", "0.5"],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        with peaks_of(os.getpid()) as peaks:
            _, errors = process.communicate()
    assert process.returncode == 0 and errors == b""
    rows = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert len(rows) == len(expected)
    for row, (identity, verdicts) in zip(rows, expected, strict=True):
        assert row["verdict"] in verdicts and row["correct"] == (row["verdict"] == "correct"), (row, verdicts)
        assert row["id"] == identity or (identity is None and row["id"] == 1), row
        assert row["verdict"] not in ("error", "timeout") or row["reason"]
    workers = {pid: peak for pid, peak in peaks.items() if pid != process.pid}
    assert max(workers.values()) < GIB_KB
