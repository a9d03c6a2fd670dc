from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

from rloop_core.config import make_config
from rloop_core.errors import ConfigError
from rloop_core.plan.estimate import make_plan
from rloop_core.plan.memory import GIB
from rloop_core.plan.models import KNOWN, decoder_parameters, find_shape
from rloop_core.plan.workload import count_problems

PAPER = {
    "name": "paper",
    "iterations": 3,
    "policy": {"path": "Qwen/Qwen2.5-Math-7B", "dtype": "bfloat16", "context_tokens": 4096},
    "problems": {"source": "dapo17k"},
    "evaluate": {"sets": [{"source": "aime24"}, {"source": "math500"}]},
}


def config(**changes):
    return make_config({**PAPER, **changes})


def test_parameters_of_qwen_by_hand():
    # Embedding and head 152,064 x 3,584 each; a layer: q with bias 12,848,640, k and v 2 x 1,835,520, o 12,845,056,
    # MLP 3 x 67,895,296, norms 7,168; 28 layers; the last norm 3,584.
    layer = 12_848_640 + 2 * 1_835_520 + 12_845_056 + 3 * 67_895_296 + 7_168
    assert decoder_parameters(KNOWN["Qwen/Qwen2.5-Math-7B"]) == 2 * 544_997_376 + 28 * layer + 3_584 == 7_615_616_512
    assert decoder_parameters(KNOWN["Qwen/Qwen2.5-0.5B"]) == 494_032_768
    assert decoder_parameters(KNOWN["Qwen/Qwen2.5-Math-1.5B"]) == 1_543_714_304


def test_counts_and_tokens_of_the_paper_by_hand():
    plan = make_plan(config(), "h100", 8)
    counts = plan["counts"]
    assert counts["rollouts_per_rl_step"] == 512 * 16 == 8192
    assert counts["rollouts_per_iteration"] == 8192 * 200 == 1_638_400
    assert counts["rollouts"] == 4_915_200 and counts["rollouts_at_most"] == 49_152_000
    assert counts["updates_per_iteration"] == 3_200
    assert counts["rollouts_per_problem_and_iteration"] == 94.2
    assert counts["expert_trajectories_at_most"] == 17_398 * 8
    assert counts["evaluation_samples_per_policy"] == {"aime24": 960, "math500": 16_000}
    assert counts["policies_evaluated"] == 4
    assert plan["tokens"]["explored_at_most"] == 4_915_200 * 2048
    assert plan["tokens"]["evaluated_at_most"] == 16_960 * 4 * 2048


def test_sets_with_sampling_of_their_own_by_hand():
    sets = [{"source": "aime24", "samples": 64, "max_completion_tokens": 1024}, {"source": "math500"}]
    plan = make_plan(config(evaluate={"sets": sets}), "h100", 8)
    assert plan["counts"]["evaluation_samples_per_policy"] == {"aime24": 30 * 64, "math500": 500 * 32}
    assert plan["tokens"]["evaluated_at_most"] == 4 * (30 * 64 * 1024 + 500 * 32 * 2048)
    assert plan["tokens"]["evaluated"] == plan["tokens"]["evaluated_at_most"] / 2
    by_step = {"sets": sets, "snapshots": True}
    snapshots = make_plan(config(evaluate=by_step, explore={"steps": 200, "snapshot_every": 50}), "h100", 8)
    assert snapshots["counts"]["policies_evaluated"] == 1 + 3 * (1 + 4)
    assert snapshots["tokens"]["evaluated"] == plan["tokens"]["evaluated"] * 16 / 4
    longer = [{**sets[0], "max_completion_tokens": 2049}, sets[1]]
    with pytest.raises(ConfigError, match="exceed the model's context of 4096"):
        config(evaluate={"sets": longer}, prompt={"max_tokens": 2048})


