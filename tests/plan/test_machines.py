"""The plan beside what was measured, and its table of machines: whatever it says to set makes the run fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rloop_core.cli.plan_command import command
from rloop_core.config import load_config, make_config
from rloop_core.plan.estimate import make_plan
from rloop_core.plan.hours import (
    DEVICES,
    cpu_tokens_per_second,
    generation_seconds,
    sampling_seconds,
    vllm_tokens_per_second,
)
from rloop_core.plan.machines import MACHINES
from rloop_core.plan.memory import GIB, placed
from rloop_core.plan.models import KNOWN, ModelShape, shape_of
from rloop_core.plan.sharding import ONE, ZERO2, ZERO3, trained_parameters, training_states
from tests.conftest import ROOT

CONFIGS = sorted((ROOT / "deployments/configs").glob("qwen*.yaml"))
PAPER = ROOT / "deployments/configs/qwen2.5-math-7b.yaml"


def _shape(name: str) -> ModelShape:
    shape = shape_of(KNOWN[name], name)
    assert shape is not None
    return shape


@pytest.mark.parametrize(("name", "measured"), [("Qwen/Qwen2.5-Math-7B", 28_900), ("Qwen/Qwen2.5-0.5B", 27_000)])
def test_vllms_throughput_is_what_was_measured_on_an_h200(name: str, measured: float) -> None:
    """512 sequences x 512 tokens, bfloat16, vLLM 0.26."""
    rate = vllm_tokens_per_second(_shape(name), DEVICES["h200"], 512, 512 + 32, 2)
    assert rate == pytest.approx(measured, rel=0.1)


def test_generates_throughput_is_what_was_measured_on_an_h200_and_on_a_core() -> None:
    """0.5 B, batch 256: 3,560 tokens/s. 1 M parameters on a CPU core: 7,000 tokens/s, and 14,300 by vLLM."""
    config = make_config(
        {"problems": {"source": "gsm8k"}, "policy": {"dtype": "bfloat16"}, "prompt": {"max_tokens": 64}}
    )
    seconds = generation_seconds(_shape("Qwen/Qwen2.5-0.5B"), DEVICES["h200"], 256, 256, config, 128)
    assert 256 * 128 / seconds == pytest.approx(3_560, rel=0.1)
    small = _shape("Qwen/Qwen2.5-0.5B").__class__(1_000_000, 96, 4, 4, 4, 24, 256, 400, 512, "made up")
    assert cpu_tokens_per_second(small) == pytest.approx(7_000, rel=0.1)
    assert vllm_tokens_per_second(small, DEVICES["cpu"], 256, 128, 4) == pytest.approx(14_300, rel=0.1)


def test_vllm_is_faster_than_generate_where_the_config_names_it() -> None:
    config = load_config(PAPER)
    shape, budget = _shape("Qwen/Qwen2.5-Math-7B"), 2048
    by_generate = sampling_seconds(
        placed(config, engine="transformers"), "evaluate", shape, DEVICES["h200"], 16_000, 128, budget
    )
    by_vllm = sampling_seconds(placed(config, engine="vllm"), "evaluate", shape, DEVICES["h200"], 16_000, 128, budget)
    assert by_generate / by_vllm > 5


def test_adapters_and_states_by_hand() -> None:
    """r (in + out) a layer: q, o 2 x 7,168; k, v 2 x 4,096; gate, up, down 3 x 22,528; 28 layers; rank 32."""
    shape = _shape("Qwen/Qwen2.5-Math-7B")
    config = load_config(PAPER, ["lora.rank=32"])
    assert trained_parameters(config, shape) == 32 * 28 * (2 * 7_168 + 2 * 4_096 + 3 * 22_528) == 80_740_352
    few = load_config(PAPER, ["lora.rank=16", "lora.target_modules=[q_proj, self_attn.v_proj]"])
    assert trained_parameters(few, shape) == 16 * 28 * (7_168 + 4_096)
    assert trained_parameters(load_config(PAPER), shape) == shape.parameters
    states = training_states(config, shape, ONE, 1)
    assert states == {"frozen weights": 2 * shape.parameters, "weights, gradients, AdamW": 16 * 80_740_352}
    whole = training_states(load_config(PAPER), shape, ZERO2, 8)
    assert sum(whole.values()) == pytest.approx((2 + 16 / 8) * shape.parameters)
    shared = training_states(load_config(PAPER), shape, ZERO3, 8)
    assert shared["weights, gradients, AdamW"] == pytest.approx(18 / 8 * shape.parameters)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_what_the_table_says_to_set_makes_every_stage_fit(path: Any) -> None:
    for row in make_plan(load_config(path))["machines"]:
        assert row["settings"] is not None, row
        overrides = [f"{name}={json.dumps(value)}" for name, value in row["settings"].items()]
        again = make_plan(load_config(path, overrides), row["kind"], row["count"])
        assert again["does_not_fit"] == [], (row, again["memory"])
        needed = {stage["stage"]: stage["needed_gib"] for stage in again["memory"]}
        assert needed == pytest.approx(row["memory_gib"], abs=0.1), row


def test_the_table_names_what_does_not_fit_and_the_way_out() -> None:
    rows = {row["machine"]: row for row in make_plan(load_config(PAPER))["machines"]}
    assert set(rows) == {f"{count} x {kind.upper()}" for kind, count in MACHINES}
    assert rows["1 x H200"]["settings"]["placement.accelerate_config"] == "infra/accelerate/zero2-offload.yaml"
    assert rows["1 x H200"]["host_gib"] == pytest.approx(16 * 7_615_616_512 / GIB, abs=0.1)
    assert rows["8 x H100"]["settings"]["placement.accelerate_config"] == "infra/accelerate/zero2.yaml"
    assert rows["8 x H100"]["settings"]["placement.processes"] == 8
    assert list(rows["64 x H100"]["settings"].items())[:3] == [
        ("placement.machines", 8),
        ("placement.scratch", "/shared/rloop"),
        ("placement.processes", 64),
    ]
    scratch = make_plan(load_config(PAPER, ["placement.scratch=/nfs/mine"]))["machines"][-1]["settings"]
    assert "placement.scratch" not in scratch and scratch["placement.machines"] == 8
    assert "placement.machines" not in rows["8 x H200"]["settings"]
    assert rows["64 x H100"]["hours"] < rows["8 x H100"]["hours"] < rows["1 x H200"]["hours"]
    odd = make_plan(load_config(PAPER, ["explore.problems_per_step=96", "explore.mini_batch_rollouts=96"]))["machines"]
    assert odd[-1]["settings"] is None and "placement.processes: 64 does not divide" in odd[-1]["why"]


def test_the_table_is_printed() -> None:
    from click.testing import CliRunner

    shown = CliRunner().invoke(command, ["--config", str(PAPER), "--gpu", "h100"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0, shown.output
    assert "the same run on" in shown.output and "64 x H100" in shown.output
    assert (
        "8 x H100: --set placement.processes=8 --set placement.accelerate_config=infra/accelerate/zero2.yaml"
        in shown.output
    )
    assert "64 x H100: --set placement.machines=8 --set placement.scratch=/shared/rloop" in shown.output
