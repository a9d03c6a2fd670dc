"""Check that a phase was recorded completely: every RL step, rank and group, every sample once.

A success rate over a partial record is biased and looks like any other number, so harvest checks this first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rloop_core.errors import StageError
from rloop_core.trajectories.schema import scan

_LISTED = 5  # of the offending items, in an error


def prove_complete(
    paths: Sequence[str | Path], *, steps: int, ranks: int, group_size: int, min_groups_per_step: int
) -> dict[str, int]:
    """Check that `paths` hold the whole phase, each rollout once, and return its counts, of groups over all ranks.

    Memory grows with the number of groups.

    Args:
        paths: Trajectory files, together the phase.
        steps: RL steps of the phase; exactly 1..steps must be there.
        ranks: Processes of the phase; 0..ranks-1 must be there in every step.
        group_size: G. Every group holds exactly the samples 0..G-1, of one problem, from one step and rank.
        min_groups_per_step: P. A step may hold more, since dynamic sampling draws again.

    Raises:
        StageError: Names the first few (step, rank), groups or steps that are missing, incomplete or doubled.
    """
    import polars as pl

    sample = pl.col("sample")
    groups = (
        scan(paths)
        .group_by("group_id", "step", "rank", "problem_id")
        .agg(
            pl.len().alias("rows"),
            sample.n_unique().alias("samples"),
            sample.min().alias("lowest"),
            sample.max().alias("highest"),
        )
        .with_columns(pl.len().over("group_id").alias("places"))
        .sort("step", "group_id")
        .collect(engine="streaming")
    )

    def ids(condition: pl.Expr) -> list[str]:
        return groups.filter(condition)["group_id"].to_list()

    expected = {(step, rank) for step in range(1, steps + 1) for rank in range(ranks)}
    present = set(groups.select("step", "rank").unique().iter_rows())
    of_step = groups.group_by("step").len().sort("step")
    incomplete = f"incomplete group(s) (not exactly samples 0..{group_size - 1})"
    whole = (pl.col("samples") == group_size) & (pl.col("lowest") == 0) & (pl.col("highest") == group_size - 1)
    again, few = "run the explore stage again", of_step.filter(pl.col("len") < min_groups_per_step)["step"].to_list()
    one_attempt = "read the winning shards only: one attempt of each step"
    unique = "give every group of a phase an id of its own"
    offenders: list[tuple[str, Sequence[object], str]] = [
        ("missing (step, rank)", sorted(expected - present), f"{again}: it resumes"),
        ("unexpected (step, rank)", sorted(present - expected), "pass the shards of this phase only"),
        ("group(s) with duplicated samples", ids(pl.col("rows") > pl.col("samples")), one_attempt),
        (incomplete, ids(~whole), again),
        ("group(s) spread over several problems, steps or ranks", ids(pl.col("places") > 1), unique),
        (f"step(s) with fewer than {min_groups_per_step} groups", few, again),
    ]
    for kind, found, fix in offenders:
        if found:
            named = ", ".join(map(str, found[:_LISTED]))
            more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
            what = f"the record is not complete: {len(found)} {kind}: {named}{more}"
            raise StageError(what, field="trajectories", fix=fix)
    return {
        "steps": steps,
        "ranks": ranks,
        "groups": groups.height,
        "trajectories": int(groups["rows"].sum()),
        "problems": groups["problem_id"].n_unique(),
        "min_groups_in_a_step": of_step["len"].min(),  # type: ignore[dict-item]
        "max_groups_in_a_step": of_step["len"].max(),  # type: ignore[dict-item]
    }
