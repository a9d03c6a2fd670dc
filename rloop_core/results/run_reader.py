"""Read a run from its store: config, manifests, and the files that a report needs, each checked before it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rloop_core.config import Config
from rloop_core.errors import ArtifactDamaged, RLoopError
from rloop_core.json_text import parse_json
from rloop_core.stages.identity import SAMPLED_BY
from rloop_core.stages.inputs import stages_of
from rloop_core.stages.job import stage_name
from rloop_core.stages.run_record import read_run_config
from rloop_core.store import BASE_ITERATION, Cache, Manifest, Store, fetch, read_manifests
from rloop_core.trajectories import LEDGER_FILE, RATES_FILE

UNREADABLE = (RLoopError, OSError, ValueError, LookupError, TypeError, AttributeError, NotImplementedError)
"""Errors of reading a file that is whole but not what it should be, those of json and pyarrow among them."""

FEW_UPDATES = 20
"""Fine-tuning with fewer optimizer updates leaves a policy about where it was: see docs/how-to/expert-sets.md."""

METRICS_FILE = "metrics.json"
STEPS_FILE = "metrics.jsonl"

T = TypeVar("T")


@dataclass
class RunRecord:
    """One run, as far as its store knows it."""

    name: str
    config: Config
    """The config it was last started with."""
    store: Store
    cache: Path
    """Folder for copies of files of remote stores."""
    manifests: dict[tuple[int, str], Manifest]
    """The artifacts, by (iteration, stage); iteration -1 holds the evaluation of theta_0."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know: missing stages, damaged artifacts, and more."""
    incomplete: str | None = None
    """The note that names missing stages, for pages that show them in another way."""
    _files: dict[tuple[int, str, str], list[Path]] = field(default_factory=dict, repr=False)

    @property
    def versions(self) -> dict[str, set[str]]:
        """Versions of each package that its artifacts were made with."""
        versions: dict[str, set[str]] = {}
        for manifest in self.manifests.values():
            for name, version in manifest.versions.items():
                if name != SAMPLED_BY:
                    versions.setdefault(name, set()).add(version)
        return versions

    @property
    def engines(self) -> dict[str, str]:
        """The engine that sampled each stage's completions, if its manifests name one; several if it has changed."""
        engines: dict[str, set[str]] = {}
        for (_, stage), manifest in self.manifests.items():
            if SAMPLED_BY in manifest.versions:
                engines.setdefault(stage, set()).add(manifest.versions[SAMPLED_BY])
        return {stage: " and ".join(sorted(names)) for stage, names in sorted(engines.items())}

    @property
    def sampled_by(self) -> str:
        """The engines in words: "vllm 0.29.0 (evaluate, harvest); transformers 5.23.0 (explore)"."""
        stages: dict[str, list[str]] = {}
        for stage, engine in self.engines.items():
            stages.setdefault(engine, []).append(stage)
        return "; ".join(f"{engine} ({', '.join(names)})" for engine, names in stages.items())

    @property
    def iterations(self) -> list[int]:
        """Iterations that have any artifact, in order; not the base."""
        return sorted({iteration for iteration, _ in self.manifests if iteration >= 0})

    @property
    def total_steps(self) -> int:
        """RL steps that the config asks for."""
        return self.config.iterations * self.config.explore.steps

    def manifest(self, iteration: int, stage: str) -> Manifest | None:
        """Return the stage's manifest, None if there is no artifact."""
        return self.manifests.get((iteration, stage))

    def policy_name(self, iteration: int) -> str:
        """Return the name of an iteration's last policy: "theta_1"; "base" for -1; in vanilla RL "RL step 600"."""
        if self.config.arm == "vanilla-rl" and iteration != BASE_ITERATION:
            return f"RL step {self.config.explore.steps}"
        return theta_name(iteration)

    def files(self, iteration: int, stage: str, prefix: str) -> list[Path]:
        """Return local, checked copies of an artifact's files whose path has this prefix.

        Only these files are fetched: a report must not move a policy's weights. If one is damaged or cannot be had, the
        list is empty and there is a note.
        """
        manifest = self.manifest(iteration, stage)
        if manifest is None:
            return []
        if (iteration, stage, prefix) in self._files:
            return self._files[iteration, stage, prefix]
        entries = tuple(entry for entry in manifest.files if entry.path.startswith(prefix))
        try:
            cache = Cache(self.cache, self.config.placement.cache_bytes)
            folder = fetch(self.store, manifest.model_copy(update={"files": entries}), cache)
        except RLoopError as error:
            self.note(str(error))
            return []
        paths = [folder / entry.path for entry in entries]
        if not self.store.is_local:  # the cache keeps a copy while this process lives
            self._files[iteration, stage, prefix] = paths
        return paths

    def file(self, iteration: int, stage: str, name: str) -> Path | None:
        """Return one file as `files` does; None, with a note, if the artifact lacks it."""
        paths = self.files(iteration, stage, name)
        manifest = self.manifest(iteration, stage)
        if manifest and all(entry.path != name for entry in manifest.files):
            self.note(f"{stage_name(iteration, stage)} holds no {name}.")
        return paths[0] if paths else None

    def parse(self, iteration: int, stage: str, name: str, parser: Callable[[Path], T], default: T) -> T:
        """Return what `parser` makes of one file; `default`, with a note, if the file cannot be had or read."""
        path = self.file(iteration, stage, name)
        if path is None:
            return default
        return self.read(f"{name} of {stage_name(iteration, stage)}", partial(parser, path), default)

    def read(self, what: str, reader: Callable[[], T], default: T) -> T:
        """Return what `reader` returns; `default`, with a note, if a file is not what it should be."""
        try:
            return reader()
        except UNREADABLE as error:
            self.note(f"{what} cannot be read, and is left out: {str(error) or type(error).__name__}")
            return default

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)


