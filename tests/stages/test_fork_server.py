"""The fork server is one process more that can be killed, at any moment."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import forkserver
from pathlib import Path

import pytest

from rloop_core.errors import StageCrashed
from rloop_core.stages.job import StageJob
from rloop_core.stages.process import run_in_process, warm_up
from tests.conftest import small_config

pytestmark = pytest.mark.process


@pytest.mark.timeout(600)
def test_a_fork_server_that_is_killed_while_it_starts_a_stage_is_a_crash_of_that_stage(tmp_path: Path) -> None:
    """One that may be tried again, and not an error of this process's own."""
    config = small_config()
    work = tmp_path / "work"
    work.mkdir()
    job = StageJob("preflight", "run", -1, config.model_dump(mode="json"), str(tmp_path), (), str(work), str(work), 0)
    warm_up()
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(server, signal.SIGSTOP)  # it takes the order, and dies before it can answer
    killer = threading.Timer(0.5, os.kill, (server, signal.SIGKILL))
    killer.start()
    with pytest.raises(StageCrashed, match="could not be started"):
        run_in_process(job, lambda event: None)
    killer.join()
