from __future__ import annotations

import io

from rloop_core.results.progress import LineWatcher

EVALUATION = {"held-out": {"avg@4": {"value": 0.25, "low": 0.1, "high": 0.4}, "problems": 8}}


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
