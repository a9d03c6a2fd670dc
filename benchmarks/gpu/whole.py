"""A whole iteration of a 1.5 B policy: two RL steps, harvest, filter, fine-tuning, evaluation, within ten minutes."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.bench import Bench, Line, Part
from benchmarks.gpu.iteration import STAGES, iteration_config
from benchmarks.gpu.policy import ONE_AND_A_HALF
from benchmarks.gpu.processes import stage_runner

SECONDS = 600


def run(bench: Bench) -> None:
    """Run stage by stage; a stage that an earlier call finished counts with the seconds that it took then."""
    full = {
        "explore.problems_per_step": 32,
        "explore.mini_batch_rollouts": 256,
        "explore.max_completion_tokens": 1024 if bench.in_loop_vllm else 384,
        "explore.learning_rate": 1e-5,
        "evaluate.samples": 16,
        "evaluate.k": [1, 16],
    }
    config = iteration_config(bench, "qwen2.5-math-1.5b.yaml", ONE_AND_A_HALF, {"name": "whole"}, full=full)
    seconds, trained = 0.0, False
    with stage_runner(config) as runner:
        runner.preflight()
        for stage in STAGES:
            manifest = runner.ensure(stage, 0).manifest
            seconds += manifest.seconds
            bench.show(stage, f"{manifest.seconds:.0f} s; {_facts(stage, manifest.counts, manifest.metrics)}")
            if stage == "rft":
                trained = manifest.metrics["status"] == "trained"
    measured = f"{seconds:.0f} s; rft {'trained' if trained else 'carried theta_i: no rollout was correct'}"
    shape = "cut in size" if bench.small else "1.5 B"
    why = f"{shape}, random weights taught to box a digit or to babble to the budget; {bench.engine_words}"
    bench.judge("whole", trained and seconds <= SECONDS, measured, why)


def _facts(stage: str, counts: dict[str, Any], metrics: dict[str, Any]) -> str:
    if stage == "explore":
        phases = ", ".join(f"{name} {value:.0f} s" for name, value in metrics["seconds"].items())
        return f"{counts['rollouts']} rollouts, accuracy {metrics['accuracy_last']:.2f}; {phases}"
    if stage == "evaluate":
        avg = next(name for name in metrics["held-out"] if name.startswith("avg"))
        return f"{avg} {metrics['held-out'][avg]['value']:.2f} of {metrics['held-out']['samples']} samples"
    if stage == "rft":
        return f"{counts['trajectories']} trajectories, {counts['updates']} updates, {metrics['status']}"
    return ", ".join(f"{name} {value}" for name, value in counts.items() if isinstance(value, int))


PART = Part(
    "whole",
    "a 1.5 B policy through explore (2 RL steps), harvest, filter, rft and evaluate",
    "7 min; 1 min",
    (
        Line("whole", "the five stages together, no failures", f"at most {SECONDS} s, rft trained"),
        *(Line(stage, f"of which {stage}") for stage in STAGES),
    ),
    run,
    resumes=True,
)
