"""Proof that a phase was recorded whole: every RL step, rank and group, every sample once.

A success rate over a partial record is a biased number that looks like any other, so harvest proves this
first (design invariants 3 and 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rloop_core.errors import StageError
from rloop_core.trajectories.scan import scan

if TYPE_CHECKING:
    import polars as pl

_NAMED = 5  # how many culprits a message names


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
    groups = _groups(paths)
    present = set(groups.select("step", "rank").unique().iter_rows())
    expected = {(step, rank) for step in range(1, steps + 1) for rank in range(ranks)}
    _refuse("missing (step, rank)", sorted(expected - present), "run the explore stage again: it resumes")
    _refuse("unexpected (step, rank)", sorted(present - expected), "seal the shards of this phase only")

    import polars as pl

    sample_order = pl.col("group_id").sort_by("step", "group_id")

    def where(condition: pl.Expr) -> list[str]:
        found: list[str] = groups.filter(condition).select(sample_order)["group_id"].to_list()
        return found

    _refuse(
        "group(s) with duplicated samples",
        where(pl.col("rows") > pl.col("samples")),
        "read the winning shards only: one attempt of each step",
    )
    lowest, highest = pl.col("lowest"), pl.col("highest")
    whole = (pl.col("samples") == group_size) & (lowest == 0) & (highest == group_size - 1)
    _refuse(
        f"incomplete group(s) (not exactly samples 0..{group_size - 1})",
        where(~whole),
        "run the explore stage again",
    )
    _refuse(
        "group(s) spread over several problems, steps or ranks",
        where(pl.col("places") > 1),
        "give every group of a phase an id of its own",
    )
    per_step = groups.group_by("step").len().sort("step")
    short = per_step.filter(pl.col("len") < min_groups_per_step)
    _refuse(
        f"step(s) with fewer than {min_groups_per_step} groups",
        short["step"].to_list(),
        "run the explore stage again",
    )
    counts = per_step["len"].to_list()
    return CompletenessReport(
        steps=steps,
        ranks=ranks,
        groups=groups.height,
        trajectories=int(groups["rows"].sum()),
        problems=groups["problem_id"].n_unique(),
        min_groups_in_a_step=min(counts),
        max_groups_in_a_step=max(counts),
    )


def _groups(paths: Sequence[str | Path]) -> pl.DataFrame:
    """One row a group: rows, samples (distinct), lowest and highest sample, places (distinct problem, step,
    rank)."""
    import polars as pl

    columns = ("group_id", "step", "rank", "problem_id")
    sample = pl.col("sample")
    return (
        scan(paths)
        .group_by(*columns)
        .agg(
            pl.len().alias("rows"),
            sample.n_unique().alias("samples"),
            sample.min().alias("lowest"),
            sample.max().alias("highest"),
        )
        .with_columns(pl.len().over("group_id").alias("places"))
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
