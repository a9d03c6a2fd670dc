from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.errors import StageError
from rloop_core.trajectories.schema import to_table
from rloop_core.trajectories.success import prove_complete

STEPS, RANKS, GROUPS, SIZE = 3, 2, 2, 4


def prove(rows: list[dict[str, Any]]) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as name:
        half = len(rows) // 2
        paths = [Path(name, "[a].parquet"), Path(name, "b.parquet")]
        for path, part in zip(paths, (rows[:half], rows[half:]), strict=True):
            pq.write_table(to_table(part), path)
        return prove_complete(paths, steps=STEPS, ranks=RANKS, group_size=SIZE, min_groups_per_step=RANKS * GROUPS)


@pytest.fixture(scope="module")
def rows(phase) -> list[dict[str, Any]]:
    return [row for shard in phase(STEPS, RANKS, GROUPS, SIZE).values() for row in shard]


def test_a_complete_phase_is_reported_with_its_counts(rows) -> None:
    report = prove(rows)
    assert report == {
        "steps": 3, "ranks": 2, "groups": 12, "trajectories": 48, "problems": 3,
        "min_groups_in_a_step": 4, "max_groups_in_a_step": 4,
    }  # fmt: skip


def test_more_groups_than_required_are_accepted_and_a_group_may_lie_in_two_files(rows, rollout) -> None:
    more = [rollout(2, 0, 0, "extra", sample, "p9") for sample in range(SIZE)]
    assert prove(rows + more)["max_groups_in_a_step"] == 5
    cut = len(rows) // 2 - 2
    assert prove([*rows[cut:], *rows[:cut]]) == prove(rows)


@settings(max_examples=6)
@given(index=st.integers(0, STEPS * RANKS * GROUPS * SIZE - 1))
def test_a_removed_or_doubled_row_is_found_with_its_group(rows, index: int) -> None:
    group = rows[index]["group_id"]
    with pytest.raises(StageError, match=f"incomplete group.*{group}"):
        prove(rows[:index] + rows[index + 1 :])
    with pytest.raises(StageError, match=f"duplicated samples: {group}"):
        prove([*rows, rows[index]])


def _of(rows: list[dict[str, Any]], group: str, **changes: Any) -> list[dict[str, Any]]:
    return [{**row, **changes} if row["group_id"] == group else row for row in rows]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: [row for row in rows if row["step"] != 2], r"2 missing \(step, rank\): \(2, 0\), \(2, 1\)"),
        (lambda rows: [row for row in rows if row["group_id"] != "s3r1g1"], r"1 step\(s\) with fewer than 4 groups: 3"),
        (
            lambda rows: [*rows, *({**row, "step": 4, "group_id": "late"} for row in rows if row["step"] == 1)],
            r"2 unexpected \(step, rank\): \(4, 0\), \(4, 1\)",
        ),
        (
            lambda rows: [{**row, "sample": row["sample"] + (row["group_id"] == "s1r0g0")} for row in rows],
            r"incomplete group.*s1r0g0",
        ),
        (lambda rows: _of(rows, "s2r0g0", group_id="s1r0g0"), r"spread over several.*: s1r0g0"),
    ],
    ids=["step", "group", "unexpected", "samples", "spread"],
)
def test_what_is_missing_or_too_much_is_named(rows, change, told: str) -> None:
    with pytest.raises(StageError, match=told):
        prove(change(rows))


def test_an_empty_record_is_an_error() -> None:
    with pytest.raises(StageError, match="no trajectory files"):
        prove_complete([], steps=1, ranks=1, group_size=1, min_groups_per_step=1)