def test_storage_and_memory_of_the_paper_by_hand():
    plan = make_plan(config(), "h100", 8)
    parameters = 7_615_616_512
    assert plan["storage_bytes"]["policies"] == 3 * 2 * parameters * 2
    assert plan["storage_bytes"]["trajectories"] == round(4_915_200 * 1024 * 3.5 * 2)
    # ZeRO-2 on 8: weights in bfloat16 whole; gradients (float32), and AdamW's weights and moments, an eighth of each.
    assert plan["sharding"] == {"name": "ZeRO-2", "file": "infra/accelerate/zero2.yaml"}
    explore = plan["memory"][0]
    assert explore["parts_gib"]["weights, gradients, AdamW"] == round((2 + (4 + 12) / 8) * parameters / GIB, 2)
    parts = make_plan(config(), "h200", 1)["memory"][0]["parts_gib"]
    assert parts["weights, gradients, AdamW"] == round(16 * parameters / GIB, 2)
    assert parts["bfloat16 copy"] == round(2 * parameters / GIB, 2)
    # Keys and values: 2 x 28 layers x 4 heads x 128 x 2 bytes a token; 4,096 tokens; 256 sequences.
    evaluate = plan["memory"][2]
    assert evaluate["parts_gib"]["key-value cache"] == 57_344 * 4096 * 256 / GIB == 56.0


def test_one_device_is_too_small_and_the_settings_that_help_are_named():
    lines = make_plan(config(), "h100", 1)["does_not_fit"]
    assert any("128 GiB" in line and "at least 4 devices (--gpus)" in line for line in lines)
    assert "explore: set lora.rank to 32 (adapters: another computation)" in lines
    assert any("set placement.accelerate_config to infra/accelerate/zero2-offload.yaml" in line for line in lines)
    eight = make_plan(config(placement={"micro_batch_tokens": 65_536}), "h200", 8)
    rft = next(row for row in eight["memory"] if row["stage"] == "rft")
    (fix,) = rft["fixes"]
    name, value = fix.removeprefix("set ").split(" (")[0].split(" to ")
    placement = {"micro_batch_tokens": int(value), "gradient_checkpointing": False}
    assert name == "placement.micro_batch_tokens"
    again = make_plan(config(placement=placement), "h200", 8)
    assert next(row for row in again["memory"] if row["stage"] == "rft")["fits"]


def test_a_pass_on_a_cpu_has_as_many_tokens_as_training_takes_there():
    def activations(**placement):
        cpu = config(policy={"path": "Qwen/Qwen2.5-0.5B"}, placement={"device": "cpu", **placement})
        rft = next(row for row in make_plan(cpu)["memory"] if row["stage"] == "rft")
        return rft["parts_gib"]["activations"]

    assert activations() == activations(micro_batch_tokens=16_384) < activations(micro_batch_tokens=65_536)


def test_too_many_sequences_at_once_name_the_setting_that_bounds_the_cache():
    plan = make_plan(config(placement={"generation_batch": 4096}), "h200", 8)
    explore = next(row for row in plan["memory"] if row["stage"] == "explore")
    (fix,) = [line for line in explore["fixes"] if "generation_batch" in line]
    most = int(fix.split("at most ")[1].split(" ")[0])
    placement = {"generation_batch": most, "gradient_checkpointing": True}
    again = make_plan(config(placement=placement), "h200", 8)
    assert next(row for row in again["memory"] if row["stage"] == "explore")["fits"]


def test_colocated_vllm_must_fit_beside_the_policy_as_it_is_loaded():
    def explore(share, **changes):
        placement = {"processes": 8, "vllm": {"colocated_memory": share}, "gradient_checkpointing": True}
        placement["accelerate_config"] = "infra/accelerate/zero3.yaml"  # its states are a part of the whole weights
        plan = make_plan(config(explore={"engine": "vllm"}, placement=placement, **changes), "h100", 8)
        return next(row for row in plan["memory"] if row["stage"] == "explore")

    full = explore(0.75)
    (fix,) = full["fixes"]
    most = float(fix.split(" and ")[1])
    whole = 4 * decoder_parameters(KNOWN["Qwen/Qwen2.5-Math-7B"]) / GIB
    assert most == pytest.approx(1 - whole / full["available_gib"], abs=0.005)
    assert not full["fits"] and explore(most - 0.01)["fits"]
    assert explore(0.75, lora={"rank": 32})["fits"]  # adapters: loaded in bfloat16


