"""Several engines of one stage, each a process of its own: the same records, and what becomes of one that fails."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rloop_core.config import Config
from rloop_core.errors import ConfigError, StageCrashed
from rloop_core.organism import bundled_policy_path
from rloop_core.rollout.engine import SamplingSettings
from rloop_core.rollout.engine_processes import EngineProcesses
from rloop_core.rollout.judged import JudgedSampler
from rloop_core.rollout.places import VISIBLE, engine_places
from rloop_core.rollout.policy import load_tokenizer
from rloop_core.verifier import Verifier
from tests.conftest import encoded, small_config
from tests.processes import still_running
from tests.security.sockets import listeners, open_unix_sockets, tree

pytestmark = pytest.mark.process

HOW = SamplingSettings(samples=6, temperature=1.0, top_p=1.0, max_tokens=40, batch=20, seed=5)
TWO = small_config(placement={"engines": 2, "engine_stall_minutes": 0.05})


def engine_processes() -> list[psutil.Process]:
    """Engines of this process, by their number."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if "rloop_core.rollout.engine_process" in " ".join(one.cmdline())]


def record(config: Config, folder: Path, verifier: Verifier, tell: Callable[[int, int], None] = lambda *_: None) -> Any:
    """Content of each shard, by name."""
    with JudgedSampler(config, bundled_policy_path(), "cpu", "run", 0, verifier) as sampler:
        paths = sampler.record(encoded(config), HOW, folder, step=0, label="t", tell=tell)
    return {path.name: path.read_bytes() for path in paths}


def test_two_engines_write_the_very_records_of_one(tmp_path: Path, verifier: Verifier) -> None:
    there: list[int] = []
    before = {*listeners(tree()[1:]), *open_unix_sockets(tree()[1:])}
    reachable: set[object] = set()

    def look(done: int, total: int) -> None:
        there.append(len(engine_processes()))
        below = tree()[1:]
        reachable.update(listeners(below), open_unix_sockets(below))

    shards = record(TWO, tmp_path / "two", verifier, look)
    assert set(there) == {2} and not reachable - before, "they talk by inherited sockets alone"
    assert len(shards) == 6 and shards == record(small_config(), tmp_path / "one", verifier)
    assert not engine_processes(), "they end with their block"


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, r"placement\.engine: engine 2 of 2 ended without an answer \(fix: see the log, then start"),
        (signal.SIGSTOP, r"engine 2 of 2 hangs: it drew nothing for 0\.05 min \(placement\.engine_stall_minutes\)"),
    ],
)
def test_an_engine_that_is_killed_or_hangs_is_named_and_what_was_drawn_is_kept(
    number: signal.Signals, reason: str, tmp_path: Path, verifier: Verifier
) -> None:
    below: list[psutil.Process] = []

    def strike(done: int, total: int) -> None:
        if not below:
            below.extend(engine_processes())
            os.kill(below[1].pid, number)

    with pytest.raises(StageCrashed, match=reason):
        record(TWO, tmp_path, verifier, strike)
    assert len(below) == 2 and not still_running(below)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    assert 1 <= len(kept) < 6
    again = record(small_config(), tmp_path, verifier)
    assert len(again) == 6 and {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.long
def test_an_engine_that_hangs_while_it_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    started: list[psutil.Process] = []

    def stopped_second(*words: Any, **rest: Any) -> Any:
        process = start(*words, **rest)
        started.append(psutil.Process(process.pid))
        if len(started) == 2:
            started[1].suspend()
        return process

    monkeypatch.setattr("rloop_core.rollout.engine_processes.subprocess.Popen", stopped_second)
    config = small_config(placement={"engines": 2, "engine_start_minutes": 0.4})
    why = r"engine 2 of 2 hangs: not ready after 0\.4 min \(placement\.engine_start_minutes\)"
    with pytest.raises(StageCrashed, match=why):
        EngineProcesses(config, bundled_policy_path(), "cpu", engine_places(config, "cpu"))
    assert len(started) == 2 and not still_running(started)


@pytest.mark.long
def test_devices_are_pinned_before_an_engine_starts_and_one_that_does_not_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(bundled_policy_path())
    tokenizer.save_pretrained(tmp_path)
    pinned: list[str] = []
    start = subprocess.Popen

    def watched(*words: Any, env: dict[str, str], **rest: Any) -> Any:
        pinned.append(env[VISIBLE])
        return start(*words, env=env, **rest)

    monkeypatch.setattr("rloop_core.rollout.engine_processes.subprocess.Popen", watched)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv(VISIBLE, "3,5")
    why = r"^policy\.path: engine [12] of 2 \(GPU [35]\): the model of .* cannot be read: .*config\.json"
    with pytest.raises(ConfigError, match=why):
        EngineProcesses(TWO, tmp_path, "cpu", engine_places(TWO, "cuda"))
    assert pinned == ["3", "5"] and not engine_processes()


def test_each_engine_has_gpus_of_its_own_among_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(**placement: Any) -> list[str | None]:
        return [place.devices for place in engine_places(small_config(placement=placement), "cuda")]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv(VISIBLE, raising=False)
    assert names() == ["0", "1", "2", "3"]
    assert names(engines=2) == ["0", "1"]
    assert names(vllm={"tensor_parallel": 2}) == ["0", "1", "2", "3"], "transformers has no use for it"
    assert names(engine="vllm", vllm={"tensor_parallel": 2}) == ["0,1", "2,3"]
    assert names(engine="vllm", vllm={"tensor_parallel": 3}) == ["0,1,2"]
    monkeypatch.setenv(VISIBLE, "6, GPU-8e1,2,7")
    assert names() == ["6", "GPU-8e1", "2", "7"]
    with pytest.raises(
        ConfigError, match=r"^placement\.engines: 5 engines cannot be had: 4 GPUs are visible here \(fix"
    ):
        names(engines=5)
    with pytest.raises(
        ConfigError, match=r"^placement\.vllm\.tensor_parallel: 1 engine of 8 GPUs cannot be had: 4 GPUs"
    ):
        names(engine="vllm", vllm={"tensor_parallel": 8})
    assert [place.devices for place in engine_places(small_config(), "cpu")] == [None]
