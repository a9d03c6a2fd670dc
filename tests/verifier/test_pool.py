"""Hangs, crashes, threads, forks and kills: a bad item costs its own verdict, no process outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rloop_core.verifier import Verdict, Verifier

# Passes the limits and keeps sympy busy far beyond any limit here.
HANGS = "\\prod_{k=1}^{100000} (k+\\sqrt{k})"
EQUAL = ("\\boxed{\\sqrt{8}}", "2\\sqrt{2}", True)


def good(i: int) -> tuple[str, str, bool]:
    return f"\\boxed{{\\sqrt{{{4 * i}}}}}", f"2\\sqrt{{{i}}}", True


def wait_until(true: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return true()


def descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    while grown := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= grown
    return found


def alive(pids: set[int]) -> set[int]:
    left = set()
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                left.add(pid)
        except OSError:
            continue
    return left


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=1, timeout=1.0) as one:
        yield one


def workers_of(verifier: Verifier) -> list[int]:
    return list(verifier._pool._pool._pool_manager.worker_manager.workers)


def test_a_hang_is_a_timeout_and_its_neighbours_are_judged(verifier: Verifier) -> None:
    items = [good(2), (f"\\boxed{{{HANGS}}}", "7", True), good(3)]
    assert [one.verdict for one in verifier.judge_many(items)] == [
        Verdict.correct,
        Verdict.timeout,
        Verdict.correct,
    ]


def test_a_timeout_is_not_cached(verifier: Verifier) -> None:
    hang = f"\\boxed{{{HANGS}}}"
    verifier.judge(hang, "7")
    started = time.perf_counter()
    assert verifier.judge(hang, "7").verdict is Verdict.timeout
    assert time.perf_counter() - started > 0.5


def test_a_killed_busy_worker_costs_one_verdict() -> None:
    with Verifier(timeout=30) as own:
        own.judge(*EQUAL[:2])
        (worker,) = workers_of(own)
        threading.Timer(0.5, os.kill, (worker, signal.SIGKILL)).start()
        items = [(f"\\boxed{{{HANGS}}}", "7", True), good(5), good(6)]
        assert [one.verdict for one in own.judge_many(items)] == [
            Verdict.error,
            Verdict.correct,
            Verdict.correct,
        ]


def test_a_killed_idle_worker_costs_nothing(verifier: Verifier) -> None:
    verifier.judge(*EQUAL[:2])
    verifier.judge(*good(7)[:2])
    for worker in workers_of(verifier):
        os.kill(worker, signal.SIGKILL)
    assert verifier.judge(*good(10)[:2]).verdict is Verdict.correct
    time.sleep(0.5)
    assert verifier.judge(*good(11)[:2]).verdict is Verdict.correct


def test_from_several_threads_at_once(verifier: Verifier) -> None:
    verdicts: list[Verdict] = []

    def work(offset: int) -> None:
        verdicts.extend(one.verdict for one in verifier.judge_many([good(offset + i) for i in range(5)]))

    threads = [threading.Thread(target=work, args=(20 + 10 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [Verdict.correct] * 20
    assert verifier.judge(*good(90)[:2]).verdict is Verdict.correct  # workers outlive the threads that used them


def test_no_signal_of_the_caller_is_touched(verifier: Verifier) -> None:
    previous = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(100)
    try:
        handler = signal.getsignal(signal.SIGALRM)
        verifier.judge(*good(91)[:2])
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.alarm(0) > 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def test_a_forked_child_starts_its_own_workers(verifier: Verifier) -> None:
    verifier.judge(*good(92)[:2])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if verifier.judge(*good(93)[:2]).verdict is Verdict.correct else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert verifier.judge(*good(94)[:2]).verdict is Verdict.correct


def test_worker_memory_is_limited() -> None:
    with Verifier(memory_mb=512) as own:
        own.judge(*EQUAL[:2])
        (worker,) = workers_of(own)
        limits = Path(f"/proc/{worker}/limits").read_text()
    row = next(line for line in limits.splitlines() if line.startswith("Max address space"))
    assert str(512 * 2**20) in row


SCRIPT = textwrap.dedent(
    """
    import sys
    from rloop_core.verifier import Verifier  # and no main guard: workers must not run this file again
    one = Verifier(timeout=60)
    print(one.judge("\\\\boxed{\\\\sqrt{8}}", "2\\\\sqrt{2}").verdict.value, flush=True)
    if sys.argv[1] == "busy":
        one.judge("\\\\boxed{%s}" % sys.argv[2], "7")
    if sys.argv[1] == "idle":
        sys.stdin.read()
    """
)


def start(tmp_path: Path, mode: str) -> subprocess.Popen[bytes]:
    script = tmp_path / "unguarded.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, str(script), mode, HANGS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"correct\n"
    return process


def test_an_owner_that_closes_nothing_still_ends(tmp_path: Path) -> None:
    process = start(tmp_path, "leave")
    assert process.wait(timeout=20) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("mode", ["idle", "busy"])
def test_no_process_survives_a_kill_of_the_owner(tmp_path: Path, mode: str) -> None:
    process = start(tmp_path, mode)
    if mode == "busy":
        time.sleep(1.0)
    family = descendants(process.pid)
    assert len(family) >= 2
    process.kill()
    process.wait()
    assert wait_until(lambda: not alive(family)), alive(family)


def test_workers_that_cannot_start_are_one_clear_error(tmp_path: Path) -> None:
    broken = tmp_path / "math_verify"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('broken')\n")
    code = "from rloop_core.verifier import judge; judge('\\\\boxed{\\\\sqrt{8}}', '2\\\\sqrt{2}')"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert "verifier: the comparison workers do not start (fix: " in run.stderr.splitlines()[-1]
