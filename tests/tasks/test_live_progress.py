from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from tasks import live_progress
from tasks.live_progress import StageProgress


class Clock:
    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "now", 1000.0)
    monkeypatch.setattr(live_progress.time, "monotonic", lambda: Clock.now)
    return Clock


def _step(done: float, total: float = 20, **metrics: Any) -> dict[str, Any]:
    known = {"reward": done / 100, "accuracy": 0.5, "rollouts": 32.0, "length_mean": 10.0}
    return {"kind": "step", "done": done, "total": total, "metrics": known | metrics}


def _explore(lines: list[tuple[int, str]] | None = None) -> StageProgress:
    said = [] if lines is None else lines
    return StageProgress("demo", ("explore", 0), lambda level, line: said.append((level, line)))


def test_the_text_says_step_reward_tokens_and_when_it_will_be_done(clock: type[Clock]) -> None:
    shown = _explore()
    shown.on_event("explore", 0, {"kind": "start", "note": ""})
    for done in range(1, 6):
        clock.now += 60
        shown.on_event("explore", 0, _step(done))
    text = shown.text()
    assert "**explore 0** of **demo**: RL step 5/20, reward +0.05, accuracy 50%" in text
    assert re.search(r"` 25%, about 15 min left \(until \d\d:\d\d UTC\)", text), text
    assert "1,600 tokens sampled, 5 a second" in text
    rows = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    assert [row.split(" | ")[0] for row in rows] == ["| 5", "| 4", "| 3", "| 2", "| 1"]
    assert rows[0] == "| 5 | +0.050 | 50.0% | 10 | 320 | 60.0 |"


def test_a_resumed_stage_is_not_taken_for_a_fast_one(clock: type[Clock]) -> None:
    shown = _explore()
    clock.now += 10
    shown.on_event("explore", 0, _step(15))
    assert "left" not in shown.text()
    clock.now += 60
    shown.on_event("explore", 0, _step(16))
    assert "about 4 min left" in shown.text()


def test_the_last_words_stay(clock: type[Clock]) -> None:
    shown = _explore()
    shown.on_event("explore", 0, _step(1))
    clock.now += 5
    metrics = {"reward_first": 0.1, "reward_last": 0.5, "accuracy_first": 0.5, "accuracy_last": 0.75}
    shown.on_event("explore", 0, {"kind": "done", "metrics": metrics, "seconds": 65.0})
    assert "done in 65 s: reward +0.10 to +0.50, accuracy 50% to 75%" in shown.text()
    assert "left" not in shown.text() and "░" not in shown.text()


def test_log_lines_come_at_a_readable_rate_and_notes_as_warnings(clock: type[Clock]) -> None:
    lines: list[tuple[int, str]] = []
    shown = _explore(lines)
    shown.on_event("explore", 0, {"kind": "start", "note": "changed: explore.steps: 10 -> 20"})
    for done in range(1, 21):
        clock.now += 5
        shown.on_event("explore", 0, _step(done))
    shown.on_event("run", 0, {"kind": "note", "note": "the store does not answer\n\x1b[31m"})
    shown.on_event("explore", 0, {"kind": "done", "metrics": {}, "seconds": 100.0})
    assert [line for _, line in lines] == [
        "explore 0: started (changed: explore.steps: 10 -> 20)",
        "explore 0: RL step 6/20, reward +0.06, accuracy 50%",
        "explore 0: RL step 12/20, reward +0.12, accuracy 50%",
        "explore 0: RL step 18/20, reward +0.18, accuracy 50%",
        "run: the store does not answer",
        "explore 0: done in 100 s",
    ]
    assert [level for level, _ in lines].count(logging.WARNING) == 1


def test_names_and_figures_of_others_cannot_break_the_text(clock: type[Clock]) -> None:
    shown = StageProgress("a|b`<img src=x onerror=alert(1)>", ("rft", 1), lambda level, line: None)
    shown.on_event("rft", 1, {"kind": "step", "done": 1, "total": 2, "metrics": {"loss": float("nan")}})
    shown.on_event("rft", 1, {"kind": "step", "done": 2, "total": 2, "metrics": {"loss": 0.5}})
    shown.on_event("harvest", 0, {"kind": "step", "done": 1, "total": 3, "metrics": {}})
    shown.set_status("failed: [click](javascript:x) | <b>\x1b[2J", ended=True)
    text = shown.text()
    assert "<img" not in text.replace("\\<", "") and "failed: \\[click\\](javascript:x) \\| \\<b\\>" in text
    assert "\x1b" not in text and shown.losses[1] == 0.5
