"""A whole study in one store, made without training: every run is published as the stages would publish it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from rloop_core.config import Config
from rloop_core.evaluation.outcomes import problem_outcomes, summarise
from rloop_core.results.study.config import StudyConfig, make_study, study_runs
from rloop_core.stages.order import stages_of
from rloop_core.stages.run_record import write_run_record
from rloop_core.store import Store
from rloop_core.trajectories.shards import write_shard
from tests.results.conftest import FIGURES, FakeRun, row

SAMPLES, PHASE, ITERATIONS = 4, 4, 2
TOTAL = PHASE * ITERATIONS
PROBLEMS = {"held-out <b>": 10, "harder": 6}
ARMS = {
    "rloop": {"title": "RLoop"},
    "vanilla-rl": {"title": "RL", "vanilla": True},
    "all-problems": {
        "title": "no active learning",
        "set": ["filter.active_learning=false"],
        "about": "Every <i>solved</i> problem counts as hard.",
    },
}


def make_config(seeds: tuple[int, ...] = (1, 2), **changes: Any) -> StudyConfig:
    """Three arms on two sets."""
    run = {
        "iterations": ITERATIONS,
        "problems": {"source": "train.jsonl"},
        "explore": {
            "steps": PHASE, "problems_per_step": 3, "group_size": 4, "mini_batch_rollouts": 12, "snapshot_every": 2,
        },
        "filter": {"threshold": 0.6},
        "evaluate": {
            "samples": SAMPLES, "k": [1, 2, 4], "snapshots": True,
            "sets": [{"source": f"{i}.jsonl", "name": label} for i, label in enumerate(PROBLEMS)],
        },
    }  # fmt: skip
    return make_study({"name": "tiny", "seeds": list(seeds), "arms": ARMS, "run": run, **changes})


def draw(arm: str, seed: int, step: int, kind: str, label: str, problems: int, samples: int) -> np.ndarray:
    """Correct samples of each problem; vanilla RL peaks early and falls, the others hold what they have."""
    hard = np.random.default_rng(zlib.crc32(label.encode())).normal(-0.5 if label == "harder" else 0.5, 1.2, problems)
    if not step:
        arm, kind = "both", "base"
    done = step / TOTAL
    gain = 1.5 * done if arm != "vanilla-rl" else 4.5 * done - 7.0 * done**2
    noise = np.random.default_rng(zlib.crc32(f"{arm} {seed} {step} {kind} {label}".encode()))
    level = np.random.default_rng(seed).normal(0, 0.1)
    return noise.binomial(samples, 1 / (1 + np.exp(-(hard + gain + level))))


class StudyArm(FakeRun):
    """One run of a study."""

    def __init__(self, root: Path, config: Config, store: Store, arm: str, sizes: dict[str, int]) -> None:
        super().__init__(root / config.name, config)
        self.store, self.short, self.sizes = store, arm, sizes
        write_run_record(store, config)

    def finish(self) -> None:
        """Publish every stage."""
        for iteration, stage in stages_of(self.config):
            fill = {"explore": self.explored, "evaluate": self.evaluated}.get(stage)
            own = getattr(self, stage)
            self.publish(iteration, stage, lambda out, i=iteration, f=fill, g=own: f(out, i) if f else g(out))

    def explored(self, out: Path, iteration: int) -> dict[str, Any]:
        steps = range(1, self.config.explore.steps + 1)
        noise = np.random.default_rng([self.config.seed, iteration])
        before = iteration * self.config.explore.steps if self.config.arm == "vanilla-rl" else 0
        rows = [
            {"step": step, **FIGURES, "rollouts": 12.0, "entropy": 1 / step,
             "reward": 1.2 * (before + step) / TOTAL - 0.3 + noise.normal(0, 0.02),
             "accuracy": 0.35 + 0.6 * (before + step) / TOTAL}
            for step in steps
        ]  # fmt: skip
        (out / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
        return {"seconds": {"generate": 1.0}}

    def evaluated(self, out: Path, iteration: int) -> dict[str, Any]:
        config = self.config
        every = config.explore.snapshot_every
        steps = range(every, config.explore.steps + 1, every) if iteration >= 0 and config.evaluate.snapshots else ()
        by_step = {step: self._samples(out, iteration, step) for step in (0, *steps)}
        content = {
            "sets": by_step.pop(0),
            "folders": {one.label: f"set-{place:02d}" for place, one in enumerate(config.evaluate.sets)},
            "snapshots": {str(step): found for step, found in by_step.items()},
        }
        (out / "metrics.json").write_text(json.dumps(content))
        return content["sets"]

    def _samples(self, out: Path, iteration: int, step: int) -> dict[str, Any]:
        config, found = self.config, {}
        place = out / f"step-{step:06d}" if step else out
        total = iteration * config.explore.steps + step if step else (iteration + 1) * config.explore.steps
        for number, source in enumerate(config.evaluate.sets):
            n = config.evaluate.samples
            kind = "snapshot" if step else "end"
            right = draw(self.short, config.seed, total, kind, source.label, self.sizes[source.label], n)
            rows = [row(f"p{p:03d}", s, s < count, step=step) for p, count in enumerate(right) for s in range(n)]
            files = [write_shard(place / f"set-{number:02d}", step, 0, 0, rows)]
            found[source.label] = summarise(problem_outcomes(files), config.evaluate.k)
        return found


def make_store(root: Path, study: StudyConfig, sizes: dict[str, int] | None = None) -> dict[tuple[str, int], StudyArm]:
    """Every run of a study in the store `<root>/store`, nothing published yet."""
    store = Store(str(root / "store"))
    runs = study_runs(study, store.uri)
    return {(run.arm, run.seed): StudyArm(root, run.config, store, run.arm, sizes or PROBLEMS) for run in runs}
