"""One rollout engine as a process of its own: `python -m rloop_core.rollout.engine_process SOCKET`.

It is told what to draw, and answers, in JSON lines on a socket that its starter holds the other end of. When that end
closes, even by kill -9, it ends, and everything below it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core.config import Config, make_config
from rloop_core.errors import RESUMES, RLoopError, error_as_data, is_out_of_memory
from rloop_core.lifelines import kill, processes_below
from rloop_core.printable import printable_line
from rloop_core.rollout.engine import Drawer, Drawn, SamplingSettings, make_sampler
from rloop_core.rollout.policy import load_tokenizer

if TYPE_CHECKING:
    from rloop_core.rollout.sampler import TransformersSampler

END_SECONDS = 5.0
"""In which an engine that is not wanted any more may end by itself, so that it tidies up."""
_TICK_SECONDS = 0.5
_MEMORY_FIX = f"lower it, or free the device of other processes; then {RESUMES}"
Message = dict[str, Any]


class _HungUp(Exception):  # noqa: N818 - says what is the case
    """Nobody listens any more."""


class SamplerDrawer:
    """transformers' engine as a `Drawer`: a batch is drawn whole, in one step."""

    ahead = 1

    def __init__(self, sampler: TransformersSampler) -> None:
        self._sampler = sampler
        self._waiting: list[tuple[int, Sequence[Sequence[int]], SamplingSettings, int]] = []

    @property
    def left(self) -> int:
        """Sequences of the batches that wait."""
        return sum(len(prompts) for _, prompts, _, _ in self._waiting)

    def add(self, key: int, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seed: int) -> None:
        """Have it wait for its turn."""
        self._waiting.append((key, prompts, settings, seed))

    def step(self, tick: Callable[[], None]) -> list[tuple[int, list[Drawn]]]:
        """The next batch."""
        key, prompts, settings, seed = self._waiting[0]
        drawn = self._sampler.draw_batch(prompts, settings, seed, tick)
        del self._waiting[0]
        return [(key, drawn)]

    def close(self) -> None:
        """Nothing runs beside this process."""


def make_drawer(config: Config, policy: Path, device: str) -> Drawer:
    """The engine that `placement.engine` names, in this process.

    Raises:
        RLoopError: It does not start.
    """
    tokenizer = load_tokenizer(policy, trust_remote_code=config.policy.trust_remote_code)
    if config.placement.engine == "vllm":
        from rloop_core.rollout.vllm_engine import VllmDrawer

        return VllmDrawer(config, policy, device, tokenizer)
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    if config.placement.threads:
        torch.set_num_threads(config.placement.threads)
    return SamplerDrawer(make_sampler(config, policy, device, tokenizer))


def main(connection: Connection) -> None:
    """Draw what is asked for until nobody asks any more; an error is the last thing that is said."""
    inbox: queue.Queue[Message | None] = queue.Queue()
    threading.Thread(target=_listen, args=(connection, inbox), name="rloop-inbox", daemon=True).start()
    drawer: Drawer | None = None
    try:
        asked = inbox.get()
        if asked is not None:
            drawer = make_drawer(make_config(asked["config"]), Path(asked["policy"]), asked["device"])
            _say(connection, {"ready": True, "ahead": drawer.ahead})
            _draw(drawer, inbox, connection)
    except _HungUp:
        pass
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        with suppress(_HungUp):
            _say(connection, {"error": _as_data(error)})
    finally:
        if drawer:
            drawer.close()


def _draw(drawer: Drawer, inbox: queue.Queue[Message | None], connection: Connection) -> None:
    total, told = 0, 0.0

    def tick() -> None:
        nonlocal told
        if (now := time.monotonic()) - told > _TICK_SECONDS:
            told = now
            _say(connection, {"drawn": total - drawer.left})

    while True:
        while not drawer.left or not inbox.empty():
            asked = inbox.get()
            if asked is None:
                return
            drawer.add(asked["key"], asked["prompts"], SamplingSettings(**asked["settings"]), asked["seed"])
            total += len(asked["prompts"])
        for key, drawn in drawer.step(tick):
            rows = [[one.token_ids, one.text, one.finished, one.logprob_sum] for one in drawn]
            _say(connection, {"key": key, "rows": rows, "drawn": total - drawer.left})


def _listen(connection: Connection, inbox: queue.Queue[Message | None]) -> None:
    """Take in what is asked; once nobody can ask any more, end this process, whatever it is at."""
    with suppress(EOFError, OSError):
        while True:
            inbox.put(json.loads(connection.recv_bytes()))
    inbox.put(None)
    time.sleep(END_SECONDS)
    kill(processes_below(os.getpid()))
    os._exit(1)


def _say(connection: Connection, message: Message) -> None:
    try:
        connection.send_bytes(json.dumps(message).encode())
    except OSError as error:
        raise _HungUp from error


def _as_data(error: Exception) -> Message:
    if isinstance(error, RLoopError):
        return error_as_data(error)
    what = printable_line(str(error), 200)
    if is_out_of_memory(error):
        kind, what = "StageError", f"out of memory: {what}"
        return {"kind": kind, "what": what, "field": "placement.generation_batch", "fix": _MEMORY_FIX}
    return {"kind": type(error).__name__, "what": what, "field": None, "fix": None}


if __name__ == "__main__":
    _handle = int(sys.argv[1])
    os.set_inheritable(_handle, False)
    main(Connection(_handle))
    sys.stderr.flush()
    os._exit(0)  # interpreters with torch take seconds to take themselves apart
