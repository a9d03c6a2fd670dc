"""Kill -9 of those who would clear up: what they leave running is found by its mark and ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.faults.conftest import wait_until
from tests.processes import still_running

pytestmark = pytest.mark.process


def _owner(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.stages.orphan_owner", *arguments], cwd=ROOT)


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """The owner, and below it: fork server, supervisor, stage, grandchild in a session of its own."""
    folder.mkdir()
    owner = _owner(str(folder))
    wait_until((folder / "pids").exists, "the stage", 90)
    below = [psutil.Process(int(pid)) for pid in (folder / "pids").read_text().split()]
    fork_server = below[0].parent()
    assert fork_server is not None and os.getsid(below[2].pid) == below[2].pid
    return owner, [fork_server, *below]


def _kill(*processes: psutil.Process | subprocess.Popen[bytes]) -> None:
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_a_supervisor_killed_together_with_its_run_leaves_nothing(tmp_path: Path) -> None:
    owner, below = _start(tmp_path / "run")
    _kill(owner, below[1])
    owner.wait()
    assert not still_running(below, 60)


def test_what_outlived_everybody_is_ended_by_whoever_runs_a_stage_next(tmp_path: Path) -> None:
    owner, below = _start(tmp_path / "run")
    (fork_server, supervisor, _, grandchild) = below
    _kill(owner, fork_server, supervisor)
    owner.wait()
    psutil.wait_procs(below[:3], timeout=30)
    assert _owner().wait(60) == 0
    assert not still_running([grandchild])


def test_who_belongs_to_a_living_run_is_left_alone(tmp_path: Path) -> None:
    owner, below = _start(tmp_path / "run")
    assert _owner().wait(60) == 0
    assert all(process.is_running() for process in below)
    _kill(owner)
    owner.wait()
    assert not still_running(below, 60), "its supervisor lives, and ends them"


def test_what_keeps_no_mark_is_ended_by_who_watches_its_starter(tmp_path: Path) -> None:
    """As vLLM's processes: in sessions of their own, with another environment, deaf to their starter's end."""
    program = """
import subprocess, sys, time
from rloop_core.runtime.orphans import mark_descendants, watch_descendants
mark_descendants()
watcher = watch_descendants()
sleep = "import time; time.sleep(600)"
sleeper = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
child = subprocess.Popen([sys.executable, "-c", sleeper], env={}, start_new_session=True)
print(watcher.pid, child.pid, flush=True)
time.sleep(600)
"""
    starter = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    assert starter.stdout
    watcher, child = map(psutil.Process, map(int, starter.stdout.readline().split()))
    wait_until(child.children, "the grandchild", 60)
    naps = watcher.num_ctx_switches().voluntary
    wait_until(lambda: watcher.num_ctx_switches().voluntary > naps + 3, "a whole look of the watcher", 60)
    below = [watcher, child, *child.children()]
    starter.kill()
    starter.wait()
    assert len(below) == 3 and not still_running(below, 60)


def test_in_a_container_a_child_of_process_1_is_not_taken_for_an_orphan() -> None:
    program = """
import os, sys
from rloop_core.runtime.lifetime import die_with_parent
assert os.getpid() == 1
child = os.fork()
if not child:
    die_with_parent(int(sys.argv[1]))
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    container = ["unshare", "--fork", "--pid", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*container, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make a PID namespace")
    for parent, code in (("1", 7), ("2", 1)):
        done = subprocess.run([*container, sys.executable, "-c", program, parent], cwd=ROOT, check=False, timeout=60)
        assert done.returncode == code
