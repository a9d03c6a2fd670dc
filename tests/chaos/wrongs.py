"""The harness' self-check: planted wrongs, each of which schedules of `make chaos` must find.

Each wrong is planted in the processes of a run, never in those that judge it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rloop_core.stages import execute, harvest
from rloop_core.stages.context import StageContext
from rloop_core.store import Lease, Store, manifest
from rloop_core.training import checkpoints, rollouts
from rloop_core.trajectories import shards
from rloop_core.trajectories.parquet import DeterministicWriter
from rloop_core.trajectories.schema import TRAJECTORY_SCHEMA
from tests.chaos.play import Harness, Outcome
from tests.chaos.schedule import DAMAGES, Act, Schedule

_SEEDS = 200
_TRIES = 8
_STARTS = 4


@dataclass(frozen=True)
class Wrong:
    """One planted wrong."""

    name: str
    """Its description."""
    plant: Callable[[], None]
    """Changes this process and those forked from it."""
    found: str
    """Regular expression that the harness' finding must match."""
    stage: str | None = None
    """The stage that must be killed half-way to show it; None if a damaged file shows it."""
    together: int = 0
    """Number of processes whose start at once shows it; 0 if kills show it."""

    def shows_at(self, schedule: Schedule) -> int | None:
        """Return the first start of a schedule that can show it, or None."""
        for number, start in enumerate(schedule.starts):
            if any(map(self._is_cut, start.acts)) if self.stage else any(kind in DAMAGES for kind in start.before):
                return number
        return 0 if self.together else None

    def _is_cut(self, act: Act) -> bool:
        """Return True if a kill can show it: explore's first step is too early, harvest has only files."""
        if self.stage == "harvest":
            return (act.stage, act.by) == ("harvest", "file")
        return (act.stage, act.by) == (self.stage, "step") and (self.stage != "explore" or act.after > 1)


def try_all(harness: Harness, wrongs: Sequence[Wrong]) -> Iterator[tuple[Wrong, list[Outcome], str]]:
    """Play for each wrong the first schedules that may show it, until one does.

    Yields:
        The wrong, the outcomes, and the finding; an empty string if there is none.
    """
    schedules = [harness.draw(seed, "disk") for seed in range(_SEEDS)]
    for wrong in wrongs:
        played: list[Outcome] = []
        line = ""
        starts = {schedule: wrong.shows_at(schedule) for schedule in schedules}
        fitting = [schedule for schedule, number in starts.items() if number is not None]
        for schedule in sorted(fitting, key=lambda schedule: starts[schedule] or 0)[:_TRIES]:
            played.append(
                harness.play_together(schedule, wrong.together, wrong.plant)
                if wrong.together
                else harness.play(schedule, wrong.plant, _STARTS)
            )
            line = next((text for text in played[-1].wrong if re.search(wrong.found, text)), "")
            if line:
                break
        yield wrong, played, line


def _resume_at_the_first_problem() -> None:
    last = checkpoints.last_checkpoint

    def wrong(directory: Path) -> Any:
        found = last(directory)
        return found and dataclasses.replace(found, cursor=0)

    checkpoints.last_checkpoint = wrong


def _prove_nothing() -> None:
    """Remove the product's own proof that a phase is complete, so that only the harness can find it."""
    harvest.prove_complete = lambda *_, **__: SimpleNamespace(to_dict=dict)  # type: ignore[assignment]


def _lose_a_group() -> None:
    write = rollouts.RolloutRecorder.write

    def wrong(self: Any, step: int, rows: list[dict[str, Any]]) -> Path:
        kept = rows if not self._attempt else [row for row in rows if row["group_id"] != rows[0]["group_id"]]
        return write(self, step, kept)

    rollouts.RolloutRecorder.write = wrong  # type: ignore[method-assign]
    _prove_nothing()


def _lose_shards() -> None:
    write = rollouts.RolloutRecorder.write

    def wrong(self: Any, step: int, rows: list[dict[str, Any]]) -> Path:
        for path in self._directory.glob("*.parquet"):
            if shards.ShardName.parse(path.name).attempt != self._attempt:
                path.unlink()
        return write(self, step, rows)

    rollouts.RolloutRecorder.write = wrong  # type: ignore[method-assign]


