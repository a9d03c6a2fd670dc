from __future__ import annotations

import io

from rloop_core.results import progress
from rloop_core.results.progress import LineWatcher

EVALUATION = {"held-out": {"avg@4": {"value": 0.25, "low": 0.1, "high": 0.4}, "problems": 8}}


def step(done: float, reward: float = 0.5):
    return {"kind": "step", "done": done, "total": 20, "metrics": {"reward": reward, "accuracy": 0.75}}


def test_lines_are_throttled_by_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    watcher = LineWatcher(lambda line: print(line, file=out))
    watcher.on_event("explore", 0, {"kind": "start", "note": ""})
    for done in range(1, 21):
        now[0] += 1.0
        watcher.on_event("explore", 0, step(done))
    watcher.on_event("explore", 0, {"kind": "done", "metrics": {}, "seconds": 20.0})
    assert out.getvalue().splitlines() == [
        "explore 0: started (not in the store yet)",
        "explore 0: RL step 10/20, reward +0.50, accuracy 75%",
        "explore 0: RL step 20/20, reward +0.50, accuracy 75%",
        "explore 0: done in 20 s",
    ]


def test_names_results_and_cached_stages():
    out = io.StringIO()
    watcher = LineWatcher(lambda line: print(line, file=out))
    for stage, iteration in (("evaluate", -1), ("explore", 0), ("preflight", -1), ("explore", 0)):
        watcher.on_event(stage, iteration, {"kind": "start", "note": ""})
    assert list(watcher.ran) == [("evaluate", -1), ("explore", 0)], "stages, in order"
    watcher.on_event("evaluate", -1, {"kind": "cached", "note": "verified 2 files"})
    watcher.on_event("evaluate", 0, {"kind": "done", "metrics": EVALUATION, "seconds": 65.2})
    watcher.on_event("rft", 1, {"kind": "done", "metrics": {"status": "carried"}, "seconds": 0.5})
    assert out.getvalue().splitlines()[4:] == [
        "evaluate base: Cached: verified 2 files",
        "evaluate theta_1: done in 65 s: held-out: avg@4 25.0%",
        "rft 1: done in 0.5 s: empty expert set: theta_i carried forward",
    ]
