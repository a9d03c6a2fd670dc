"""The GPU check without a GPU: limits and crashes, its table, and every part at small size."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu.__main__ import PARTS, main
from benchmarks.gpu.check import Check, Row, table
from benchmarks.gpu.device import gpu
from benchmarks.gpu.explore import explore_config
from benchmarks.gpu.policy import problem_file
from benchmarks.trainers import train_in_turns
from rloop_core.policies import bundled_policy_path
from rloop_core.training import explore as exploration
from tests.conftest import ROOT

pytestmark = [pytest.mark.process, pytest.mark.long]

COMMAND = [sys.executable, "-m", "benchmarks.gpu"]


def call(*arguments: str, timeout: float = 600, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def rows(out: Path, part: str) -> dict[str, Row]:
    return Check(part, out).rows(PARTS[part])


def marked(environment: dict[str, str] | None, mark: Path) -> bool:
    return (environment or {}).get("GPU_CHECK_MARK") == str(mark)


def exit_status(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """Call it in this process; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    try:
        return main()
    except SystemExit as end:
        return end.code


def test_the_table_has_every_line_before_anything_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status("--table", "--out", str(tmp_path), monkeypatch=monkeypatch) == 0
    output = capsys.readouterr().out
    lines = [line for line in output.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + sum(len(part.lines) for part in PARTS.values())
    assert all(line.endswith("| not run: not yet |") for line in lines[1:])
    assert (tmp_path / "table.md").read_text() in output


@pytest.mark.skipif(gpu() is not None, reason="there is a GPU")
@pytest.mark.parametrize("options", [(), ("--device", "cuda")])
def test_without_a_gpu_it_says_what_can_be_done_instead(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status("whole", *options, "--out", str(tmp_path), monkeypatch=monkeypatch) == 2
    assert "no GPU is visible here" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_a_part_over_its_limit_is_a_row_and_leaves_no_process(tmp_path: Path) -> None:
    done = call("whole", "--small", "--limit", "1", "--out", str(tmp_path), GPU_CHECK_MARK=str(tmp_path))
    assert done.returncode == 1
    row = rows(tmp_path, "whole")["evaluate"]
    assert (row.verdict, row.why) == ("failed", "ran longer than its limit of 1 s and was ended")
    assert "**failed**: ran longer than its limit of 1 s" in done.stdout
    assert not [process for process in psutil.process_iter(["environ"]) if marked(process.info["environ"], tmp_path)]


def test_a_part_that_fails_is_a_row_with_its_reason_and_no_traceback(tmp_path: Path) -> None:
    done = call("faults", "--small", "--set", "explore.steps=many", "--out", str(tmp_path))
    assert done.returncode == 1
    for row in rows(tmp_path, "faults").values():
        assert row.verdict == "failed" and row.why.startswith("explore.steps: Input should be a valid")
        assert row.why.endswith("logs/faults.log)")
    assert "Traceback" not in done.stdout + done.stderr
    assert "Traceback" in (tmp_path / "logs/faults.log").read_text()


def test_a_part_that_is_killed_is_a_row_with_the_signal(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "whole", "--small", "--out", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        child = None
        while child is None and process.poll() is None:
            time.sleep(0.05)
            children = psutil.Process(process.pid).children()
            child = next((each for each in children if "--run" in each.cmdline()), None)
        assert child
        os.kill(child.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=180)
    assert process.returncode == 1
    assert {row.verdict for row in rows(tmp_path, "whole").values()} == {"failed"}
    assert output.count("**failed**: was ended by SIGKILL") == len(PARTS["whole"].lines)


def test_rows_of_several_calls_make_one_table(tmp_path: Path) -> None:
    first, second = (Check(name, tmp_path, "cuda", False) for name in ("explore", "whole"))
    first.judge("ratio", False, "1.050 x")
    first.judge("ratio", True, "1.010 x; a|b", "the\x1b[31m same")
    second.show("explore", "40 s")
    second.fill(PARTS["whole"], "failed", "ended")
    text = table(PARTS, tmp_path, "NVIDIA H200, commit abc")
    ratio = "| explore | RL step with recording / bare TRL's, median ratio | 1.010 x; a\\|b | at most 1.03 x | met: the"
    assert text.startswith("NVIDIA H200, commit abc\n") and ratio in text and "\x1b" not in text
    assert "missed" not in text
    assert "| whole | of which explore | 40 s |  | - |" in text
    assert "| whole | of which rft |  |  | **failed**: ended |" in text


def test_bars_of_speed_are_judged_on_a_gpu_at_full_size_alone(tmp_path: Path) -> None:
    for device, small, verdict in (("cuda", False, "missed"), ("cuda", True, "-"), ("cpu", True, "-")):
        Check("explore", tmp_path, device, small).judge_speed("ratio", False, "1.5 x", "why")
        assert rows(tmp_path, "explore")["ratio"].verdict == verdict


def test_the_driver_is_asked_for_the_gpu_that_cuda_programs_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = "NVIDIA H200, 570.1, 10240, 153600"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n[ $1 = --id=3 ] && echo '{answer}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for visible, name in (("3,1", "NVIDIA H200"), ("1", None), ("-1", None), ("", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = gpu()
        assert (found and found.name) == name
        if found:
            assert (found.driver, found.used, found.total) == ("570.1", 10 * 2**30, 150 * 2**30)


@pytest.mark.parametrize("kind", ["recorded", "bare"])
def test_both_trainers_take_turns_with_vllm_s_rollouts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's own code with a simulated engine: in-loop vLLM needs a GPU."""
    from trl.trainer import grpo_trainer

    from tests.training.test_vllm_in_loop import OtherEngine

    class Engine(OtherEngine):
        pass

    class Connection:
        def __init__(self) -> None:
            self.sent: list[tuple[str, Any]] = []

        def recv(self) -> str:
            return "go"

        def send(self, message: tuple[str, Any]) -> None:
            self.sent.append(message)

    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", Engine)
    monkeypatch.setattr(exploration, "check_in_loop", lambda *_: None)
    check = Check("explore", tmp_path, "cpu", True, ("explore.engine=vllm",))
    config = explore_config(check, bundled_policy_path(), problem_file(tmp_path / "problems.jsonl", 10, 8), 2)
    connection = Connection()
    train_in_turns(kind, config, bundled_policy_path(), tmp_path / kind, "cpu", connection)  # type: ignore[arg-type]
    assert Engine.made["enable_sleep_mode"] and Engine.made["mode"] == "colocate"
    assert [name for name, _ in connection.sent] == ["ready", "seconds", "seconds", "figures"]
    assert all(seconds > 0 for name, seconds in connection.sent if name == "seconds")
    figures = connection.sent[-1][1]
    assert len(figures.lengths) == 2 and all(0 < length <= 24 for length in figures.lengths)
    assert 0 < figures.real <= figures.computed
    assert len(list((tmp_path / kind).rglob("step-*.parquet"))) == (2 if kind == "recorded" else 0)


@pytest.mark.timeout(1800)
def test_every_part_at_small_size(tmp_path: Path) -> None:
    done = call("--small", "--device", "cpu", "--out", str(tmp_path), timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(name, row.key): row for name in PARTS for row in rows(tmp_path, name).values()}
    assert {row.verdict for row in found.values()} == {"met", "-", "not run"}
    installed = find_spec("vllm") is not None
    for (part, key), row in found.items():
        assert row.measured or row.why, (part, key)
        if row.verdict == "not run":
            assert "GPU" in row.why or ("vLLM" in row.why and not installed), (part, key, row)
    judged = {place for place, row in found.items() if row.verdict == "met"}
    assert judged >= {
        ("whole", "whole"),
        ("whole", "released"),
        ("sharding", "zero2-explore"),
        ("sharding", "zero2-rft"),
    }
    assert judged >= {("faults", "explore"), ("faults", "memory")}
