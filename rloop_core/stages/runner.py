"""Make a stage's artifact exist: found in the store and whole, or computed, proven and published.

The store's manifests are the only memory. Whoever calls this again, on another machine or after any crash, repeats
nothing that was finished.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import ArtifactDamaged, StageCrashed, StageError
from rloop_core.files import replace_text
from rloop_core.stages.data_record import read_data_record, write_data_record
from rloop_core.stages.difference import difference
from rloop_core.stages.identity import identity_of, missing_stages
from rloop_core.stages.inputs import Inputs
from rloop_core.stages.job import InputRef, StageJob, StageOutcome
from rloop_core.stages.on_machines import check_machines, run_stage
from rloop_core.stages.process import read_outcome
from rloop_core.stages.remote import Order, RemoteStage
from rloop_core.stages.versions import versions
from rloop_core.store import (
    Cache,
    DelegatedLease,
    InputEntry,
    Lease,
    Manifest,
    Store,
    discard,
    fetched,
    fingerprint,
    publish,
    read_manifest,
    stage_folder,
)

Event = dict[str, Any]
Launcher = Callable[..., StageOutcome]
PoolLauncher = Callable[..., bool]
"""`tasks.remote.compute_in_pool`: Prefect is no business of this package."""
_HEALING_ROUNDS = 3


@dataclass(frozen=True)
class StageResult:
    """A stage's artifact.

    Args:
        manifest: Its manifest.
        cached: Whether it was found whole in the store.
        note: Why it was run, or that it was verified.
    """

    manifest: Manifest
    cached: bool
    note: str


class StageRunner:
    """Runs the stages of one run.

    Args:
        config: The run's config.
        store: The object store.
        lease: Held while artifacts are published; None only for readers that compute nothing.
        listen: Called with (stage, iteration, event) for progress and notes.
        launch: Runs a job and returns its outcome; the default gives each stage a process tree of its own.
        in_pool: Has the stages that `placement.pools` names computed there; None computes all of them here.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        lease: Lease | DelegatedLease | None,
        listen: Callable[[str, int, Event], None] = lambda stage, iteration, event: None,
        launch: Launcher = run_stage,
        in_pool: PoolLauncher | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.inputs = Inputs(config, store, self._manifest)
        self._seen: dict[tuple[int, str], Manifest] = {}
        self._lease = lease
        self._listen = listen
        self._launch = launch
        self._in_pool = in_pool

    def ensure(self, stage: str, iteration: int, should_stop: Callable[[], bool] = lambda: False) -> StageResult:
        """The stage's artifact, computed only if the store does not hold it whole under the same fingerprint.

        Raises:
            RLoopError: The stage failed; everything finished before it is kept.
        """
        for _ in range(_HEALING_ROUNDS):
            refs = self.inputs.of(stage, iteration)
            identity = self._identity(stage, iteration, refs)
            found, why = self._look(stage, iteration, identity)
            if not found:
                found, why = self._adopt(stage, iteration, refs, identity) or (None, why)
            if found:
                self._tell(stage, iteration, {"kind": "cached", "note": why})
                return self._saw(StageResult(found, True, why))
            self._tell(stage, iteration, {"kind": "start", "note": why})
            try:
                manifest = self._remote(stage, iteration, identity, should_stop) or self._compute(
                    stage, iteration, refs, identity, should_stop
                )
            except ArtifactDamaged as damage:
                self._heal(refs, damage, should_stop)
                continue
            return self._saw(StageResult(manifest, False, why))
        raise StageError("its inputs were damaged again and again", field=f"{stage} {iteration}", fix="check the disk")

    def _saw(self, result: StageResult) -> StageResult:
        """Remember an artifact: while we hold the lease nobody else writes the run, and its digest stays what it is."""
        if self._lease:
            self._seen[result.manifest.iteration, result.manifest.stage] = result.manifest
        return result

    def _manifest(self, iteration: int, stage: str) -> Manifest | None:
        """An artifact that this runner has seen to, else what the store holds."""
        seen = self._seen.get((iteration, stage))
        return seen or read_manifest(self.store, self.config.name, iteration, stage)

    def make(
        self, stage: str, iteration: int, wanted: str, should_stop: Callable[[], bool] = lambda: False
    ) -> Manifest:
        """The artifact with a fingerprint that another machine asks for, computed here unless the store holds it.

        Raises:
            ArtifactDamaged: An input cannot be read whole; who asks has it made again, where it belongs.
            RLoopError: The stage failed, or this machine would compute something else.
        """
        refs = self.inputs.of(stage, iteration)
        identity = self._identity(stage, iteration, refs)
        if fingerprint(identity) != wanted:
            what = "this worker would compute something else than its run asks for"
            fix = "give it the same release of rloop as the run has, and the same model at policy.path"
            raise StageError(what, field=f"{stage} {iteration}", fix=fix)
        found, _ = self._look(stage, iteration, identity)
        return found or self._compute(stage, iteration, refs, identity, should_stop)

    def remaining(self) -> list[tuple[int, str]]:
        """(iteration, stage) whose artifact the store does not hold under this config, and all that build on those."""
        return missing_stages(self.config, self.store, self.inputs)

    def is_recorded(self) -> bool:
        """Whether what preflight found out is in the store and can be read; what is wrong with it is told."""
        try:
            return read_data_record(self.store, self.config.name) is not None
        except ArtifactDamaged as damage:
            self._tell("preflight", -1, {"kind": "note", "note": str(damage)})
            return False

    def check(self) -> tuple[InputRef, ...]:
        """The part of `preflight` that takes a moment and no process of its own; returns what the rest reads.

        Raises:
            RLoopError: One clear line about the first thing that is wrong.
        """
        from rloop_core.stages.preflight import check_light

        return check_light(self.config, self.store, self.inputs)

    def preflight(self, should_stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Check everything that can be known to fail, and record what the problem sets hold; returns what was counted.

        Raises:
            RLoopError: One clear line about the first thing that is wrong.
        """
        refs = self.check()
        check_machines(
            self.config, lambda line: self._tell("preflight", -1, {"kind": "note", "note": line}), should_stop
        )
        work = self.scratch() / self.config.name / "preflight"
        shutil.rmtree(work, ignore_errors=True)
        outcome = self._launch(
            self._job("preflight", -1, refs, work), self._on(("preflight", -1)), should_stop=should_stop
        )
        shutil.rmtree(work, ignore_errors=True)
        found = outcome.metrics
        record = write_data_record(
            self.store, self.config, self.inputs, found["golds_refused"], found["training_warnings"]
        )
        for note in record.notes():
            self._tell("preflight", -1, {"kind": "note", "note": note})
        return {**outcome.counts, **record.counts()}

    def _identity(self, stage: str, iteration: int, refs: tuple[InputRef, ...]) -> dict[str, Any]:
        return identity_of(self.config, stage, iteration, refs)

    def _look(self, stage: str, iteration: int, identity: dict[str, Any]) -> tuple[Manifest | None, str]:
        """The whole artifact and "verified ...", or None and the reason to run."""
        try:
            manifest = read_manifest(self.store, self.config.name, iteration, stage)
            if manifest is None:
                return None, "not in the store yet"
            if manifest.fingerprint != fingerprint(identity):
                return None, f"changed: {difference(manifest.identity, identity)}"
            with fetched(self.store, manifest, self._cache()):
                pass
            self._remove_strangers(manifest)
        except ArtifactDamaged as damage:
            if self._lease:
                self._lease.ensure_held()
            discard(self.store, self.config.name, iteration, stage)
            return None, f"damaged: {damage}"
        return manifest, f"verified {len(manifest.files)} files, {manifest.digest[:12]}"

    def _remove_strangers(self, manifest: Manifest) -> None:
        """Delete what a killed publishing left in an artifact's folder on disk, which is where stages read it."""
        if self._lease and self.store.is_local:
            named = {f"{manifest.folder}/{name}" for name in ("manifest.json", *(file.path for file in manifest.files))}
            strangers = [entry for entry in self.store.entries(manifest.folder) if entry.key not in named]
            if strangers:
                self._lease.ensure_held()
                self.store.delete_entries(strangers)

    def _adopt(
        self, stage: str, iteration: int, refs: tuple[InputRef, ...], identity: dict[str, Any]
    ) -> tuple[Manifest, str] | None:
        """The artifact of another run that `placement.adopt` names, copied, where its fingerprint is the same."""
        print_of = fingerprint(identity)
        for run in self.config.placement.adopt:
            with contextlib.suppress(ArtifactDamaged):
                made = read_manifest(self.store, run, iteration, stage) if run != self.config.name else None
                if made and made.fingerprint == print_of:
                    outcome = StageOutcome(made.counts, made.metrics, made.seconds)
                    names = [file.path for file in made.files]
                    with fetched(self.store, made, self._cache()) as folder:
                        manifest = self._publish(
                            stage, iteration, refs, identity, folder, outcome, made.versions, names
                        )
                    return manifest, f"adopted from {run}, {manifest.digest[:12]}"
        return None

    def _remote(
        self, stage: str, iteration: int, identity: dict[str, Any], should_stop: Callable[[], bool]
    ) -> Manifest | None:
        """The artifact as a worker of the stage's own pool published it; None where the stage is computed here."""
        placement = self.config.placement
        pool = placement.pools.get(stage)  # type: ignore[call-overload]
        if pool is None or self._in_pool is None:
            return None
        if not isinstance(self._lease, Lease):
            raise StageError("is sent elsewhere by nobody but the holder of the run's lease", field=stage)
        wanted = fingerprint(identity)
        if not self._in_pool(
            pool,
            RemoteStage.new(self.store, self.config.name, stage, iteration),
            Order(self.config.model_dump(mode="json"), wanted, self._lease.token),
            self._on((stage, iteration)),
            untaken_seconds=placement.stage_stall_minutes and placement.stage_stall_minutes * 60,
            should_stop=should_stop,
        ):
            return None
        manifest = read_manifest(self.store, self.config.name, iteration, stage)
        if manifest is None or manifest.fingerprint != wanted:
            what = f"pool {pool} says that it is done, and the store holds no such artifact"
            raise StageCrashed(what, field=f"{stage} {iteration}", fix="see whether both use the same store")
        self._tell(stage, iteration, {"kind": "done", "metrics": manifest.metrics, "seconds": manifest.seconds})
        return manifest

    def _compute(
        self,
        stage: str,
        iteration: int,
        refs: tuple[InputRef, ...],
        identity: dict[str, Any],
        should_stop: Callable[[], bool],
    ) -> Manifest:
        work = self.scratch() / stage_folder(self.config.name, iteration, stage) / fingerprint(identity)[:16]
        job = self._job(stage, iteration, refs, work)
        outcome = read_outcome(work)
        if outcome is None or not (work / "out").is_dir():
            placement = self.config.placement
            outcome = self._launch(
                job,
                self._on((stage, iteration)),
                timeout_seconds=placement.stage_timeout_minutes and placement.stage_timeout_minutes * 60,
                stall_seconds=placement.stage_stall_minutes and placement.stage_stall_minutes * 60,
                should_stop=should_stop,
            )
        manifest = self._publish(stage, iteration, refs, identity, work / "out", outcome, versions(outcome.drawn_by))
        with contextlib.suppress(OSError):  # a kill in the middle must not leave half of it to go on from
            work.rename(work.with_name(f".done-{uuid.uuid4().hex}"))
        shutil.rmtree(work.parent, ignore_errors=True)
        self._tell(stage, iteration, {"kind": "done", "metrics": manifest.metrics, "seconds": manifest.seconds})
        return manifest

    def _publish(
        self,
        stage: str,
        iteration: int,
        refs: tuple[InputRef, ...],
        identity: dict[str, Any],
        folder: Path,
        outcome: StageOutcome,
        made_by: dict[str, str],
        names: list[str] | None = None,
    ) -> Manifest:
        if self._lease:
            self._lease.ensure_held()
        return publish(
            self.store,
            folder,
            run=self.config.name,
            iteration=iteration,
            stage=stage,
            fingerprint=fingerprint(identity),
            inputs=tuple(InputEntry(uri=ref.uri, digest=ref.digest) for ref in refs),
            identity=identity,
            counts=outcome.counts,
            metrics=outcome.metrics,
            versions=made_by,
            seed=self.config.seed,
            seconds=outcome.seconds,
            names=names,
        )

    def _job(self, stage: str, iteration: int, refs: tuple[InputRef, ...], work: Path) -> StageJob:
        """The stage as plain data, in a scratch folder that counts its starts."""
        try:
            work.mkdir(parents=True, exist_ok=True)
            attempt = _next_attempt(work)
        except OSError as error:
            fix = "free disk space, or name another folder"
            raise StageError(f"scratch cannot be written: {error}", field="placement.scratch", fix=fix) from error
        return StageJob(
            stage=stage,
            run=self.config.name,
            iteration=iteration,
            config=self.config.model_dump(mode="json"),
            store=self.store.uri,
            inputs=refs,
            work=str(work),
            cache=str(self._cache().folder),
            attempt=attempt,
        )

    def _on(self, stage: tuple[str, int]) -> Callable[[Event], None]:
        return lambda event: self._tell(*stage, event)

    def _heal(self, refs: tuple[InputRef, ...], damage: ArtifactDamaged, should_stop: Callable[[], bool]) -> None:
        """Recompute the inputs that cannot be read whole, naming what was damaged."""
        for ref in refs:
            if ref.kind == "artifact":
                self._tell(ref.stage, ref.iteration, {"kind": "note", "note": str(damage)})
                self.ensure(ref.stage, ref.iteration, should_stop)
            elif ref.kind == "problems" and damage.field == ref.uri:
                raise damage

    def scratch(self) -> Path:
        """Local folder for unfinished work: beside a local store, so that any later start finds it."""
        if self.config.placement.scratch:
            return Path(self.config.placement.scratch).expanduser().absolute()
        return self.store.local_path(".scratch") if self.store.is_local else Path(".rloop/scratch").absolute()

    def _cache(self) -> Cache:
        return Cache(self.scratch() / "cache", self.config.placement.cache_bytes)

    def _tell(self, stage: str, iteration: int, event: Event) -> None:
        self._listen(stage, iteration, event)


def _next_attempt(work: Path) -> int:
    """Count this start of the stage; later attempts win over earlier ones in the record."""
    counter = work / "attempts"
    attempt = 0
    with contextlib.suppress(OSError, ValueError):
        attempt = int(counter.read_text()) + 1
    replace_text(counter, str(attempt))
    return attempt
