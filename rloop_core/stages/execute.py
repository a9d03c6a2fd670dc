"""The body of a stage's process: inputs in, checked; the right stage called; files in `<work>/out`."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rloop_core.config import Config, make_config
from rloop_core.errors import ArtifactDamaged, ConfigError, StageError
from rloop_core.problems import ProblemSet
from rloop_core.seeds import derive_seed
from rloop_core.stages.job import InputRef, StageJob, StageOutcome, draws
from rloop_core.stages.problem_store import read_problems
from rloop_core.stages.rank_group import join
from rloop_core.store import Cache, Store, fetch, read_manifest
from rloop_core.verifier import Verifier

Event = dict[str, Any]


@dataclass(frozen=True)
class StageContext:
    """What every stage's `run` gets.

    Args:
        job: What was asked.
        config: Its config, validated.
        store: The object store.
        seed: Seed of this stage of this iteration.
        device: "cpu" or "cuda".
        tell: Sends a progress event to whoever watches the run.
        rank: This process among those of the stage; the first lays out the artifact.
        ranks: Processes of the stage.
    """

    job: StageJob
    config: Config
    store: Store
    seed: int
    device: str
    tell: Callable[[Event], None]
    rank: int = 0
    ranks: int = 1

    @property
    def work(self) -> Path:
        """Scratch folder; survives crashes."""
        return Path(self.job.work)

    @property
    def share(self) -> tuple[int, int]:
        """(i, n): the i-th of n shares of the batches that the stage draws, counted from 1."""
        return (self.job.share.machine + 1, self.job.share.machines) if self.job.share else (1, 1)

    @property
    def out(self) -> Path:
        """Where the artifact's files go."""
        return self.work / "out"

    def folder(self, role: str) -> Path:
        """An input as a local folder whose files were checked against their digests."""
        ref = self._ref(role)
        if ref.kind == "outside":
            return Path(ref.location)
        manifest = read_manifest(self.store, self.job.run, ref.iteration, ref.stage)
        if manifest is None or manifest.digest != ref.digest:
            raise ArtifactDamaged("is gone or was replaced", field=ref.uri, fix="it is made again")
        root = fetch(self.store, manifest, Cache(Path(self.job.cache), self.config.placement.cache_bytes))
        return root / "policy" if role == "policy" else root

    def counts(self, role: str) -> dict[str, Any]:
        """What the manifest of an input counts."""
        ref = self._ref(role)
        manifest = read_manifest(self.store, self.job.run, ref.iteration, ref.stage)
        return manifest.counts if manifest else {}

    def problems(self, role: str) -> ProblemSet:
        """A problem set, as it was when the run first read it."""
        ref = self._ref(role)
        return read_problems(self.store, ref.location, ref.digest)

    def verifier(self) -> Verifier:
        """A verifier as placement wants it; a context manager."""
        placement = self.config.placement
        return Verifier(
            workers=placement.verifier_workers,
            timeout=placement.verifier_timeout_seconds,
            memory_mb=placement.verifier_memory_mb,
            policies=self.config.verifier,
        )

    def tracked(self) -> AbstractContextManager[Callable[[Event], None]]:
        """Logs rows to the trackers that placement names, from the first rank alone."""
        from rloop_core.trackers import tracked

        if self.rank:
            return nullcontext(lambda row: None)
        return tracked(
            self.config,
            self.job.stage,
            self.job.iteration,
            self.work.name,
            lambda line: self.tell({"kind": "note", "note": line}),
        )

    def roles(self, prefix: str) -> list[str]:
        """Roles of the inputs that start so, in order."""
        return [ref.role for ref in self.job.inputs if ref.role.startswith(prefix)]

    def _ref(self, role: str) -> InputRef:
        return next(ref for ref in self.job.inputs if ref.role == role)


def execute(job: StageJob, tell: Callable[[Event], None], rank: int = 0, ranks: int = 1) -> StageOutcome:
    """Compute a stage here and now, or a rank's share of it; its files lie in `<work>/out` after the first rank's.

    Raises:
        RLoopError: The stage could not prove its own success.
    """
    started = time.monotonic()
    config = make_config(job.config)
    _set_up(config)
    seed = derive_seed(config.seed, job.stage, job.iteration)
    store = Store(job.store, config.placement.store_patience_seconds, lambda line: tell({"kind": "note", "note": line}))
    context = StageContext(job, config, store, seed, _device(config, job.stage), tell, rank, ranks)
    join(job, context.device, rank, ranks)
    run: Callable[[StageContext], StageOutcome] = import_module(f"rloop_core.stages.{job.stage}").run
    outcome = run(context)
    lays_out = rank == 0 and not (job.share and draws(job))
    if lays_out and not any(path.is_file() for path in context.out.rglob("*")):
        raise StageError("left no files", field=job.stage, fix="see its log")
    return StageOutcome(outcome.counts, outcome.metrics, time.monotonic() - started, outcome.drawn_by)


def _set_up(config: Config) -> None:
    """Threads and logging of this process; the libraries' own chatter goes to the stage's log."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    import tqdm

    # Its default lock is a semaphore shared between processes, which a killed stage would leave behind.
    tqdm.tqdm.set_lock(threading.RLock())
    if config.placement.threads:
        torch.set_num_threads(config.placement.threads)
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


def _device(config: Config, stage: str) -> str:
    """ "cpu" or "cuda"; of several ranks each has a GPU of its own under that name."""
    import torch

    wanted = config.placement.device
    without = {"filter", *([] if config.harvest.snapshot_samples else ["harvest"])}
    if stage in without or (stage == "preflight" and "explore" in config.placement.pools):
        return "cpu"  # needs no GPU, or is not where the GPU is
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no GPU is visible here", field="placement.device", fix="set it to auto or cpu")
    if wanted != "cpu" and torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
        number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= count:
            what = f"{socket.gethostname()} shows {count} GPUs, and has at least {number + 1} of the processes"
            raise ConfigError(what, field="placement.processes", fix="give each machine as many processes as GPUs")
        torch.cuda.set_device(number)
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
