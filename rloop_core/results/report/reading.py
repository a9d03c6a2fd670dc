"""A run as its store holds it: config, manifests, and the files that a report needs, each checked before it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rloop_core.config import Config
from rloop_core.errors import ArtifactDamaged, RLoopError
from rloop_core.stages.data_record import DataRecord, read_data_record
from rloop_core.stages.identity import DRAWN_BY
from rloop_core.stages.order import stages_of
from rloop_core.stages.run_record import read_run_config
from rloop_core.store import BASE_ITERATION, Cache, Manifest, Store, fetch, read_manifests

UNREADABLE = (RLoopError, OSError, ValueError, LookupError, TypeError, AttributeError, NotImplementedError)
"""What reading a file raises that is whole but not what it should be; the errors of json and pyarrow are among them."""

T = TypeVar("T")


@dataclass
class RunRecord:
    """One run.

    Attributes:
        name: Its name.
        config: The config it was last started with.
        store: Where it lives.
        manifests: What exists, by (iteration, stage); iteration -1 holds the evaluation of theta_0.
        notes: What a reader should know: missing stages, damaged artifacts, contaminated training problems.
        incomplete: The one of the notes that names missing stages, for a page that shows them in another way.
        data: What preflight found out about its problems; None when it has not come so far.
    """

    name: str
    config: Config
    store: Store
    cache: Path
    manifests: dict[tuple[int, str], Manifest]
    notes: list[str] = field(default_factory=list)
    incomplete: str | None = None
    data: DataRecord | None = None
    _files: dict[tuple[int, str, str], list[Path]] = field(default_factory=dict, repr=False)

    @property
    def versions(self) -> dict[str, set[str]]:
        """Versions of each package that its artifacts were made with."""
        found: dict[str, set[str]] = {}
        for manifest in self.manifests.values():
            for name, number in manifest.versions.items():
                if name != DRAWN_BY:
                    found.setdefault(name, set()).add(number)
        return found

    @property
    def engines(self) -> dict[str, str]:
        """Which engine drew the completions of each stage, as far as manifests name it; several if it has changed."""
        found: dict[str, set[str]] = {}
        for (_, stage), manifest in self.manifests.items():
            if engine := manifest.versions.get(DRAWN_BY):
                found.setdefault(stage, set()).add(engine)
        return {stage: " and ".join(sorted(own)) for stage, own in sorted(found.items())}

    @property
    def drawn_by(self) -> str:
        """The same in words: "vllm 0.29.0 (evaluate, harvest); transformers 5.23.0 (explore)"."""
        by_engine: dict[str, list[str]] = {}
        for stage, engine in self.engines.items():
            by_engine.setdefault(engine, []).append(stage)
        return "; ".join(f"{engine} ({', '.join(stages)})" for engine, stages in by_engine.items())

    def manifest(self, iteration: int, stage: str) -> Manifest | None:
        """The stage's manifest, None when there is no artifact."""
        return self.manifests.get((iteration, stage))

    def files(self, iteration: int, stage: str, prefix: str) -> list[Path]:
        """Local, checked copies of an artifact's files whose path starts so; empty when they cannot be had.

        Only these files are fetched: a report must not move a policy's weights. A damaged file becomes a note.
        """
        manifest = self.manifest(iteration, stage)
        if manifest is None:
            return []
        if (iteration, stage, prefix) in self._files:
            return self._files[iteration, stage, prefix]
        wanted = tuple(entry for entry in manifest.files if entry.path.startswith(prefix))
        try:
            cache = Cache(self.cache, self.config.placement.cache_bytes)
            folder = fetch(self.store, manifest.model_copy(update={"files": wanted}), cache)
        except RLoopError as error:
            self.note(str(error))
            return []
        found = [folder / entry.path for entry in wanted]
        if not self.store.is_local:  # a copy that nobody drops while this process lives
            self._files[iteration, stage, prefix] = found
        return found

    def file(self, iteration: int, stage: str, name: str) -> Path | None:
        """One file, as `files` has it; an artifact that should hold it and does not becomes a note."""
        found = self.files(iteration, stage, name)
        manifest = self.manifest(iteration, stage)
        if manifest and all(entry.path != name for entry in manifest.files):
            self.note(f"{stage_name(iteration, stage)} holds no {name}.")
        return found[0] if found else None

    def read(self, what: str, reader: Callable[[], T], otherwise: T) -> T:
        """What `reader` returns; `otherwise`, with a note, where a file is not what it should be."""
        try:
            return reader()
        except UNREADABLE as error:
            self.note(f"{what} cannot be read, and is left out: {str(error) or type(error).__name__}")
            return otherwise

    def note(self, text: str) -> None:
        """Remember something for the reader, once."""
        if text not in self.notes:
            self.notes.append(text)

    def policy_name(self, iteration: int) -> str:
        """What an iteration ended with: "base" for -1, "theta_1" for 0 and so on; in vanilla RL "RL step 600"."""
        if iteration == BASE_ITERATION:
            return "base"
        if self.config.arm == "vanilla-rl":
            return f"RL step {self.config.explore.steps}"
        return theta_name(iteration)

    @property
    def iterations(self) -> list[int]:
        """Iterations that have any artifact, in order; not the base."""
        return sorted({iteration for iteration, _ in self.manifests if iteration >= 0})


def read_run(store: Store, name: str, cache: Path) -> RunRecord:
    """Everything the store knows about a run, as far as it has come.

    Args:
        store: The object store.
        name: The run.
        cache: Folder for copies of files of remote stores.

    Raises:
        StoreError: There is no such run, or the store cannot be read.
    """
    run = RunRecord(name, read_run_config(store, name), store, cache, {})
    try:
        run.data = read_data_record(store, name)
    except ArtifactDamaged as damage:
        run.note(str(damage))
    for place, found in read_manifests(store, name, stages_of(run.config)).items():
        if isinstance(found, ArtifactDamaged):
            run.note(str(found))
        elif isinstance(found, Manifest):
            run.manifests[place] = found
        elif found is not None:
            raise found
    missing = [stage_name(*key) for key in stages_of(run.config) if key not in run.manifests]
    if missing:
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        run.incomplete = f"The run is not complete: {', '.join(missing[:6])}{more} not in the store yet."
        run.note(run.incomplete)
    if run.data and (sentence := run.data.sentence()):
        run.note(f"{sentence}.")
    return run


def theta_name(iteration: int) -> str:
    """What an iteration ended with: "base" for -1, "theta_1" for 0, and so on."""
    return "base" if iteration == BASE_ITERATION else f"theta_{iteration + 1}"


def stage_name(iteration: int, stage: str) -> str:
    """ "filter of iteration 0"."""
    return f"{stage} of {'the base' if iteration == BASE_ITERATION else f'iteration {iteration}'}"
