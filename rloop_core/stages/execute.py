"""Compute a stage in this process: set it up, call the stage's `run`, check that it left files."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import ArtifactDamaged, ConfigError, StageError
from rloop_core.problems import ProblemSet
from rloop_core.rollout.policy import check_remote_code
from rloop_core.rollout.recording import Sampling, own_batches, record_samples
from rloop_core.runtime import events
from rloop_core.runtime.events import OnEvent
from rloop_core.seeds import derive_seed
from rloop_core.stages.job import STAGES_WITH_RANKS, InputRef, StageJob, StageOutcome
from rloop_core.stages.problem_store import read_problems
from rloop_core.store import Cache, Store, fetch, read_manifest
from rloop_core.training.settings import TrainingJob


@dataclass(frozen=True)
class StageContext:
    """The argument of every stage's `run`: the job, its validated config, the store, and how to compute."""

    job: StageJob
    config: Config
    store: Store
    seed: int
    """Of this stage of this iteration."""
    device: str
    """ "cpu" or "cuda"."""
    on_event: OnEvent
    """Sends a progress event to the run."""
    rank: int = 0
    """Rank 0 lays out the artifact."""
    ranks: int = 1

    @property
    def work(self) -> Path:
        """Scratch folder; survives crashes."""
        return Path(self.job.work)

    @property
    def share(self) -> tuple[int, int]:
        """(i, n): the i-th of n shares of the batches that the stage samples, counted from 1."""
        return (self.job.share.machine + 1, self.job.share.machines) if self.job.share else (1, 1)

    @property
    def out(self) -> Path:
        """Folder for the artifact's files."""
        return self.job.out

    def folder(self, role: str) -> Path:
        """Return an input as a local folder whose files were checked against their digests."""
        ref = self._ref(role)
        if ref.kind == "outside":
            return Path(ref.location)
        manifest = read_manifest(self.store, self.job.run, ref.iteration, ref.stage)
        if manifest is None or manifest.digest != ref.digest:
            raise ArtifactDamaged("is gone or was replaced", field=ref.uri, fix="it is made again")
        root = fetch(self.store, manifest, Cache(Path(self.job.cache), self.config.placement.cache_bytes))
        return root / "policy" if role in ("policy", "theta") else root

    def counts(self, role: str) -> dict[str, Any]:
        """Return the counts in the manifest of an input."""
        ref = self._ref(role)
        manifest = read_manifest(self.store, self.job.run, ref.iteration, ref.stage)
        return manifest.counts if manifest else {}

    def problems(self, role: str) -> ProblemSet:
        """Return a problem set as it was when the run first read it."""
        ref = self._ref(role)
        return read_problems(self.store, ref.location, ref.digest)

    def training_job(self) -> TrainingJob:
        """Return the inputs of a stage that trains theta_i."""
        return TrainingJob(
            self.config,
            self.seed,
            self.folder("policy"),
            self.work,
            self.device,
            self.rank,
            self.ranks,
            self.job.iteration,
            self.job.attempt,
            self.folder("theta") if self.roles("theta") else None,
        )

    def sample(self, samplings: Sequence[Sampling]) -> list[list[Path]]:
        """Sample this share of the batches and send progress; return the shards of all batches of each sampling."""

        def on_batch(number: int, done: int, total: int) -> None:
            self.on_progress(number + done / total, len(samplings))

        return record_samples(
            self.config,
            samplings,
            device=self.device,
            run=self.job.run,
            iteration=self.job.iteration,
            share=self.share,
            on_batch=on_batch,
        )

    def share_outcome(self, shards: Sequence[Sequence[Path]]) -> StageOutcome:
        """Return the outcome of a share of a stage that samples: its number of batches."""
        return StageOutcome({"batches": sum(len(own_batches(len(each), self.share)) for each in shards)}, {})

    def on_progress(self, done: float, total: float, metrics: dict[str, Any] | None = None) -> None:
        """Send a `step` event: so much of the stage is done."""
        self.on_event({"kind": "step", "done": done, "total": total, "metrics": metrics or {}})

    def tracked(self) -> AbstractContextManager[Callable[[dict[str, Any]], None]]:
        """Return a context manager whose function logs rows to placement's trackers, on rank 0 alone."""
        from rloop_core.trackers import tracked

        if self.rank:
            return nullcontext(lambda row: None)
        return tracked(
            self.config,
            self.job.stage,
            self.job.iteration,
            self.work.name,
            events.as_notes(self.on_event),
        )

    def roles(self, prefix: str) -> list[str]:
        """Return the roles of inputs that start with a prefix, in order."""
        return [ref.role for ref in self.job.inputs if ref.role.startswith(prefix)]

    def _ref(self, role: str) -> InputRef:
        return next(ref for ref in self.job.inputs if ref.role == role)


