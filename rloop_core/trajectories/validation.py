"""Proof that a phase was recorded whole: every RL step, rank and group, every sample once.

A success rate over a partial record is a biased number that looks like any other, so harvest proves this
first (design invariants 3 and 5).

Groups are counted some shards at a time, so that memory does not grow with the phase, but for eight bytes a group: a
hash of its id, by which a group is noticed that comes again in a later shard. Such groups, of which a whole record has
none, are counted apart, over all shards at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rloop_core.errors import StageError
from rloop_core.trajectories.scan import scan

if TYPE_CHECKING:
    import polars as pl

_NAMED = 5  # how many culprits a message names
_ROWS_AT_ONCE = 250_000


@dataclass(frozen=True, slots=True)
class CompletenessReport:
    """What was proven to be there. Groups a step are counted over all ranks."""

    steps: int
    ranks: int
    groups: int
    trajectories: int
    problems: int
    min_groups_in_a_step: int
    max_groups_in_a_step: int

    def to_dict(self) -> dict[str, int]:
        """Plain JSON values."""
        return asdict(self)


def prove_complete(
    paths: Sequence[str | Path], *, steps: int, ranks: int, group_size: int, min_groups_per_step: int
) -> CompletenessReport:
    """Check that ``paths`` hold the whole phase, each rollout once.

    Args:
        paths: Trajectory files, together the phase.
        steps: RL steps of the phase; 1..steps must all be there, and no others.
        ranks: Processes of the phase; 0..ranks-1 must all be there in every step.
        group_size: G. Every group holds exactly the samples 0..G-1, of one problem, from one step and rank.
        min_groups_per_step: P. A step may hold more, since dynamic sampling draws again, but never fewer.

    Raises:
        StageError: naming the first few things that are missing, incomplete or doubled.
    """
    scan(paths)  # refuses what cannot be read
    tally = _Tally(group_size)
    for groups in _batches(paths):
        tally.add(groups)
    if (again := tally.met_again()) is not None:
        tally = _Tally(group_size)
        for groups in _batches(paths, again):
            tally.add(groups)

    expected = {(step, rank) for step in range(1, steps + 1) for rank in range(ranks)}
    present = tally.present
    _refuse("missing (step, rank)", sorted(expected - present), "run the explore stage again: it resumes")
    _refuse("unexpected (step, rank)", sorted(present - expected), "seal the shards of this phase only")
    _refuse(
        "group(s) with duplicated samples",
        _in_order(tally.doubled),
        "read the winning shards only: one attempt of each step",
    )
    _refuse(
        f"incomplete group(s) (not exactly samples 0..{group_size - 1})",
        _in_order(tally.partial),
        "run the explore stage again",
    )
    _refuse(
        "group(s) spread over several problems, steps or ranks",
        _in_order(tally.spread),
        "give every group of a phase an id of its own",
    )
    _refuse(
        f"step(s) with fewer than {min_groups_per_step} groups",
        sorted(step for step, count in tally.groups.items() if count < min_groups_per_step),
        "run the explore stage again",
    )
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
    """What is known of the groups that were counted so far.

    Args:
        group_size: G.

    Attributes:
        present: (step, rank).
        groups: By step.
        trajectories: Rows.
        problems: Their ids.
        doubled, partial, spread: (step, group id) of groups with samples twice, with others than 0..G-1, and of those
            in several places.
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
        """Count groups; all places of a group come together, or `met_again` tells."""
        import polars as pl

        self._keys.append(groups["key"].unique())
        self.present.update(groups.select("step", "rank").unique().iter_rows())
        self.groups.update(dict(groups["step"].value_counts().iter_rows()))
        self.trajectories += int(groups["rows"].sum())
        self.problems.update(groups["problem_id"].unique())
        last = self._group_size - 1
        whole = (pl.col("samples") == last + 1) & (pl.col("lowest") == 0) & (pl.col("highest") == last)
        for found, condition in (
            (self.doubled, pl.col("rows") > pl.col("samples")),
            (self.partial, ~whole),
            (self.spread, pl.col("places") > 1),
        ):
            found += groups.filter(condition).select("step", "group_id").iter_rows()

    def met_again(self) -> pl.Series | None:
        """Keys of groups that were added more than once, and of any that share a key; None when there are none."""
        import polars as pl

        keys = pl.concat(self._keys)
        again = keys.filter(keys.is_duplicated()).unique()
        return again if len(again) else None


def _in_order(found: list[tuple[int, str]]) -> list[str]:
    return [group for _, group in sorted(found)]


def _batches(paths: Sequence[str | Path], again: pl.Series | None = None) -> Iterator[pl.DataFrame]:
    """The groups of some files at a time; those with the keys `again` last, and those of all files at once."""
    import pyarrow.parquet as pq

    batch: list[str | Path] = []
    rows = 0
    for number, path in enumerate(paths, 1):
        batch.append(path)
        rows += pq.read_metadata(path).num_rows
        if rows >= _ROWS_AT_ONCE or number == len(paths):
            yield _groups(batch, None if again is None else ~_key().is_in(again.implode()))
            batch, rows = [], 0
    if again is not None:
        yield _groups(paths, _key().is_in(again.implode()))


def _key() -> pl.Expr:
    import polars as pl

    return pl.col("group_id").hash(seed=0)


def _groups(paths: Sequence[str | Path], which: pl.Expr | None) -> pl.DataFrame:
    """One row a group and place (problem, step, rank): its key, rows, samples (distinct), lowest and highest sample,
    and in how many places the group is."""
    import polars as pl

    columns = ("group_id", "step", "rank", "problem_id")
    sample = pl.col("sample")
    rows = scan(paths)
    return (
        (rows if which is None else rows.filter(which))
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


def _refuse(what: str, culprits: Iterable[object], fix: str) -> None:
    listed = list(culprits)
    if listed:
        named = ", ".join(str(one) for one in listed[:_NAMED])
        more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        raise StageError(
            f"the record is not complete: {len(listed)} {what}: {named}{more}", field="trajectories", fix=fix
        )
