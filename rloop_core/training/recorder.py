"""Every rollout of an RL step, on disk before anything filters it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rloop_core.trajectories.shards import write_shard


class RolloutRecorder:
    """Writes one shard an RL step and rank.

    Args:
        directory: Where shards go.
        run: Name of the run.
        iteration: Iteration number.
        rank: This process's rank.
        attempt: How often this stage was started before; later attempts win.
    """

    def __init__(self, directory: Path, run: str, iteration: int, rank: int, attempt: int) -> None:
        self._directory = directory
        self._fixed = {"run": run, "iteration": iteration, "rank": rank, "attempt": attempt}
        self._rank = rank
        self._attempt = attempt

    def write(self, step: int, rows: list[dict[str, Any]]) -> Path:
        """Record one RL step's rollouts (all of them, kept or not) in one atomic write."""
        return write_shard(
            self._directory, step, self._rank, self._attempt, [{**self._fixed, "step": step, **row} for row in rows]
        )
