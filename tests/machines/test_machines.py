"""Several machines, each a process tree of its own with `rloop node`: what they compute, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rloop_core.config import Config
from rloop_core.errors import ConfigError, StageCrashed, StageError
from rloop_core.machines.beats import Beating, Watching
from rloop_core.machines.head import _Others, check_machines
from rloop_core.machines.post import NODE, post_folder, releases
from rloop_core.stages.execute import _device
from tests.conftest import ROOT
from tests.machines.node import rloop_node
from tests.processes import still_running
from tests.stages.running import at_first_step, ensure, in_step, rank, ranks_below, ranks_config

pytestmark = pytest.mark.process


def _config(folder: Path, **placement: Any) -> Config:
    """Two ranks: on one machine, or with `machines=2` on two."""
    shared = {
        "scratch": str(folder / "scratch"),
        "machines_address": "127.0.0.1",
        "machines_patience_minutes": 1.0,
        "machines_silence_seconds": 15.0,
    }
    return ranks_config(folder / "store", placement.pop("processes", 2), **{**shared, **placement})


@pytest.mark.long
@pytest.mark.timeout(900)
def test_whatever_dies_ends_the_stage_everywhere_with_the_machine_named_and_it_resumes_to_the_same_digests(
    tmp_path: Path,
) -> None:
    stages = ("explore", "harvest", "filter", "rft")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    undisturbed = ensure(_config(tmp_path / "one", steps=8), *stages)
    config = _config(tmp_path / "two", steps=8, machines=2)

    with rloop_node(config, tmp_path / "two") as node:

        def kill_its_rank() -> None:
            os.kill(rank(0, node.pid).pid, signal.SIGKILL)

        def kill_it() -> None:
            os.kill(node.pid, signal.SIGKILL)

        with pytest.raises(StageCrashed, match=r": machine 1 \(.+\): rank 1 ended without a result \(SIGKILL\)"):
            ensure(config, "explore", listen=in_step(2, kill_its_rank))
        assert not ranks_below(os.getpid()) and not ranks_below(node.pid)

        with _head(config, tmp_path) as head:
            _wait(lambda: (_work(config) / "metrics.jsonl").is_file() and _metrics(config) >= 2)
            below = psutil.Process(head.pid).children(recursive=True)
            for process in [psutil.Process(head.pid), *below]:
                process.suspend()  # as a machine that lost its power or its network: no connection is closed
            _wait(lambda: not ranks_below(node.pid))
            head.kill()
            for process in below:
                process.resume()
            assert not still_running(below)

        below = psutil.Process(node.pid).children(recursive=True)
        with pytest.raises(StageCrashed, match=r": machine 1 \(.+\) is gone: no sign of life for \d+ s"):
            ensure(config, "explore", listen=at_first_step(kill_it))
        assert not still_running(below)
    with rloop_node(config, tmp_path / "two") as node:
        assert ensure(config, *stages) == undisturbed
        assert node.wait(60) == 0, "it ends with the run"
        assert node.stdout and "the run has ended" in node.stdout.read()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_phase_begun_on_one_machine_goes_on_on_two_by_accelerates_launcher_as_by_torchrun(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    undisturbed = ensure(_config(tmp_path / "one"), "explore")
    steps: list[int] = []
    with pytest.raises(StageCrashed, match="rank 1 ended without a result"):
        ensure(_config(tmp_path), "explore", listen=in_step(3, lambda: rank(1).kill()))
    config = _config(tmp_path, machines=2, accelerate_config=str(ROOT / "infra/accelerate/ddp.yaml"))
    with rloop_node(config, tmp_path):
        told = ensure(config, "explore", listen=lambda stage, i, event: steps.append(event.get("done", 0)))
    assert told == undisturbed
    assert [step for step in steps if step] in ([2, 3], [3])


def _work(config: Config) -> Path:
    return next((Path(config.placement.scratch or "") / "ranks/iteration-000/explore").iterdir())


def _metrics(config: Config) -> int:
    return len((_work(config) / "metrics.jsonl").read_text().splitlines())


def _wait(until: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def _head(config: Config, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The first machine as a process that can be killed."""
    script = folder / "head.py"
    script.write_text(
        "import sys\nfrom tests.stages.running import ensure\nfrom rloop_core.config import make_config\n"
        "import json\nif __name__ == '__main__':\n    ensure(make_config(json.load(sys.stdin)), 'explore')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(script)], cwd=ROOT, stdin=subprocess.PIPE, env=environment)
    assert process.stdin
    process.stdin.write(config.model_dump_json().encode())
    process.stdin.close()
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_machines_that_are_missing_or_of_another_release_are_named(tmp_path: Path) -> None:
    config = _config(tmp_path, machines=4, processes=4, machines_patience_minutes=0.0)
    folder = post_folder(str(tmp_path / "scratch"), "ranks")
    with Beating(folder / f"{NODE}gpu-b-7.json", busy=False, releases=releases()):
        (folder / f"{NODE}gpu-dead-8.json").write_text('{"busy": false, "beat": 1}')  # nobody writes it again
        with pytest.raises(
            ConfigError, match=r"machines: 2 of 4 are there: .*, gpu-b \(fix: start `rloop node` .* on 2 more"
        ):
            check_machines(config)
        with (
            Beating(folder / f"{NODE}gpu-c-9.json", busy=False, releases=releases()) as third,
            Beating(folder / f"{NODE}gpu-d-9.json", busy=False, releases=releases()),
        ):
            check_machines(config)
            third.say(releases={**releases(), "torch": "1.0"})
            with pytest.raises(ConfigError, match=r"gpu-c has torch 1.0, this machine"):
                check_machines(config)
            third.say(releases=releases(), busy=True)
            with pytest.raises(ConfigError, match=r"4 of 4 are there: .*1 of them busy ending an earlier attempt"):
                check_machines(config)


def test_a_machine_with_fewer_gpus_than_processes_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = _config(tmp_path, device="cuda")
    with pytest.raises(ConfigError, match=r"placement.processes: .* shows 1 GPUs, and has at least 2 of the processes"):
        _device(config, "explore")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _device(_config(tmp_path, device="auto"), "explore") == "cpu"


def test_a_machine_that_was_given_up_is_the_reason_even_if_it_is_heard_of_again(tmp_path: Path) -> None:
    config = _config(tmp_path, machines=2, machines_silence_seconds=5.0)
    folder = post_folder(str(tmp_path / "scratch"), "ranks")
    name = f"{NODE}gpu-b-7.json"
    with Beating(folder / name, busy=False, releases=releases()):
        others = _Others(folder, config.model_dump(mode="json"))
        others.begin("first", others.gather(print, lambda: False))
        assert others.trouble() is None
    (folder / name).write_text('{"busy": true, "beat": 0}')
    _wait(lambda: others.trouble() is not None)
    with Beating(folder / name, busy=False, through="first", error=None):
        ended = StageError("was told to stop", field="explore")
        assert str(others.cause(ended)).startswith("ranks: machine 1 (gpu-b) is gone: no sign of life for 5 s")
        own = StageError("out of memory: CUDA", field="placement")
        assert "machine 0" in str(others.cause(own)) and "out of memory" in str(others.cause(own))
    others.begin("second", [name])
    assert "machine 1 (gpu-b) left" in str(others.trouble())


def test_only_what_moves_lives_and_half_a_file_is_passed_over(tmp_path: Path) -> None:
    watch = Watching(tmp_path)
    (tmp_path / "dead.json").write_text('{"beat": 5}')
    with Beating(tmp_path / "alive.json", word=1) as beating:
        _wait(lambda: watch.look() or watch.lives("alive.json", 5.0))
        assert not watch.lives("dead.json", 5.0) and watch.silent_seconds("dead.json") > 0
        (tmp_path / "half.json").write_text('{"beat')
        beating.say(word=2)
        watch.look()
        assert (watch.content("alive.json") or {})["word"] == 2 and watch.content("half.json") is None
    watch.look()
    assert watch.content("alive.json") is None and watch.silent_seconds("alive.json") == float("inf")


def test_a_config_of_several_machines_needs_a_shared_folder_and_equal_shares(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"placement.processes: 2 processes, in all, .*3 machines .*set it to 3"):
        _config(tmp_path, machines=3)
    with pytest.raises(ConfigError, match=r"placement.scratch: several machines need a folder"):
        _config(tmp_path, machines=2, scratch=None)


def test_a_node_ends_when_nobody_comes_and_refuses_a_run_of_one_machine(tmp_path: Path) -> None:
    with rloop_node(_config(tmp_path, machines=2), tmp_path, "--idle", "0.01") as node:
        assert node.stdout and "no run showed itself for" in node.stdout.read()
        assert node.wait(60) == 0
    with rloop_node(_config(tmp_path), tmp_path) as node:
        assert node.stdout and "placement.machines: the run is one machine's" in node.stdout.read()
        assert node.wait(60) == 2
