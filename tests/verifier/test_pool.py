"""Hangs, crashes, threads, forks and kills: a bad item costs only its own verdict, no process outlives its owner."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rloop_core.verifier import Verdict, Verifier
from rloop_core.verifier.compare.answers import compare
from rloop_core.verifier.limits import beyond_limits
from rloop_core.verifier.read.answers import read_answer
from rloop_core.verifier.workers import pool
from tests.processes import descendants, still_running

# Passes the limits and keeps sympy busy far beyond any limit here.
HANGS = "\\int \\frac{\\sin x}{x^5+\\cos x} dx"
HANGS_TOO = "\\int \\frac{\\sin x}{x^%d+\\cos x} dx"
EQUAL = ("\\boxed{\\sin^2 x+\\cos^2 x}", "1", True)


def good(i: int) -> tuple[str, str, bool]:
    """Return a pair that only the engine can decide."""
    return f"\\boxed{{{i}\\sin^2 x+{i}\\cos^2 x}}", f"{i}", True


def test_the_pairs_of_this_file_need_a_worker() -> None:
    for answer, gold in (
        ("\\sin^2 x+\\cos^2 x", "1"),
        ("2\\sin^2 x+2\\cos^2 x", "2"),
        (HANGS, "7"),
        (HANGS_TOO % 5, "7"),
    ):
        assert compare(answer, gold) is None and beyond_limits(read_answer(answer)) is None


pytestmark = pytest.mark.process


def wait_until(true: Callable[[], bool], seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return true()


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=1, timeout=0.5) as verifier:
        yield verifier


def processes() -> set[int]:
    """Return the workers of this process, busy or idle: the children of its template."""
    template = pool._template
    return descendants(template.process.pid) if template else set()


def started_by(verifier: Verifier) -> psutil.Process:
    """Have a fresh verifier judge a pair, and return the worker that it started for it."""
    others = processes()
    assert verifier.judge(*EQUAL[:2]).verdict is Verdict.correct
    (worker,) = processes() - others
    return psutil.Process(worker)


def when_busy(sent: signal.Signals, times: int) -> threading.Thread:
    """Send a signal to the workers of this process when one of them computes; repeat that many times."""

    def work() -> None:
        seen: set[int] = set()
        for _ in range(times):
            assert wait_until(lambda: any(cpu_seconds(pid) > 0.2 for pid in processes() - seen))
            for pid in processes() - seen:
                seen.add(pid)
                os.kill(pid, sent)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def test_a_hang_is_a_timeout_each_time_and_its_neighbours_are_judged(verifier: Verifier) -> None:
    hang = f"\\boxed{{{HANGS}}}"
    items = [good(2), (hang, "7", True), good(3)]
    assert [judgement.verdict for judgement in verifier.judge_many(items)] == [
        Verdict.correct,
        Verdict.timeout,
        Verdict.correct,
    ]
    started = time.perf_counter()
    assert verifier.judge(hang, "7").verdict is Verdict.timeout
    assert time.perf_counter() - started > 0.4, "a timeout is not kept"


def test_a_pair_whose_worker_is_killed_is_tried_once_more() -> None:
    items = [good(4), (f"\\boxed{{{HANGS}}}", "7", True), good(5), good(6)]
    for kills, expected in ((1, Verdict.timeout), (2, Verdict.error)):
        with Verifier(timeout=1.0) as verifier:
            killer = when_busy(signal.SIGKILL, kills)
            judged = verifier.judge_many(items)
            killer.join()
        assert [judgement.verdict for judgement in judged] == [
            Verdict.correct,
            expected,
            Verdict.correct,
            Verdict.correct,
        ]
    assert judged[1].reason == "the comparison lost its process twice (SIGKILL)"


def test_a_worker_that_stands_still_is_a_timeout_on_the_clock() -> None:
    items = [good(16), (f"\\boxed{{{HANGS}}}", "7", True), good(17)]
    with Verifier(timeout=0.5) as verifier:
        stopper = when_busy(signal.SIGSTOP, 1)
        judged = verifier.judge_many(items)
        stopper.join()
    assert [judgement.verdict for judgement in judged] == [Verdict.correct, Verdict.timeout, Verdict.correct]
    assert judged[1].reason == "the comparison was stopped after 2 s on the clock"


def test_a_killed_idle_worker_costs_nothing(verifier: Verifier) -> None:
    verifier.judge(*EQUAL[:2])
    verifier.judge(*good(7)[:2])
    for worker in processes():
        os.kill(worker, signal.SIGKILL)
    assert verifier.judge(*good(10)[:2]).verdict is Verdict.correct


def test_a_killed_template_is_replaced(verifier: Verifier) -> None:
    verifier.judge(*good(12)[:2])
    template = pool._template
    assert template is not None
    os.kill(template.process.pid, signal.SIGKILL)
    assert wait_until(lambda: not processes())  # its workers go with it
    assert verifier.judge(*good(13)[:2]).verdict is Verdict.correct


def test_a_flood_of_hangs_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_MAX_TIMEOUTS", 2)
    flood = [(f"\\boxed{{{HANGS_TOO % (5 + i)}}}", "7", True) for i in range(10)]
    with Verifier(workers=2, timeout=0.5) as verifier:
        judged = verifier.judge_many([good(8), *flood])
    assert [judgement.verdict for judgement in judged] == [Verdict.correct, *[Verdict.timeout] * 10]
    reasons = [judgement.reason for judgement in judged[1:]]
    full = {"the comparison was stopped after 0.5 s", "the comparison was stopped after 2 s on the clock"}
    assert sum(reason in full for reason in reasons) in range(2, 5)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="cannot take another process's memory away")
def test_a_worker_without_memory_costs_no_verdict() -> None:
    with Verifier() as verifier:
        worker = started_by(verifier)
        status = Path(f"/proc/{worker.pid}/status").read_text()
        size = int(next(line for line in status.splitlines() if line.startswith("VmSize")).split()[1]) * 1024
        resource.prlimit(worker.pid, resource.RLIMIT_AS, (size, size))
        judged = verifier.judge_many([good(100), (good(101)[0], "7", True), good(102)])
        assert [judgement.verdict for judgement in judged] == [Verdict.correct, Verdict.wrong, Verdict.correct]
        assert not still_running([worker])  # it ran out, and another took over


def test_from_several_threads_at_once(verifier: Verifier) -> None:
    verdicts: list[Verdict] = []

    def work(offset: int) -> None:
        verdicts.extend(judgement.verdict for judgement in verifier.judge_many([good(offset + i) for i in range(5)]))

    threads = [threading.Thread(target=work, args=(20 + 10 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [Verdict.correct] * 20
    assert verifier.judge(*good(90)[:2]).verdict is Verdict.correct  # workers outlive the threads that used them


def test_a_forgotten_verifier_leaves_no_process() -> None:
    forgotten = Verifier()
    process = started_by(forgotten)
    del forgotten
    gc.collect()
    assert wait_until(lambda: not process.is_running())  # not even as a zombie


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
    with Verifier(memory_mb=512) as verifier:
        worker = started_by(verifier)
        limits = Path(f"/proc/{worker.pid}/limits").read_text()
    row = next(line for line in limits.splitlines() if line.startswith("Max address space"))
    assert str(512 * 2**20) in row
    row = next(line for line in limits.splitlines() if line.startswith("Max file size"))
    assert row.split()[3] == "0"


SCRIPT = textwrap.dedent(
    """
    import sys
    from rloop_core.verifier import Verifier  # and no main guard: workers must not run this file again
    idle, busy = Verifier(timeout=600), Verifier(timeout=600)
    for verifier in (idle, busy):
        print(verifier.judge("\\\\boxed{\\\\sin^2 x+\\\\cos^2 x}", "1").verdict.value, flush=True)
    if len(sys.argv) > 1:
        busy.judge("\\\\boxed{%s}" % sys.argv[1], "7")
    """
)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the script in a new process, where importing gmpy2 fails: with gmpy2 a power tower aborts the process."""
    (tmp_path / "gmpy2.py").write_text("raise SystemExit('gmpy2 was imported')\n")
    script = tmp_path / "unguarded.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
    )


