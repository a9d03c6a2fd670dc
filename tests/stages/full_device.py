"""Loaded by a fork server, so that a device can be full below it: `python -m tests.stages.full_device`, JSON on stdin.

torch's own error comes out of the backward pass of a rank, where a GPU would raise it, once the file that FULL_DEVICE
names holds that rank's number.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ != "__main__":
    import torch

    _backward = torch.Tensor.backward

    def _full(self: torch.Tensor, *given: Any, **named: Any) -> None:
        full = Path(os.environ["FULL_DEVICE"])
        if full.is_file() and full.read_text() == os.environ.get("RANK", "0"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity")
        _backward(self, *given, **named)

    torch.Tensor.backward = _full  # type: ignore[method-assign]


def main() -> None:
    """Explore with a device that is full in the third RL step, then with smaller parts of batches; tell how it went."""
    import multiprocessing

    from rloop_core.config import make_config
    from rloop_core.errors import RLoopError
    from rloop_core.stages import process
    from rloop_core.stages.runner import StageRunner
    from rloop_core.store import Lease, Store

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["rloop_core.runtime.fork_server", "rloop_core.stages.preload", "tests.stages.full_device"]
    )
    process._context = context
    data = json.load(sys.stdin)
    full = Path(os.environ["FULL_DEVICE"])
    steps: list[int] = []

    def on_event(stage: str, iteration: int, event: dict[str, Any]) -> None:
        if event["kind"] == "step":
            steps.append(event["done"])
            if event["done"] == 2 and not full.exists():
                full.write_text(data["rank"])

    told: dict[str, Any] = {}
    for micro in (None, 256):
        data["config"]["placement"]["micro_batch_tokens"] = micro
        config = make_config(data["config"])
        store = Store(config.placement.store)
        steps.clear()
        with Lease(store, config.name) as lease:
            try:
                StageRunner(config, store, lease, on_event).ensure("explore", 0)
            except RLoopError as error:
                told["error"], told["kind"] = str(error), type(error).__name__
        told[f"steps-{micro}"] = list(steps)
        full.write_text("nobody")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
