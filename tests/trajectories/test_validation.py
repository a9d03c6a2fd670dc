from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.errors import StageError
from rloop_core.trajectories import validation
from rloop_core.trajectories.schema import to_table
from rloop_core.trajectories.validation import CompletenessReport, prove_complete

STEPS, RANKS, GROUPS, SIZE = 3, 2, 2, 4


@pytest.fixture(autouse=True, params=[1, 1_000_000], ids=["file by file", "all at once"], scope="module")
def batches(request: pytest.FixtureRequest) -> Iterator[None]:
    """However much of the record is counted at a time, and wherever a group is cut, what is found is the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "_ROWS_AT_ONCE", request.param)
        yield


def prove(rows: list[dict[str, Any]]) -> CompletenessReport:
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
    assert (report.groups, report.trajectories, report.problems) == (12, 48, 3)
    assert report.min_groups_in_a_step == report.max_groups_in_a_step == 4


def test_more_groups_than_required_are_accepted(rows, rollout) -> None:
    more = [rollout(2, 0, 0, "extra", sample, "p9") for sample in range(SIZE)]
    assert prove(rows + more).max_groups_in_a_step == 5


def test_a_group_that_lies_in_two_files_is_whole(rows) -> None:
    cut = rows[: len(rows) // 2 - 2]
    late = rows[len(cut) :]
    assert prove([*late, *cut]) == prove(rows) == prove([*cut[1:], *late, cut[0]])


@settings(max_examples=6)
@given(index=st.integers(0, STEPS * RANKS * GROUPS * SIZE - 1))
def test_a_removed_or_doubled_row_is_found_with_its_group(rows, index: int) -> None:
    group = rows[index]["group_id"]
    with pytest.raises(StageError, match=f"incomplete group.*{group}"):
        prove(rows[:index] + rows[index + 1 :])
    with pytest.raises(StageError, match=f"duplicated samples: {group}"):
        prove([*rows, rows[index]])


def test_missing_steps_and_groups_are_named(rows) -> None:
    with pytest.raises(StageError, match=r"2 missing \(step, rank\): \(2, 0\), \(2, 1\)"):
        prove([row for row in rows if row["step"] != 2])
    with pytest.raises(StageError, match=r"1 step\(s\) with fewer than 4 groups: 3"):
        prove([row for row in rows if row["group_id"] != "s3r1g1"])
    with pytest.raises(StageError, match=r"2 unexpected \(step, rank\): \(4, 0\), \(4, 1\)"):
        prove([*rows, *({**row, "step": 4, "group_id": "late"} for row in rows if row["step"] == 1)])


def test_wrong_sample_numbers_and_mixed_groups_are_found(rows) -> None:
    shifted = [{**row, "sample": row["sample"] + 1} if row["group_id"] == "s1r0g0" else row for row in rows]
    with pytest.raises(StageError, match=r"incomplete group.*s1r0g0"):
        prove(shifted)
    reused = [{**row, "group_id": "s1r0g0"} if row["group_id"] == "s2r0g0" else row for row in rows]
    with pytest.raises(StageError, match="spread over several"):
        prove(reused)


def test_an_empty_record_is_an_error() -> None:
    with pytest.raises(StageError, match="no trajectory files"):
        prove_complete([], steps=1, ranks=1, group_size=1, min_groups_per_step=1)
