"""The GPU check without a GPU: limits and crashes, its table, and every part at small size."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.bench import Bench, Row, Rows, rows_of, table
from benchmarks.gpu.device import gpu, machine_facts
from benchmarks.gpu.explore import explore_config
from benchmarks.gpu.parts import PARTS
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
    return rows_of(PARTS[part], Rows(out, part).read())


def facts(**changes: Any) -> dict[str, Any]:
    return {**machine_facts("cpu", small=True), "commit": "abc", **changes}


def marked(environment: dict[str, str] | None, mark: Path) -> bool:
    return (environment or {}).get("GPU_CHECK_MARK") == str(mark)


def test_help_names_every_part_with_its_time_and_loads_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "benchmarks.gpu", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0
    for name, part in PARTS.items():
        assert f"  {name} " in done.stdout and part.shows in done.stdout and part.minutes in done.stdout
    assert not any(line.endswith(("| torch", "| trl", "| prefect")) for line in done.stderr.splitlines())


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
    done = call("memory", "--small", "--limit", "1", "--out", str(tmp_path), GPU_CHECK_MARK=str(tmp_path))
    assert done.returncode == 1
    row = rows(tmp_path, "memory")["transformers-evaluate"]
    assert (row.verdict, row.why) == ("failed", "ran longer than its limit of 1 s and was ended")
    assert "**failed**: ran longer than its limit of 1 s" in done.stdout
    assert not [process for process in psutil.process_iter(["environ"]) if marked(process.info["environ"], tmp_path)]


def test_a_part_that_fails_is_a_row_with_its_reason_and_no_traceback(tmp_path: Path) -> None:
    done = call("study", "--small", "--set", "explore.steps=many", "--out", str(tmp_path))
    assert done.returncode == 1
    for row in rows(tmp_path, "study").values():
        assert row.verdict == "failed" and row.why.startswith("arms.rloop: explore.steps: Input should be a valid")
        assert row.why.endswith("logs/study.log)")
    assert "Traceback" not in done.stdout + done.stderr
    assert "Traceback" in (tmp_path / "logs/study.log").read_text()


def test_a_part_that_is_killed_is_a_row_with_the_signal(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "memory", "--small", "--out", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        child = None
        while child is None and process.poll() is None:
            time.sleep(0.05)
            children = psutil.Process(process.pid).children()
            child = next((each for each in children if "benchmarks.gpu.parts" in each.cmdline()), None)
        assert child
        os.kill(child.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=180)
    assert process.returncode == 1
    assert {row.verdict for row in rows(tmp_path, "memory").values()} == {"failed"}
    assert output.count("**failed**: was ended by SIGKILL") == len(PARTS["memory"].lines)


def test_rows_of_several_calls_and_machines_make_one_table(tmp_path: Path) -> None:
    first, second = (Rows(tmp_path, name) for name in ("explore", "whole"))
    h200 = facts(device="NVIDIA H200", driver="570.1", memory_gib=139.8, small=False, commit="abc")
    first.begin(h200)
    first.add(Row("ratio", "missed", "1.050 x"))
    first.add(Row("ratio", "met", "1.010 x; a|b", "the\x1b[31m same"))
    first.end(61.2)
    second.begin({**h200, "commit": "def"})
    second.add(Row("explore", "-", "40 s"))
    text = table(PARTS, tmp_path)
    assert text.startswith("# Measured on a GPU")
    assert (
        "| explore | RL step with recording / bare TRL's, median ratio | 1.010 x; a\\|b | at most 1.03 x | met: the"
        in text
    )
    assert "\x1b" not in text and "missed" not in text
    assert "- NVIDIA H200 of 139.8 GiB, driver 570.1, " in text
    assert "commit abc" in text and "(explore)" in text and "commit def" in text and "(whole)" in text
    assert "| whole | of which explore | 40 s |  | - |" in text
    assert "| whole | of which rft |  |  | not run: the part was ended before it got here |" in text
    assert "Took: explore 61 s." in text


def test_bars_of_speed_are_judged_on_a_gpu_at_full_size_alone(tmp_path: Path) -> None:
    Rows(tmp_path, "explore").begin(facts())
    for device, small, verdict in (("cuda", False, "missed"), ("cuda", True, "-"), ("cpu", True, "-")):
        Bench("explore", tmp_path, device, small).judge_speed("ratio", False, "1.5 x", "why")
        assert rows(tmp_path, "explore")["ratio"].verdict == verdict


DRIVER = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(0x7f0000000000 + index); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return strcmp(uuid, "GPU-1"); }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
  memory->total = 150ull << 30; memory->free = 140ull << 30; memory->used = 10ull << 30;
  return device == (void *)0x7f0000000003 ? 0 : 2; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { strncpy(name, "NVIDIA H200", length); return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) { strncpy(version, "570.1", length); return 0; }
"""
SCRIPT = "from benchmarks.gpu.device import gpu, planned_device; print(gpu(), planned_device('cuda'))"


def gpu_seen_with(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_driver_is_asked_by_nvml(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    seen = gpu_seen_with(LD_LIBRARY_PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="3,1")
    assert seen == f"Gpu(name='NVIDIA H200', driver='570.1', used={10 * 2**30}, total={150 * 2**30}) h200"
    for hidden in ("-1", ""):
        assert gpu_seen_with(LD_LIBRARY_PATH=str(tmp_path), CUDA_VISIBLE_DEVICES=hidden) == "None None"


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
    bench = Bench("explore", tmp_path, "cpu", True, ("explore.engine=vllm",))
    config = explore_config(bench, bundled_policy_path(), problem_file(tmp_path / "problems.jsonl", 10, 8), 2)
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
    installed = "vllm" in json.loads((tmp_path / "rows/whole.json").read_text())["machine"]["versions"]
    for (part, key), row in found.items():
        assert row.measured or row.why, (part, key)
        if row.verdict == "not run":
            assert ("GPU" in row.why) or ("vLLM" in row.why and not installed) or key == "rft-speed", (part, key, row)
    judged = {place for place, row in found.items() if row.verdict == "met"}
    assert judged >= {("whole", "whole"), ("study", "study"), ("sharding", "zero2-explore"), ("sharding", "zero2-rft")}
    assert judged >= {("faults", key) for key in ("explore", "evaluate", "memory")}
    assert judged >= {("memory", f"transformers-{stage}") for stage in ("explore", "rft", "evaluate")}
    assert ("faults", "explore-equality") in judged
