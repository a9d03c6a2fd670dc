"""Check that a phase was recorded completely: every RL step, rank and group, every sample once.

A success rate over a partial record is biased and looks like any other number, so harvest checks this first.

Groups are counted a few shards at a time, so memory grows by eight bytes per group only: a hash of its id, which shows
when a group comes again in a later shard. Such groups, of which a complete record has none, are counted again over all
shards at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rloop_core.errors import StageError
from rloop_core.trajectories.schema import scan

if TYPE_CHECKING:
    import polars as pl

_LISTED = 5  # of the offending items, in an error
_ROWS_AT_ONCE = 250_000


@dataclass(frozen=True, slots=True)
class CompletenessReport:
    """Counts of a complete record. Groups of a step are counted over all ranks."""

    steps: int
    ranks: int
    groups: int
    trajectories: int
    problems: int
    min_groups_in_a_step: int
    max_groups_in_a_step: int

    def to_dict(self) -> dict[str, int]:
        """Return plain JSON values."""
        return asdict(self)


def prove_complete(
    paths: Sequence[str | Path], *, steps: int, ranks: int, group_size: int, min_groups_per_step: int
) -> CompletenessReport:
    """Check that `paths` hold the whole phase, each rollout once.

    Args:
        paths: Trajectory files, together the phase.
        steps: RL steps of the phase; exactly 1..steps must be there.
        ranks: Processes of the phase; 0..ranks-1 must be there in every step.
        group_size: G. Every group holds exactly the samples 0..G-1, of one problem, from one step and rank.
        min_groups_per_step: P. A step may hold more, since dynamic sampling draws again.

    Raises:
        StageError: Names the first few (step, rank), groups or steps that are missing, incomplete or doubled.
    """
    scan(paths)  # refuses unreadable files
    tally = _Tally(group_size)
    for groups in _batches(paths):
        tally.add(groups)
    if (repeated := tally.repeated_keys()) is not None:
        tally = _Tally(group_size)
        for groups in _batches(paths, repeated):
            tally.add(groups)

    expected = {(step, rank) for step in range(1, steps + 1) for rank in range(ranks)}
    present = tally.present
    again = "run the explore stage again"
    small = sorted(step for step, count in tally.groups.items() if count < min_groups_per_step)
    incomplete = f"incomplete group(s) (not exactly samples 0..{group_size - 1})"
    _refuse("missing (step, rank)", sorted(expected - present), f"{again}: it resumes")
    _refuse("unexpected (step, rank)", sorted(present - expected), "pass the shards of this phase only")
    one_attempt = "read the winning shards only: one attempt of each step"
    _refuse("group(s) with duplicated samples", _group_ids(tally.doubled), one_attempt)
    _refuse(incomplete, _group_ids(tally.partial), again)
    unique = "give every group of a phase an id of its own"
    _refuse("group(s) spread over several problems, steps or ranks", _group_ids(tally.spread), unique)
    _refuse(f"step(s) with fewer than {min_groups_per_step} groups", small, again)
    return CompletenessReport(
        steps=steps,
        ranks=ranks,
        groups=tally.groups.total(),
        trajectories=tally.trajectories,
        problems=len(tally.problems),
        min_groups_in_a_step=min(tally.groups.values()),
        max_groups_in_a_step=max(tally.groups.values()),
    )


class _Tally:
    """Counts of the groups so far.

    Args:
        group_size: G.

    Attributes:
        present: (step, rank) pairs.
        groups: Number of groups by step.
        trajectories: Number of rows.
        problems: Problem ids.
        doubled, partial, spread: (step, group id) of groups that repeat a sample, that have other samples than 0..G-1,
            and that are in several places.
    """

    def __init__(self, group_size: int) -> None:
        self._group_size = group_size
        self._keys: list[pl.Series] = []
        self.present: set[tuple[int, int]] = set()
        self.groups: Counter[int] = Counter()
        self.trajectories = 0
        self.problems: set[str] = set()
        self.doubled: list[tuple[int, str]] = []
        self.partial: list[tuple[int, str]] = []
        self.spread: list[tuple[int, str]] = []

    def add(self, groups: pl.DataFrame) -> None:
        """Count groups. If the places of a group come in several calls, `repeated_keys` finds it."""
        import polars as pl

        self._keys.append(groups["key"].unique())
        self.present.update(groups.select("step", "rank").unique().iter_rows())
        self.groups.update(dict(groups["step"].value_counts().iter_rows()))
        self.trajectories += int(groups["rows"].sum())
        self.problems.update(groups["problem_id"].unique())
        last = self._group_size - 1
        whole = (pl.col("samples") == last + 1) & (pl.col("lowest") == 0) & (pl.col("highest") == last)
        for offenders, condition in (
            (self.doubled, pl.col("rows") > pl.col("samples")),
            (self.partial, ~whole),
            (self.spread, pl.col("places") > 1),
        ):
            offenders += groups.filter(condition).select("step", "group_id").iter_rows()

    def repeated_keys(self) -> pl.Series | None:
        """Return the keys that were added more than once; None when there are none."""
        import polars as pl

        keys = pl.concat(self._keys)
        repeated = keys.filter(keys.is_duplicated()).unique()
        return repeated if len(repeated) else None


def _group_ids(offenders: list[tuple[int, str]]) -> list[str]:
    return [group for _, group in sorted(offenders)]


def _batches(paths: Sequence[str | Path], repeated: pl.Series | None = None) -> Iterator[pl.DataFrame]:
    """Yield the groups of a few files at a time; at the end those with the keys `repeated`, of all files at once."""
    import pyarrow.parquet as pq

    batch: list[str | Path] = []
    rows = 0
    for number, path in enumerate(paths, 1):
        batch.append(path)
        rows += pq.read_metadata(path).num_rows
        if rows >= _ROWS_AT_ONCE or number == len(paths):
            yield _groups(batch, None if repeated is None else ~_key().is_in(repeated.implode()))
            batch, rows = [], 0
    if repeated is not None:
        yield _groups(paths, _key().is_in(repeated.implode()))


def _key() -> pl.Expr:
    import polars as pl

    return pl.col("group_id").hash(seed=0)


def _groups(paths: Sequence[str | Path], condition: pl.Expr | None) -> pl.DataFrame:
    """Return one row per group and place (problem, step, rank).

    Columns: key, rows, samples (distinct), lowest and highest sample, and the number of places of the group.
    """
    import polars as pl

    columns = ("group_id", "step", "rank", "problem_id")
    sample = pl.col("sample")
    rows = scan(paths)
    return (
        (rows if condition is None else rows.filter(condition))
        .group_by(*columns)
        .agg(
            pl.len().alias("rows"),
            sample.n_unique().alias("samples"),
            sample.min().alias("lowest"),
            sample.max().alias("highest"),
        )
        .with_columns(pl.len().over("group_id").alias("places"), _key().alias("key"))
        .collect(engine="streaming")
    )


def _refuse(what: str, offenders: Sequence[object], fix: str) -> None:
    """Raise a StageError if there are offenders."""
    if offenders:
        named = ", ".join(str(item) for item in offenders[:_LISTED])
        more = f" and {len(offenders) - _LISTED} more" if len(offenders) > _LISTED else ""
        what = f"the record is not complete: {len(offenders)} {what}: {named}{more}"
        raise StageError(what, field="trajectories", fix=fix)