def test_devices_default_to_the_fewest_that_hold_the_states():
    assert make_plan(config(), "h100")["device"]["count"] == 4
    assert make_plan(config(lora={"rank": 32}), "h100")["device"]["count"] == 1
    assert make_plan(config(placement={"processes": 8}), "h100")["device"]["count"] == 8
    assert make_plan(config(policy={"path": "Qwen/Qwen2.5-0.5B"}), "h100")["device"]["count"] == 1


def test_hours_grow_with_steps_and_shrink_with_devices():
    hours = {gpus: make_plan(config(), "h200", gpus)["hours"]["total"] for gpus in (2, 8)}
    assert 0 < hours[8] < hours[2]
    short = make_plan(config(explore={"steps": 100}), "h200", 8)["hours"]["per_iteration"]
    whole = make_plan(config(), "h200", 8)["hours"]["per_iteration"]
    assert whole["explore: sampling"] == pytest.approx(2 * short["explore: sampling"])


def test_engines_share_the_batches_of_evaluation():
    def hours(gpus, **placement):
        return make_plan(config(placement=placement), "h200", gpus)["hours"]["per_iteration"]["evaluate"]

    # aime24 is 30 x 32 = 960 completions in 4 batches, math500 16,000 in 63: a batch is the least that is shared.
    one, start = hours(1), 100 / 3600
    assert hours(8) == pytest.approx(one), "transformers draws on one device"

    def vllm(gpus, **placement):
        return hours(gpus, engine="vllm", **placement) - start

    one = vllm(1)
    assert vllm(2) == pytest.approx(one * (2 + 32) / (4 + 63), rel=0.02), "what flies at a time is smaller"
    assert vllm(8) == pytest.approx(one * (1 + 8) / (4 + 63), rel=0.05)
    assert vllm(64) == vllm(8), "evaluate is computed on one machine"
    assert vllm(8, engines=2) == pytest.approx(vllm(2))
    assert vllm(8, vllm={"tensor_parallel": 2}) == pytest.approx(vllm(8, engines=4))


def test_a_policy_beyond_one_device_names_tensor_parallelism():
    wide = {"engine": "vllm", "vllm": {"tensor_parallel": 2}}
    rows = [
        next(row for row in make_plan(config(policy={**PAPER["policy"], "dtype": "float32"}, placement=placement),
                                      "rtx4090", 8)["memory"] if row["stage"] == "evaluate")
        for placement in ({"engine": "vllm"}, wide)
    ]  # fmt: skip
    assert not rows[0]["fits"] and rows[0]["fixes"] == ["set placement.vllm.tensor_parallel to 2"]
    assert rows[1]["fits"]


def test_unknown_policy_has_counts_but_neither_memory_nor_hours():
    plan = make_plan(config(policy={"path": "somebody/their-model"}), "h100")
    assert plan["policy"]["parameters"] is None and plan["memory"] == [] and plan["hours"]["total"] is None
    assert plan["counts"]["rollouts"] == 4_915_200
    assert any("name policy locally" in line for line in plan["assumptions"])


def test_local_policy_is_counted_from_its_weights(tmp_path):
    header = json.dumps({"__metadata__": {}, "a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(48))
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["Qwen/Qwen2.5-0.5B"]))
    shape = find_shape(config(policy={"path": str(tmp_path)}).policy)
    assert shape.parameters == 12 and shape.layers == 24


def test_budget_beyond_a_known_context_is_refused():
    policy = {"path": "Qwen/Qwen2.5-Math-7B"}
    with pytest.raises(ConfigError, match="exceed the model's context of 4096"):
        make_plan(config(policy=policy, explore={"max_completion_tokens": 3000}), "h100")


def test_lines_of_a_local_file_are_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"problem": "1"}\n\n{"problem": "2"}\n')
    made = make_config({"problems": {"source": str(path)}})
    assert count_problems(made.problems) == 2
    assert count_problems(make_config({"problems": {"source": str(path), "limit": 1}}).problems) == 1
    assert count_problems(make_config({"problems": {"source": "owner/name"}}).problems) is None


@pytest.mark.process
def test_touches_nothing_and_imports_nothing_heavy(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(PAPER))
    code = (
        "import sys\nfrom rloop_core.cli import main\n"
        f"try:\n    main(['plan', '--config', {str(path)!r}, '--json'])\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'prefect', 'polars', 'pandas', 'pyarrow', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["config"]["explore"]["steps"] == 200
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.yaml"]
