"""Stages that take a set time and leave what a real one left: everything around a stage is the product's own.

They stand in at one place alone, the `launch` of `StageRunner`: what decides, checks, uploads and publishes is real.
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
from rloop_core.store import Manifest, Store, read_manifest
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
        seconds: What a stage takes.
        shards: Files of rollouts that exploration leaves: one an RL step.
    """

    real: Store
    run: str
    seconds: float = 0.0
    shards: int = 20
    spans: list[tuple[str, int, float, float, float]] = field(default_factory=list)
    """Stage, iteration, beginning and end of each in seconds since 1970, and the process's MiB then."""

    def __call__(
        self,
        job: StageJob,
        tell: Callable[[dict[str, Any]], None],
        *,
        should_stop: Callable[[], bool] = lambda: False,
        **_: Any,
    ) -> StageOutcome:
        """Take the time, telling how far it is; then lay the files."""
        begun = time.time()
        for event in range(_EVENTS):
            wake = begun + self.seconds * (event + 1) / _EVENTS
            while (left := wake - time.time()) > 0:
                if should_stop():
                    raise StageError("was told to stop", field=job.stage)
                time.sleep(min(0.2, left))
            tell({"kind": "step", "done": event + 1, "total": _EVENTS, "metrics": {}})
        outcome = self._preflight(job) if job.stage == "preflight" else self._stage(job)
        self.spans.append((job.stage, job.iteration, begun, time.time(), psutil.Process().memory_info().rss / 2**20))
        return outcome

    def _preflight(self, job: StageJob) -> StageOutcome:
        out = Path(job.work) / "out"
        out.mkdir(parents=True)
        (out / "report.json").write_text("{}")
        return StageOutcome({}, {"golds_refused": {}, "training_warnings": []})

    def _stage(self, job: StageJob) -> StageOutcome:
        made = self._manifest(min(job.iteration, 0), job.stage)
        source, out = self.real.local_path(made.folder), Path(job.work) / "out"
        for entry in made.files:
            target = out / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix == ".safetensors":  # small, so that a disk holds a thousand; each policy's own
                own = hashlib.sha256(f"{job.run} {job.iteration} {job.stage}".encode()).digest()
                target.write_bytes(own * (_WEIGHTS_BYTES // len(own)))
            else:
                shutil.copyfile(source / entry.path, target)
        if job.stage == "explore":
            first = out / "shards" / ShardName(1, 0, None).format()
            for step in range(2, self.shards + 1):
                shutil.copyfile(first, first.with_name(ShardName(step, 0, None).format()))
        (out / "simulated.json").write_text(json.dumps({"run": job.run, "iteration": job.iteration}))
        return StageOutcome(made.counts, made.metrics, self.seconds)

    def _manifest(self, iteration: int, stage: str) -> Manifest:
        made = read_manifest(self.real, self.run, iteration, stage)
        assert made, f"{self.run} has no {stage} of iteration {iteration}"
        return made


def make_real_run(folder: Path) -> TimedStages:
    """Compute one iteration of the smoke config for real, or take the one that is there."""
    store = Store(str(folder))
    if not (folder / "smoke/iteration-000/evaluate/manifest.json").is_file():
        command = [sys.executable, "-m", "rloop_core", "run", "--config", CONFIG, "--iterations", "1", "--quiet"]
        subprocess.run([*command, "--store", str(folder)], check=True, stdout=subprocess.DEVNULL)
    return TimedStages(store, "smoke")


def config_for(store: str, scratch: Path, name: str, iterations: int, **more: Any) -> Config:
    """The smoke config as a run of its own."""
    fields = {"name": name, "iterations": iterations, "placement.store": store, "placement.scratch": str(scratch)}
    fields |= more
    return load_config(CONFIG, [f"{key}={json.dumps(value)}" for key, value in fields.items()])
