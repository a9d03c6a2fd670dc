"""ZeRO-2 and ZeRO-3 with states in the host's memory, on one GPU: explore and rft of a few steps each."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.check import Check, Line, NotMeasured, Part
from benchmarks.gpu.device import GIB, ROOT, PeakMemory
from benchmarks.gpu.policy import ONE_AND_A_HALF, STAGES, iteration_config
from benchmarks.gpu.processes import stage_runner
from rloop_core.errors import RLoopError
from rloop_core.rollout.policy import policy_digest
from rloop_core.store import Manifest, Store

WAYS = {"zero2": "ZeRO-2, optimizer in host memory", "zero3": "ZeRO-3, weights and optimizer in host memory"}
JUDGED = ("explore", "rft")
WITHOUT_DEEPSPEED = """\
compute_environment: LOCAL_MACHINE
distributed_type: 'NO'
num_machines: 1
num_processes: 1
use_cpu: true
"""


def run(check: Check) -> None:
    """Train each way in turn; the failure of one leaves the other its chance."""
    if check.device == "cuda" and find_spec("deepspeed") is None:
        raise NotMeasured("deepspeed is not installed")
    for way in WAYS:
        file = ROOT / f"infra/accelerate/{way}-offload.yaml"
        if check.device == "cpu":
            if way == "zero3":
                why = "DeepSpeed trains on GPUs alone; accelerate's launcher was tried once"
                check.leave_out(why, *(f"{way}-{stage}" for stage in JUDGED))
                continue
            file = check.folder / "one-process.yaml"
            file.write_text(WITHOUT_DEEPSPEED)
        try:
            _train(check, way, file)
        except RLoopError as error:
            for stage in JUDGED:
                check.answer(f"{way}-{stage}", "failed", "", str(error))


def _train(check: Check, way: str, file: Path) -> None:
    changes = {
        "name": way,
        "placement.accelerate_config": str(file),
        "explore.engine": "transformers",
        "placement.engine": "transformers",
        "explore.learning_rate": 1e-4,
        "rft.learning_rate": 1e-4,
        "evaluate.sets": [],
    }
    full = {
        "explore.problems_per_step": 16,
        "explore.mini_batch_rollouts": 128,
        "explore.max_completion_tokens": 64,
    }
    config = iteration_config(check, "qwen2.5-math-1.5b.yaml", ONE_AND_A_HALF, changes, full=full, store=f"store-{way}")
    digest_before = policy_digest(Path(config.policy.path))
    with stage_runner(config) as runner:
        for stage in STAGES[:-1]:
            with PeakMemory(check.device) as memory:
                manifest = runner.ensure(stage, 0).manifest
            if stage not in JUDGED:
                continue
            finite, loss = _loss(runner.store, manifest)
            changed = policy_digest(runner.store.local_path(f"{manifest.folder}/policy")) != digest_before
            gpu_peak = f"{memory.taken / GIB:.1f} GiB of the GPU, " if check.device == "cuda" else ""
            measured = (
                f"{loss}; policy {'changed' if changed else 'UNCHANGED'}; peak {gpu_peak}"
                f"{memory.host_peak / GIB:.1f} GiB of the host; {manifest.seconds:.0f} s"
            )
            why = "accelerate's launcher without DeepSpeed, which needs a GPU" if check.device == "cpu" else ""
            check.judge(f"{way}-{stage}", finite and changed, measured, why)


def _loss(store: Store, manifest: Manifest) -> tuple[bool, str]:
    """Return whether every loss is finite, and the first and last of them in words."""
    from rloop_core.training.metrics_log import read_rows

    if manifest.stage == "explore":
        values = [row["loss"] for row in read_rows(store.local_path(f"{manifest.folder}/metrics.jsonl"))]
    elif manifest.metrics["status"] == "trained":
        values = [manifest.metrics["loss_first"], manifest.metrics["loss_last"]]
    else:
        return False, "nothing to train on: no rollout was correct"
    return all(map(math.isfinite, values)), f"loss {values[0]:.3g} to {values[-1]:.3g}"


PART = Part(
    "sharding",
    "ZeRO-2 and ZeRO-3 with states in the host's memory, on one GPU",
    "8 min; 1 min",
    tuple(
        Line(f"{way}-{stage}", f"{stage} under {words}", "finite losses, another policy")
        for way, words in WAYS.items()
        for stage in JUDGED
    ),
    run,
)
