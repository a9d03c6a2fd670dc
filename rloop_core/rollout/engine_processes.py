"""Rollout engines in processes of their own, one for each device or group of devices, that share the batches.

A batch goes to the engine with the least left to draw, so a slow one gets fewer of them; what is in a batch, and what
it draws, does not depend on who draws it.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from rloop_core.config import Config
from rloop_core.errors import StageCrashed, error_from_data
from rloop_core.lifelines import kill, processes_below
from rloop_core.rollout.available import check_standalone
from rloop_core.rollout.engine import (
    ENGINE_STARTS,
    Completion,
    Drawn,
    SamplingSettings,
    batch_seed,
    completions_of,
    plan_batches,
)
from rloop_core.rollout.engine_process import END_SECONDS
from rloop_core.rollout.places import VISIBLE, Place
from rloop_core.rollout.prompts import EncodedProblem

Message = dict[str, Any]
FIELD = "placement.engine"
_LOOK_SECONDS = 1.0
_TIDY_SECONDS = 2.0
_AGAIN = "start the same command again: it goes on after the batches that are done"


class EngineProcesses:
    """See `RolloutEngine`.

    Args:
        config: The run's config.
        policy: Folder of the policy.
        device: "cpu" or "cuda".
        places: One for each engine.

    Raises:
        ConfigError: The engine is not installed.
        RLoopError: One of them does not start; the others are ended.
    """

    def __init__(self, config: Config, policy: Path, device: str, places: Sequence[Place]) -> None:
        check_standalone(config)
        self._patience = config.placement.engine_stall_minutes
        self._start_patience = config.placement.engine_start_minutes
        self._inbox: queue.Queue[tuple[_Engine, Message | None]] = queue.Queue()
        self._keys = 0
        self._engines: list[_Engine] = []
        print(ENGINE_STARTS, file=sys.stderr, flush=True)
        try:
            for place in places:
                self._engines.append(_Engine(place, self._inbox))
            for engine in self._engines:
                engine.say({"config": config.model_dump(mode="json"), "policy": str(policy), "device": device})
            while not all(engine.ahead for engine in self._engines):
                self._hear()
        except BaseException:
            self.close()
            raise

    def sample(
        self, problems: Sequence[EncodedProblem], settings: SamplingSettings, batches: Collection[int] | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Batches as they are done; see `RolloutEngine`."""
        plan = plan_batches(problems, settings)
        waiting = deque(index for index in range(len(plan)) if batches is None or index in batches)
        under_way: dict[int, int] = {}
        while waiting or under_way:
            while waiting and (engine := self._least_busy(settings.batch)):
                index = waiting.popleft()
                under_way[self._hand_over(engine, problems, plan[index], settings, batch_seed(settings, index))] = index
            message = self._hear()
            if message and message.get("key") in under_way:
                index = under_way.pop(message["key"])
                yield index, completions_of(problems, plan[index], [Drawn(*row) for row in message["rows"]])

    def close(self) -> None:
        """End the engines and all that they started; kills those that do not end by themselves."""
        for engine in self._engines:
            engine.hang_up()
        for engine in self._engines:
            engine.end()
        self._engines = []

    def _hand_over(
        self,
        engine: _Engine,
        problems: Sequence[EncodedProblem],
        pairs: list[tuple[int, int]],
        settings: SamplingSettings,
        seed: int,
    ) -> int:
        self._keys += 1
        prompts = [list(problems[which].prompt_ids) for which, _ in pairs]
        if not engine.left:
            engine.quiet = 0.0
        engine.given += len(prompts)
        engine.say({"key": self._keys, "prompts": prompts, "settings": asdict(settings), "seed": seed})
        return self._keys

    def _least_busy(self, batch: int) -> _Engine | None:
        """The engine that the next batch goes to; None while all have as much as they like to have."""
        engine = min(self._engines, key=lambda one: one.left)
        return engine if not engine.left or engine.left <= (engine.ahead - 1) * batch else None

    def _hear(self) -> Message | None:
        """The next thing that any of them says; None when nobody said anything for a moment.

        Silence is counted only while it is listened to: whoever waits for the batches may take as long as it likes,
        and a machine that slept is no engine that hung.
        """
        started = time.monotonic()
        try:
            engine, message = self._inbox.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            engine, message = None, None
        waited = min(time.monotonic() - started, 2 * _LOOK_SECONDS)
        for one in self._engines:
            one.quiet = 0.0 if one is engine else one.quiet + waited
            if self._patience and one.left and one.quiet > self._patience * 60:
                self._give_up(one, f"it drew nothing for {self._patience:g} min (placement.engine_stall_minutes)")
            if self._start_patience and not one.ahead and one.quiet > self._start_patience * 60:
                self._give_up(one, f"not ready after {self._start_patience:g} min (placement.engine_start_minutes)")
        if engine is None:
            return None
        if message is None:
            what = f"{engine.place.name} ended without an answer"
            raise StageCrashed(what, field=FIELD, fix=f"see the log, then {_AGAIN}")
        if error := message.get("error"):
            found = error_from_data(error, FIELD, f"see the log, then {_AGAIN}")
            if engine.place.engines > 1:
                found.what = f"{engine.place.name}: {found.what}"
            raise found
        engine.ahead = message.get("ahead", engine.ahead)
        engine.done = message.get("drawn", engine.done)
        return message

    def _give_up(self, engine: _Engine, why: str) -> NoReturn:
        device = "; if it hangs again, look at its GPU (nvidia-smi)" if engine.place.devices else ""
        raise StageCrashed(f"{engine.place.name} hangs: {why}", field=FIELD, fix=f"{_AGAIN}{device}")


class _Engine:
    """The other end of an engine's socket.

    Attributes:
        ahead: Batches that it likes to have; 0 until it is ready.
        given, done: Sequences, since it began.
        quiet: Seconds in which it was listened to and said nothing.
    """

    def __init__(self, place: Place, inbox: queue.Queue[tuple[_Engine, Message | None]]) -> None:
        self.place = place
        self.ahead = self.given = self.done = 0
        self.quiet = 0.0
        self._inbox = inbox
        self._outbox: queue.Queue[Message | None] = queue.Queue()
        self._socket, theirs = socket.socketpair()
        self._connection = Connection(os.dup(self._socket.fileno()))
        environment = os.environ | ({VISIBLE: place.devices} if place.devices else {})
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rloop_core.rollout.engine_process", str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is for `--json`
                start_new_session=True,  # Ctrl-C is its starter's business
            )
        for target in (self._listen, self._speak):
            threading.Thread(target=target, name=f"rloop-{target.__name__}", daemon=True).start()

    @property
    def left(self) -> int:
        """Sequences that it was given and has not drawn."""
        return self.given - self.done

    def say(self, message: Message) -> None:
        """Send it something, without waiting until it listens."""
        self._outbox.put(message)

    def hang_up(self) -> None:
        """Let it know that nobody listens any more, whereupon it ends."""
        self._outbox.put(None)
        self._below = processes_below(self._process.pid)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Wait until it and all below it have ended, and kill what does not."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS + _TIDY_SECONDS)
        kill([*self._below, *processes_below(self._process.pid)])
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._socket.close()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._inbox.put((self, json.loads(self._connection.recv_bytes())))
        self._inbox.put((self, None))

    def _speak(self) -> None:
        with suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self._connection.send_bytes(json.dumps(message).encode())