def test_an_owner_that_closes_nothing_still_ends_and_no_gmpy2_is_in_its_workers(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert process.communicate(timeout=180)[0] == b"correct\ncorrect\n"
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_idle_or_busy_survives_a_kill_of_the_owner(tmp_path: Path) -> None:
    process = start(tmp_path, HANGS)
    assert process.stdout and [process.stdout.readline() for _ in range(2)] == [b"correct\n"] * 2
    before = {pid: cpu_seconds(pid) for pid in descendants(process.pid)}
    processes = [psutil.Process(pid) for pid in before]
    assert len(processes) == 3, "the template, an idle worker and a busy one"
    assert wait_until(lambda: any(cpu_seconds(pid) > spent + 0.2 for pid, spent in before.items()))
    process.kill()
    process.wait()
    assert still_running(processes) == []


RANK = textwrap.dedent(
    """
    import sys
    import torch.distributed as dist
    from rloop_core.verifier import Verifier

    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
    with Verifier(timeout=60) as verifier:
        for i in range(2, 8):
            judged = verifier.judge_many([(f"\\\\boxed{{{i}\\\\sin^2 x+{i}\\\\cos^2 x}}", f"{i}", True)])
            agreed = [None, None]
            dist.all_gather_object(agreed, judged[0].verdict.value)
            assert agreed == ["correct", "correct"], agreed
    dist.destroy_process_group()
    """
)


@pytest.mark.long
def test_each_rank_of_a_distributed_run_has_its_own_workers(tmp_path: Path) -> None:
    """The same as for a forked child, beside the threads of torch.distributed."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "meeting"), str(rank)],
            stderr=subprocess.PIPE,
            env=environment,
            cwd=tmp_path,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=180)
        assert rank.returncode == 0, errors.decode()


def test_workers_that_cannot_start_are_one_clear_error(tmp_path: Path) -> None:
    broken = tmp_path / "sympy"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('broken')\n")
    code = "from rloop_core.verifier import judge; judge('\\\\boxed{\\\\sin^2 x+\\\\cos^2 x}', '1')"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert "verifier: the comparison workers do not start: ImportError: broken (fix: " in last