def _seal_every_attempt() -> None:
    def wrong(source: Path, target: Path) -> None:
        name = shards.ShardName.parse(target.name)
        with DeterministicWriter(target, TRAJECTORY_SCHEMA) as writer:
            for path in sorted(source.parent.glob(f"step-{name.step:06d}.rank-{name.rank:02d}.*parquet")):
                table = pq.ParquetFile(path).read()
                place, zeros = table.column_names.index("attempt"), pa.array([0] * table.num_rows, pa.int32())
                writer.write(table.set_column(place, TRAJECTORY_SCHEMA.field("attempt"), zeros))

    shards._seal = wrong
    _prove_nothing()


def _keep_half_a_harvest() -> None:
    consolidate = harvest.consolidate

    def wrong(paths: list[Path], out: Path) -> list[Path]:
        if any(out.glob("part-*")):
            return sorted(out.glob("part-*"))
        for end in range(1, len(paths)):
            consolidate(paths[:end], out)
        return consolidate(paths, out)

    harvest.consolidate = wrong  # type: ignore[assignment]
    harvest.shutil = SimpleNamespace(rmtree=lambda *_, **__: None)  # type: ignore[assignment]


def _draw_by_attempt() -> None:
    run, derive = execute.execute, execute.derive_seed

    def wrong(job: Any, *more: Any) -> Any:
        drawn = job.attempt if job.stage == "evaluate" else 0
        execute.derive_seed = lambda *parts: derive(*parts) + drawn
        return run(job, *more)

    execute.execute = wrong


def _train_on_from_half() -> None:
    folder = StageContext.folder

    def wrong(self: StageContext, role: str) -> Path:
        begun, half = self.out / "policy", self.work / "half"
        if role != "policy" or self.job.stage != "rft" or not begun.is_dir():
            return folder(self, role)
        shutil.copytree(begun, half, dirs_exist_ok=True)
        return half

    StageContext.folder = wrong  # type: ignore[method-assign]


def _believe_every_file() -> None:
    manifest._complete = lambda store, found, cache, folder: folder


def _take_every_lease() -> None:
    Lease._is_dead = lambda self, holder: True  # type: ignore[method-assign]
    Lease.ensure_held = lambda self: None  # type: ignore[method-assign]


def _leave_something() -> None:
    write = Store.write_bytes

    def wrong(self: Store, key: str, content: bytes) -> None:
        write(self, key, content)
        if key.endswith("/rft/manifest.json"):
            write(self, f"{key.split('/')[0]}/notes-{os.getpid()}.txt", b"a note")

    Store.write_bytes = wrong  # type: ignore[method-assign]


WRONGS = (
    Wrong("explore resumes at the first problem", _resume_at_the_first_problem, "explore: .* lost, .* own", "explore"),
    Wrong("explore resumes without the shards it had", _lose_shards, "not finished .*missing", "explore"),
    Wrong("explore loses a group, nothing is proven", _lose_a_group, "explore: [1-9].* lost", "explore"),
    Wrong(
        "explore publishes every attempt, nothing is proven",
        _seal_every_attempt,
        "explore: .* [1-9]\\d* doubled",
        "explore",
    ),
    Wrong("harvest goes on from half of its files", _keep_half_a_harvest, "harvest: [1-9].* lost", "harvest"),
    Wrong("rft goes on from weights it had trained", _train_on_from_half, "rft: another digest", "rft"),
    Wrong("evaluate draws anew when it resumes", _draw_by_attempt, "evaluate: [1-9].* lost", "evaluate"),
    Wrong("a damaged file is believed", _believe_every_file, "ArtifactDamaged|another digest"),
    Wrong("a run leaves a file that nobody knows", _leave_something, "left behind"),
    Wrong("whoever starts a run gets its lease", _take_every_lease, "they ended with|begun so often", together=3),
)
