"""Figures of runs with more iterations than a page can show side by side: some are drawn, the numbers are of all."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rloop_core.results.plotting import Picture
from rloop_core.results.report import figures

pytestmark = pytest.mark.process
LONG, MOST, SHORT = 200, 5, 3
STEPS = ("recorded", "correct", "capped")


def _ledgers(count: int) -> dict[int, dict[str, Any]]:
    ledger = [{"step": step, "trajectories": 10, "problems": 5} for step in STEPS]
    return {iteration: {"ledger": ledger} for iteration in range(count)}


def _seconds(count: int) -> list[tuple[int, str, float]]:
    return [
        (iteration, stage, 5.0)
        for iteration in range(count)
        for stage in ("explore", "harvest", "filter", "rft", "evaluate")
    ]


def _drawn(name: str, count: int) -> Picture:
    made = {
        "success-rates": lambda: figures.success_rates({one: [0.0, 0.05, 0.5] for one in range(count)}, 0.1),
        "filter": lambda: figures.funnel(_ledgers(count)),
        "seconds": lambda: figures.seconds(_seconds(count)),
    }[name]()
    assert made
    return made


@pytest.mark.parametrize("name", ["success-rates", "filter", "seconds"])
def test_a_short_run_is_drawn_whole_and_a_long_one_is_no_larger(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_DRAWN", MOST)
    short, most, long = (_drawn(name, count) for count in (SHORT, MOST, LONG))
    assert "are drawn" not in short.caption and _size(short)[1] < _size(most)[1] == _size(long)[1]
    assert _size(long) == _size(most)
    assert len({row[0] for row in long.table.rows}) == LONG, "the numbers are of all iterations"
    assert f"Of {LONG} iterations {MOST} are drawn" in long.caption


def _size(picture: Picture) -> tuple[float, float]:
    """Width and height of the vector image, in points."""
    wide, high = (re.search(rb'<svg[^>]* %b="([\d.]+)pt"' % name, picture.svg) for name in (b"width", b"height"))
    assert wide and high
    return float(wide[1]), float(high[1])
