"""Simulated stages: they take a set time and copy the files of a real run; everything around a stage is real.

They replace the `launch` of `StageRunner` only: what decides, checks, uploads and publishes is the product's own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rloop_core.config import Config, load_config
from rloop_core.errors import StageError
from rloop_core.stages.job import StageJob, StageOutcome
from rloop_core.store import Store, read_manifest
from rloop_core.trajectories.shards import ShardName

CONFIG = "deployments/configs/smoke.yaml"
_EVENTS = 4
_WEIGHTS_BYTES = 1024


@dataclass
class TimedStages:
    """A `launch` for `StageRunner`.

    Args:
        real: Store that holds a real run of one iteration.
        run: Its name.
        seconds: Duration of a stage.
        shards: Files of rollouts that exploration leaves: one an RL step.
    """

    real: Store
    run: str
    seconds: float = 0.0
    shards: int = 20
    spans: list[tuple[str, int, float, float, float]] = field(default_factory=list)
    """Stage, iteration, beginning and end in seconds since 1970, and the process's MiB at its end."""

    def __call__(
        self,
        job: StageJob,
        on_event: Callable[[dict[str, Any]], None],
        *,
        should_stop: Callable[[], bool] = lambda: False,
        **_: Any,
    ) -> StageOutcome:
        """Take the time, reporting progress; then copy the files."""
        started = time.time()
        for event in range(_EVENTS):
            wake = started + self.seconds * (event + 1) / _EVENTS
            while (left := wake - time.time()) > 0:
                if should_stop():
                    raise StageError("was told to stop", field=job.stage)
                time.sleep(min(0.2, left))
            on_event({"kind": "step", "done": event + 1, "total": _EVENTS, "metrics": {}})
        outcome = self._preflight(job) if job.stage == "preflight" else self._stage(job)
        self.spans.append((job.stage, job.iteration, started, time.time(), psutil.Process().memory_info().rss / 2**20))
        return outcome

    def _preflight(self, job: StageJob) -> StageOutcome:
        out = Path(job.work) / "out"
        out.mkdir(parents=True)
        (out / "report.json").write_text("{}")
        return StageOutcome({}, {"golds_refused": {}, "training_warnings": []})

    def _stage(self, job: StageJob) -> StageOutcome:
        manifest = read_manifest(self.real, self.run, min(job.iteration, 0), job.stage)
        assert manifest, f"{self.run} has no {job.stage} of iteration {min(job.iteration, 0)}"
        source, out = self.real.local_path(manifest.folder), Path(job.work) / "out"
        for entry in manifest.files:
            target = out / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix == ".safetensors":  # small, so that a disk holds a thousand, and different in each policy
                digest = hashlib.sha256(f"{job.run} {job.iteration} {job.stage}".encode()).digest()
                target.write_bytes(digest * (_WEIGHTS_BYTES // len(digest)))
            else:
                shutil.copyfile(source / entry.path, target)
        if job.stage == "explore":
            first = out / "shards" / ShardName(1, 0, None).format()
            for step in range(2, self.shards + 1):
                shutil.copyfile(first, first.with_name(ShardName(step, 0, None).format()))
        (out / "simulated.json").write_text(json.dumps({"run": job.run, "iteration": job.iteration}))
        return StageOutcome(manifest.counts, manifest.metrics, self.seconds)


def make_real_run(folder: Path) -> Path:
    """Compute one iteration of the smoke config in a store, unless it is there; return the store's folder."""
    if not (folder / "smoke/iteration-000/evaluate/manifest.json").is_file():
        command = [sys.executable, "-m", "rloop_core", "run", "--config", CONFIG, "--iterations", "1", "--quiet"]
        subprocess.run([*command, "--store", str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


def config_for(store: str, scratch: Path, name: str, iterations: int, **more: Any) -> Config:
    """Return the smoke config as a run with its own name and length."""
    fields = {"name": name, "iterations": iterations, "placement.store": store, "placement.scratch": str(scratch)}
    fields |= more
    return load_config(CONFIG, [f"{key}={json.dumps(value)}" for key, value in fields.items()])
