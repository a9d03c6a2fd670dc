"""A stage's process tree ends with the stage, with its run, and when its time is over."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from rloop_core.errors import StageCrashed, StageError
from rloop_core.runtime.orphans import unmarked_environment
from rloop_core.runtime.supervisor import supervise
from rloop_core.stages.job import StageJob
from rloop_core.stages.process import run_in_process, start_fork_server
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Store
from tests.conftest import small_config
from tests.processes import still_running

pytestmark = pytest.mark.process


def _stage_with_grandchildren(folder: Path) -> int:
    """A stage that starts a child in a session of its own, which ignores SIGTERM, and then hangs."""
    hang = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", hang], start_new_session=True)
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
    return 0


def _short_stage(folder: Path) -> int:
    """A stage that ends before its child, which the cleanup of orphans by other runs does not know either."""
    hang = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(hang, start_new_session=True, env=unmarked_environment())
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
    print("said by the stage")
    return 3


def _start(
    stage: Callable[[Path], int], folder: Path
) -> tuple[multiprocessing.Process, Connection, list[psutil.Process]]:
    context = multiprocessing.get_context("fork")
    theirs, control = context.Pipe(duplex=False)
    process = context.Process(target=_supervise, args=(stage, folder, theirs, control))
    process.start()
    theirs.close()
    deadline = time.monotonic() + 20
    while not (folder / "pids").exists() or not (folder / "pids").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    below = [psutil.Process(int(pid)) for pid in (folder / "pids").read_text().split() if psutil.pid_exists(int(pid))]
    return process, control, below  # type: ignore[return-value]


def _supervise(stage: Callable[[Path], int], folder: Path, theirs: Connection, ours: Connection) -> None:
    ours.close()
    supervise(lambda: stage(folder), theirs, folder / "log")


def _stages_running() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "rloop-explore" in child.name()]


def test_closing_the_runs_end_ends_grandchildren_in_their_own_sessions(tmp_path: Path) -> None:
    process, control, below = _start(_stage_with_grandchildren, tmp_path)
    assert len(below) == 2
    control.close()
    process.join(60)
    assert not still_running(below)
    assert process.exitcode not in (0, None)


def test_kill_9_of_the_supervisor_takes_the_stage_with_it(tmp_path: Path) -> None:
    process, control, below = _start(_stage_with_grandchildren, tmp_path)
    process.kill()
    process.join(60)
    assert not still_running(below[:1])
    for grandchild in below[1:]:
        grandchild.kill()
    control.close()


def test_what_a_finished_stage_leaves_running_is_ended_and_its_exit_code_kept(tmp_path: Path) -> None:
    process, control, below = _start(_short_stage, tmp_path)
    process.join(60)
    control.close()
    assert process.exitcode == 3
    assert not still_running(below)
    assert "said by the stage" in (tmp_path / "log").read_text()


@pytest.fixture
def job(tmp_path: Path) -> StageJob:
    """A real exploration of many RL steps."""
    config = small_config(explore={"steps": 500}, placement={"store": str(tmp_path / "store")})
    runner = StageRunner(config, Store(config.placement.store), None)
    return runner._job("explore", 0, runner.inputs.of("explore", 0), tmp_path / "work")


def test_a_stage_that_runs_too_long_is_ended_with_the_setting_named(job: StageJob) -> None:
    with pytest.raises(StageError, match=r"ran longer than 0 s \(placement.stage_timeout_minutes\)"):
        run_in_process(job, lambda event: None, timeout_seconds=0.3)


def test_a_stage_that_stands_still_is_ended_as_a_crash_that_is_worth_another_try(job: StageJob) -> None:
    with pytest.raises(StageCrashed, match=r"made no progress for 0 s \(placement.stage_stall_minutes\)"):
        run_in_process(job, lambda event: None, stall_seconds=0.3)
    assert not _stages_running()


def test_a_stage_that_is_killed_as_the_kernel_kills_for_memory_says_what_to_lower(job: StageJob) -> None:
    def kill(event: dict[str, object]) -> None:
        if event["kind"] == "step":
            for child in psutil.Process().children(recursive=True):
                if Path(f"/proc/{child.pid}/fd/1").readlink() == job.log_file:
                    child.kill()

    told = r"ended without a result \(signal 9\): killed by .*resumes; if it was memory, .* lower .*placement\.micro"
    with pytest.raises(StageCrashed, match=told):
        run_in_process(job, kill)


def test_a_crash_names_the_log_only_where_there_is_one(job: StageJob, monkeypatch: pytest.MonkeyPatch) -> None:
    from rloop_core.stages import process

    job.log_file.parent.mkdir(parents=True, exist_ok=True)
    job.log_file.write_text("what was said")
    with pytest.raises(StageCrashed) as caught:
        process._outcome(job, 1)
    assert caught.value.fix == f"see {job.log_file}"
    job.log_file.unlink()
    with pytest.raises(StageCrashed) as caught:
        process._outcome(job, 1)
    assert str(job.log_file) not in str(caught.value)


@pytest.mark.long
def test_progress_keeps_a_stage_alive_beyond_the_stall_limit(job: StageJob) -> None:
    seen: list[float] = []
    with pytest.raises(StageError, match="was told to stop"):
        run_in_process(
            job, lambda event: seen.append(time.monotonic()), stall_seconds=15,
            should_stop=lambda: len(seen) > 2 and seen[-1] - seen[0] > 17,
        )  # fmt: skip


def test_a_stage_told_to_stop_ends(job: StageJob) -> None:
    steps: list[int] = []

    def on_event(event: dict[str, object]) -> None:
        steps.append(1)

    with pytest.raises(StageError, match="was told to stop"):
        run_in_process(job, on_event, should_stop=lambda: len(steps) >= 2)
    assert not _stages_running()


def test_progress_reaches_the_run_as_it_happens(tmp_path: Path) -> None:
    config = small_config(placement={"store": str(tmp_path / "store")})
    store = Store(config.placement.store)
    events: list[dict[str, object]] = []
    with Lease(store, config.name) as lease:
        runner = StageRunner(config, store, lease, lambda stage, iteration, event: events.append(event))
        result = runner.ensure("explore", 0)
        assert not result.cached
        assert runner.ensure("explore", 0).cached
    assert [event["kind"] for event in events] == ["start", "log", "step", "step", "step", "done", "cached"]
    assert len(result.manifest.metrics["seconds_by_step"]["generate"]) == 3


@pytest.mark.timeout(600)
def test_a_fork_server_that_is_killed_while_it_starts_a_stage_is_a_crash_of_that_stage(tmp_path: Path) -> None:
    """Such a crash may be tried again; it is no error of this process."""
    config = small_config()
    job = StageJob("preflight", "run", -1, config, str(tmp_path), (), str(tmp_path), str(tmp_path), 0)
    start_fork_server()
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(server, signal.SIGSTOP)  # it gets the request, and is killed before it can answer
    killer = threading.Timer(0.5, os.kill, (server, signal.SIGKILL))
    killer.start()
    with pytest.raises(StageCrashed, match="could not be started"):
        run_in_process(job, lambda event: None)
    killer.join()