def read_run(store: Store, name: str, cache: Path) -> RunRecord:
    """Read everything the store knows about a run, finished or not.

    Args:
        store: The object store.
        name: The run.
        cache: Folder for copies of files of remote stores.

    Raises:
        StoreError: There is no such run, or the store cannot be read.
    """
    run = RunRecord(name, read_run_config(store, name), store, cache, {})
    stages = stages_of(run.config)
    for key, manifest in read_manifests(store, name, stages).items():
        if isinstance(manifest, ArtifactDamaged):
            run.note(str(manifest))
        elif isinstance(manifest, Manifest):
            run.manifests[key] = manifest
        elif manifest is not None:
            raise manifest
    missing = [stage_name(*key) for key in stages if key not in run.manifests]
    if missing:
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        run.incomplete = f"The run is not complete: {', '.join(missing[:6])}{more} not in the store yet."
        run.note(run.incomplete)
    if sentence := _starved(run):
        run.note(sentence)
    return run


def _starved(run: RunRecord) -> str | None:
    """Return a sentence about the iterations whose expert set was too small to move the policy, None without any."""
    short = [
        f"iteration {iteration} made {made.counts['updates']} updates on {made.counts['trajectories']} trajectories"
        for iteration in run.iterations
        if (made := run.manifest(iteration, "rft")) and made.counts.get("updates", FEW_UPDATES) < FEW_UPDATES
    ]
    if not short:
        return None
    fix = "let the threshold widen (filter.on_empty: widen, filter.at_least) or lower rft.batch_trajectories"
    return f"Fine-tuning was too short to move the policy: {'; '.join(short)}. Fix: {fix}."


def theta_name(iteration: int) -> str:
    """Return the name of an iteration's last policy: "base" for -1, "theta_1" for 0, and so on."""
    return "base" if iteration == BASE_ITERATION else f"theta_{iteration + 1}"


def rl_steps(run: RunRecord) -> list[dict[str, Any]]:
    """Return explore's metrics, one row an RL step, with `iteration` and `total_step` (RL steps in all iterations)."""
    from rloop_core.training.metrics_log import read_rows

    def steps(iteration: int, path: Path) -> list[dict[str, Any]]:
        before = iteration * run.config.explore.steps
        return [{"iteration": iteration, "total_step": before + int(row["step"]), **row} for row in read_rows(path)]

    none: list[dict[str, Any]] = []
    return [row for i in run.iterations for row in run.parse(i, "explore", STEPS_FILE, partial(steps, i), none)]


def ledgers(run: RunRecord) -> dict[int, dict[str, Any]]:
    """Return the filter's report by iteration: status, threshold, ledger of trajectories and problems left."""

    def ledger(path: Path) -> dict[str, Any] | None:
        content: dict[str, Any] = parse_json(path.read_bytes())
        rows = [{name: row[name] for name in ("step", "trajectories", "problems")} for row in content["ledger"]]
        return {**content, "ledger": rows}

    reports = {iteration: run.parse(iteration, "filter", LEDGER_FILE, ledger, None) for iteration in run.iterations}
    return {iteration: report for iteration, report in reports.items() if report is not None}


def success_counts(run: RunRecord, iteration: int) -> dict[str, tuple[int, int]]:
    """Return correct rollouts and attempts of every training problem over one RL phase, by its id."""

    def counts(path: Path) -> dict[str, tuple[int, int]]:
        import pyarrow.parquet as pq

        table = pq.read_table(path, columns=["problem_id", "correct", "attempts"])
        rows = zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
        return {problem: (correct, attempts) for problem, correct, attempts in rows if attempts}

    return run.parse(iteration, "harvest", RATES_FILE, counts, {})


def success_rate_lists(run: RunRecord) -> dict[int, list[float]]:
    """Return the success rates of all training problems, by iteration."""
    by_iteration = {iteration: success_counts(run, iteration).values() for iteration in run.iterations}
    return {iteration: [correct / attempts for correct, attempts in rows] for iteration, rows in by_iteration.items()}


def stored_evaluation(run: RunRecord, iteration: int) -> dict[str, Any] | None:
    """Return what the evaluation stage wrote beside the samples; None, with a note, if it cannot be read.

    ``{"sets": {label: summary}, "folders": {label: folder}, "snapshots": {RL step: {label: summary}}}``
    """

    def summaries(sets: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {label: {**summary, "problems": int(summary["problems"])} for label, summary in sets.items()}

    def evaluation(path: Path) -> dict[str, Any] | None:
        content = parse_json(path.read_bytes())
        return {
            "sets": summaries(content["sets"]),
            "folders": {label: str(folder) for label, folder in content["folders"].items()},
            "snapshots": {str(int(step)): summaries(sets) for step, sets in content.get("snapshots", {}).items()},
        }

    return run.parse(iteration, "evaluate", METRICS_FILE, evaluation, None)


def sample_files(run: RunRecord, iteration: int, label: str, step: int | None = None) -> list[Path]:
    """Return the parquet files with an evaluation's samples on one set; of explore's snapshot at `step` if given."""
    content = stored_evaluation(run, iteration)
    folder = content["folders"].get(label) if content else None
    if not folder:
        return []
    prefix = f"{folder}/" if step is None else f"step-{step:06d}/{folder}/"
    return [path for path in run.files(iteration, "evaluate", prefix) if path.suffix == ".parquet"]
