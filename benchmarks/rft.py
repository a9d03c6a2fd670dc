"""Fine-tuning on completions of the demo's lengths, against TRL's own SFTTrainer with the same settings, in turns."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.gpu.processes import run_alone
from benchmarks.measure import Result
from benchmarks.trainers import Figures

PROBLEMS, SAMPLES, BATCH, ROUNDS = 64, 8, 64, 5
BAR, PADDING_BAR = 0.60, 1.06


def bench() -> list[Result]:
    """Return the ratio of the seconds of an epoch, and the padding of its updates."""
    seconds, ours, bare = run_alone(_measure)
    ratios = [mine / other for mine, other in zip(seconds["ours"], seconds["bare"], strict=True)]
    times = f"{median(seconds['ours']):.2f} s against {median(seconds['bare']):.2f} s an epoch"
    detail = f"{times}; ratios of {ROUNDS} {min(ratios):.3f} to {max(ratios):.3f}"
    padding = f"bare TRL {bare.padding:.3f}; {ours.real:,} real tokens"
    return [
        Result("rft: tokens computed in updates / real", ours.padding, PADDING_BAR, "x", padding),
        Result("rft: an epoch / bare TRL's", median(ratios), BAR, "x", detail),
    ]


def _measure() -> tuple[dict[str, list[float]], Figures, Figures]:
    """Train one epoch in turns, in one thread; the first round warms up."""
    import torch
    from transformers import PrinterCallback

    from rloop_core.config import load_config
    from rloop_core.policies import bundled_policy_path
    from rloop_core.problems import load_problems
    from rloop_core.rollout.engine import SamplingSettings
    from rloop_core.rollout.policy import load_model, load_tokenizer
    from rloop_core.rollout.prompts import encode_problems
    from rloop_core.rollout.sampler import TransformersSampler
    from rloop_core.training.rft import make_trainer
    from rloop_core.training.settings import TrainingJob

    torch.set_num_threads(1)
    folder = bundled_policy_path()
    changes = {"problems.size": PROBLEMS, "rft.batch_trajectories": BATCH, "rft.learning_rate": 1e-12}
    config = load_config("deployments/configs/demo.yaml", [f"{name}={json.dumps(to)}" for name, to in changes.items()])
    tokenizer, model = load_tokenizer(folder), load_model(folder, dtype="float32", device="cpu").eval()
    problems = encode_problems(load_problems(config.problems), config.prompt, tokenizer)
    most = config.explore.max_completion_tokens
    settings = SamplingSettings(samples=SAMPLES, temperature=1.0, top_p=1.0, max_tokens=most, batch=256, seed=1)
    batches = TransformersSampler(model, tokenizer).sample(problems, settings)
    finished = [sample for _, batch in batches for sample in batch if sample.finished]
    prompts, completions = [list(one.problem.prompt_ids) for one in finished], [one.token_ids for one in finished]
    seconds: dict[str, list[float]] = {"bare": [], "ours": []}
    figures = {name: Figures() for name in seconds}
    gc.freeze()  # as in a stage's process; Trainer collects garbage when it starts, 0.4 s of what is loaded
    with tempfile.TemporaryDirectory() as work:
        for number in range(ROUNDS + 1):
            for name in seconds:
                job = TrainingJob(config, config.seed, folder, Path(work), "cpu")
                trainer = make_trainer(job, prompts, completions, by_tokens=name == "ours")
                trainer.remove_callback(PrinterCallback)
                trainer.model.register_forward_pre_hook(figures[name].count, with_kwargs=True)
                started = time.perf_counter()
                trainer.train()
                if number:
                    seconds[name].append(time.perf_counter() - started)
    return seconds, figures["ours"], figures["bare"]