def execute(job: StageJob, on_event: OnEvent, rank: int = 0, ranks: int = 1) -> StageOutcome:
    """Compute a stage in this process, or one rank of it; rank 0 leaves the artifact's files in `<work>/out`.

    Raises:
        RLoopError: The stage could not prove its own success.
    """
    started = time.monotonic()
    config = job.config
    check_remote_code(config.policy)
    _show_one_gpu(job.stage, ranks)
    _set_up_libraries(config)

    seed = derive_seed(config.seed, job.stage, job.iteration)
    store = Store(job.store, config.placement.store_patience_seconds, events.as_notes(on_event))
    device = _device(config, job.stage)
    config = _with_micro_batches(config, job.stage, device)
    context = StageContext(job, config, store, seed, device, on_event, rank, ranks)
    _join_process_group(job, context.device, rank, ranks)
    outcome: StageOutcome = import_module(f"rloop_core.stages.{job.stage}").run(context)
    lays_out = rank == 0 and not (job.share and job.samples)
    if lays_out and not any(path.is_file() for path in context.out.rglob("*")):
        raise StageError("left no files", field=job.stage, fix="see its log")
    return StageOutcome(outcome.counts, outcome.metrics, time.monotonic() - started, outcome.sampled_by)


def _show_one_gpu(stage: str, ranks: int) -> None:
    """Hide all GPUs but the first from a stage that trains in one process: TRL refuses to train on several."""
    if ranks == 1 and stage in STAGES_WITH_RANKS:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


def _set_up_libraries(config: Config) -> None:
    """Set the number of threads, and turn the libraries' progress bars off."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    import tqdm

    # The default lock is a semaphore shared between processes, which a killed stage would leave behind.
    tqdm.tqdm.set_lock(threading.RLock())
    if config.placement.threads:
        torch.set_num_threads(config.placement.threads)
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


def _device(config: Config, stage: str) -> str:
    """Return "cpu" or "cuda"; each of several ranks has its own GPU as the current one."""
    import torch

    wanted = config.placement.device
    without_gpu = {"filter", *([] if config.harvest.snapshot_samples else ["harvest"])}
    if stage in without_gpu:
        return "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no GPU is visible here", field="placement.device", fix="set it to auto or cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return "cpu"
    if "LOCAL_RANK" in os.environ:
        number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= count:
            what = f"{socket.gethostname()} shows {count} GPUs, and has at least {number + 1} of the processes"
            raise ConfigError(what, field="placement.processes", fix="give each machine as many processes as GPUs")
        torch.cuda.set_device(number)
    return "cuda"


def _with_micro_batches(config: Config, stage: str, device: str) -> Config:
    """Return the config with passes that fit on this GPU beside the training states, where it leaves them open."""
    if device == "cpu" or stage not in STAGES_WITH_RANKS or config.placement.micro_batch_tokens:
        return config
    import torch

    from rloop_core.plan.memory import USABLE, micro_batch_tokens, placed
    from rloop_core.plan.models import find_shape

    shape = find_shape(config.policy)
    if shape is None:
        return config
    memory = USABLE * torch.cuda.mem_get_info()[1]
    return placed(config, micro_batch_tokens=micro_batch_tokens(config, shape, memory, config.placement.processes))


def _join_process_group(job: StageJob, device: str, rank: int, ranks: int) -> None:
    """Join the other ranks: by a file on one machine, by the launcher's TCP store on several.

    A trainer would do it by a TCP store and, on CPUs, without a timeout.
    """
    import torch
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    if ranks == 1 and (device == "cpu" or not torch.distributed.is_torchelastic_launched()):
        return
    backend = "gloo" if device == "cpu" else "nccl"
    if device != "cpu" and os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        backend = "cuda:nccl,cpu:gloo"  # as accelerate chooses: FSDP may also exchange what it offloads to the host
    timeout = timedelta(minutes=job.config.placement.collective_timeout_minutes)
    by_file: dict[str, Any] = {}
    if job.share is None:
        by_file = {"store": FileStore(str(job.ranks_folder / "group"), ranks), "rank": rank, "world_size": ranks}
    torch.distributed.init_process_group(backend, timeout=timeout, **by_file)
