"""Exploration with recording beside bare TRL, both with vLLM on the trainer's GPU, RL step by RL step in turns.

Each trainer has a process of its own, since vLLM can be colocated but once in one. Learning rate 0, the same problems
and the same random state let both draw the same completions.
"""

from __future__ import annotations

import multiprocessing
import statistics
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench, Part
from benchmarks.gpu.iteration import ready_policy
from benchmarks.gpu.policy import HALF
from benchmarks.gpu.row import Line
from rloop_core.config import Config
from rloop_core.runtime.lifetime import die_with_parent

BAR = 1.03
WARM_UP, STEPS = 2, 8
KINDS = ("bare", "recorded")


def run(bench: Bench) -> None:
    """Two processes take turns; the median of their ratios is the answer."""
    if bench.device == "cuda" and not bench.in_loop_vllm and not bench.small:
        bench.leave_out("ratio", "vLLM is not installed")
        return
    steps = 3 if bench.small else STEPS
    policy, problems = ready_policy(bench, HALF)
    seconds, lengths = in_turns(explore_config(bench, policy, problems, WARM_UP + steps), policy, bench)
    ratios = [ours / theirs for theirs, ours in zip(*(seconds[kind][WARM_UP:] for kind in KINDS), strict=True)]
    medians = {kind: statistics.median(seconds[kind][WARM_UP:]) for kind in KINDS}
    pair = f"{medians['recorded']:.3f} s against {medians['bare']:.3f} s"
    alike = "the same completions" if lengths["bare"] == lengths["recorded"] else "completions of their own"
    measured = f"{statistics.median(ratios):.3f} x; {pair}; ratios of {steps} steps {min(ratios):.3f} to "
    measured += f"{max(ratios):.3f}"
    engine = "vLLM colocated" if bench.in_loop_vllm else "transformers, for vLLM cannot follow a trainer on a CPU"
    bench.judge_speed("ratio", statistics.median(ratios) <= BAR, measured, f"{engine}; both drew {alike}")


def explore_config(bench: Bench, policy: Path, problems: Path, steps: int) -> Config:
    """RL steps of 256 rollouts that learn nothing."""
    size = {
        "explore.problems_per_step": 4 if bench.small else 16,
        "explore.group_size": 4 if bench.small else 16,
        "explore.mini_batch_rollouts": 8 if bench.small else 128,
        "explore.max_completion_tokens": 24 if bench.small else 512,
        "placement.micro_batch_rollouts": 8 if bench.small else 16,
    }
    return bench.config(
        "qwen2.5-0.5b.yaml",
        {
            "policy.path": str(policy),
            "problems": {"source": str(problems)},
            "explore.steps": steps,
            "explore.learning_rate": 1e-12,
            "explore.overlong.buffer_tokens": 0,
            "explore.dynamic_sampling.enabled": False,
            "explore.engine": bench.engines["explore.engine"],
            "prompt.max_tokens": 256,
            "evaluate.sets": [],
            "placement.checkpoint_every": 1000,
            **size,
        },
    )


def in_turns(config: Config, policy: Path, bench: Bench) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and mean lengths of each RL step, by trainer; one starts after the other, then they take turns."""
    context = multiprocessing.get_context("spawn")
    players: dict[str, tuple[Any, Connection]] = {}
    try:
        for kind in KINDS:
            mine, theirs = context.Pipe()
            work = bench.folder / kind
            process = context.Process(target=play, args=(kind, config, policy, work, bench.device, theirs), name=kind)
            process.start()
            theirs.close()
            players[kind] = (process, mine)
            told(mine, kind)
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(config.explore.steps):
            for kind, (_, turn) in players.items():
                turn.send("go")
                seconds[kind].append(told(turn, kind))
        lengths = {kind: told(turn, kind) for kind, (_, turn) in players.items()}
    finally:
        for process, turn in players.values():
            turn.close()
            process.join(30)
    return seconds, lengths


def told(turn: Connection, kind: str) -> Any:
    """What a trainer's process says next.

    Raises:
        RuntimeError: It failed; with its own reason, where it could still say it.
    """
    try:
        kind_of, said = turn.recv()
    except EOFError:
        raise RuntimeError(f"the process of the {kind} trainer ended early; its last words are in the log") from None
    if kind_of == "error":
        raise RuntimeError(f"the {kind} trainer failed: {said}")
    return said


def play(kind: str, config: Config, policy: Path, work: Path, device: str, turn: Connection) -> None:
    """Body of a trainer's process: build, then train one RL step whenever it is told to go."""
    die_with_parent()
    try:
        _train(kind, config, policy, work, device, turn)
    except Exception as error:
        turn.send(("error", f"{type(error).__name__}: {error}"))
        raise


def _train(kind: str, config: Config, policy: Path, work: Path, device: str, turn: Connection) -> None:
    import shutil

    import torch
    from transformers import PrinterCallback

    from benchmarks.trainers import Clock, bare_trainer
    from rloop_core.problems import load_problems
    from rloop_core.rollout.policy import load_tokenizer
    from rloop_core.rollout.prompts import encode_problems
    from rloop_core.training.explore import ExploreJob, make_trainer
    from rloop_core.verifier import Verifier

    if device == "cpu":
        torch.set_num_threads(1)
    shutil.rmtree(work, ignore_errors=True)
    problems = encode_problems(load_problems(config.problems), config.prompt, load_tokenizer(policy))
    with Verifier() as verifier:
        job = ExploreJob(config, 0, 0, config.seed, policy, work, device)
        make = bare_trainer if kind == "bare" else make_trainer
        trainer = make(job, problems, verifier)
        clock = Clock(config.explore.updates_per_step, turn.recv, lambda seconds: turn.send(("seconds", seconds)))
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(clock.callback())
        turn.send(("ready", None))
        trainer.train()
        turn.send(("lengths", clock.lengths))


PART = Part(
    "explore",
    "exploration with every rollout recorded against bare TRL, vLLM colocated in both",
    "8 min; 1 min",
    (Line("ratio", "RL step with recording / bare TRL's, median ratio", f"at most {BAR} x"),),
    run,
)
