"""Work at the end of each RL step: metrics, snapshots, and the marker of a complete checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rloop_core.errors import StageError
from rloop_core.training.checkpoints import mark_complete
from rloop_core.training.metrics_log import DRIFT_METRICS, MetricsLog
from rloop_core.training.trainer import DapoTrainer

_AVERAGED = {
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "loss": "loss",
    "clip_ratio/low_mean": "clip_ratio_low",
    "clip_ratio/high_mean": "clip_ratio_high",
    "clip_ratio/region_mean": "clip_ratio",
    "learning_rate": "learning_rate",
    **DRIFT_METRICS,
}


class StepBoundary(TrainerCallback):  # type: ignore[misc]
    """Turns TRL's logs of updates into one row per RL step, and saves snapshots.

    Args:
        trainer: The trainer, for its step metrics and problem stream.
        log: Takes the rows; None on all ranks but the first.
        snapshot_every: RL steps between snapshots of the weights; 0 for none.
        save_snapshot: Writes the policy's current weights, given the RL step.
    """

    def __init__(
        self, trainer: DapoTrainer, log: MetricsLog | None, snapshot_every: int, save_snapshot: Callable[[int], None]
    ) -> None:
        self._trainer = trainer
        self._log = log
        self._snapshot_every = snapshot_every
        self._save_snapshot = save_snapshot
        self._updates: list[dict[str, float]] = []
        self._started = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **unused: Any) -> None:
        """Collect an update's metrics; after the last update of an RL step, log the step.

        Raises:
            StageError: The loss or the gradient norm is not finite.
        """
        if not logs or "grad_norm" not in logs:
            return
        self._updates.append({name: float(logs[key]) for key, name in _AVERAGED.items() if logs.get(key) is not None})
        step, unfinished = divmod(state.global_step, self._trainer.explore.updates_per_step)
        if unfinished:
            return
        metrics = {"step": step, "policy_step": state.global_step, **self._averages(), **self._trainer.step_metrics}
        if not math.isfinite(metrics.get("loss", math.nan)) or not math.isfinite(metrics.get("grad_norm", math.nan)):
            raise StageError(
                f"RL step {step}: loss {metrics.get('loss')}, gradient norm {metrics.get('grad_norm')}",
                field="explore.learning_rate",
                fix="lower it; the phase resumes from its last checkpoint",
            )
        if self._log:
            self._log.add(metrics, {"step": step, **self._seconds()})
        self._updates.clear()
        if self._snapshot_every and step % self._snapshot_every == 0:
            self._save_snapshot(step)

    def on_save(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Mark a checkpoint as complete once every rank has written to it."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        accelerator = self._trainer.accelerator
        accelerator.wait_for_everyone()  # each rank writes its random state
        if state.is_world_process_zero and folder.is_dir():
            mark_complete(folder, state.global_step, self._trainer.stream.cursor, accelerator.num_processes)

    def _averages(self) -> dict[str, float]:
        averages = {}
        for name in sorted({name for update in self._updates for name in update}):
            values = [update[name] for update in self._updates if name in update]
            averages[name] = sum(values) / len(values)
        averages["grad_norm_max"] = max(update.get("grad_norm", math.nan) for update in self._updates)
        return averages

    def _seconds(self) -> dict[str, float]:
        now = time.perf_counter()
        phases = self._trainer.take_seconds()
        phases["update"] = now - self._started - sum(phases.values())
        self._started = now
        return {name: round(value, 4) for name, value in phases.items()}
