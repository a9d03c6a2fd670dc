"""Several processes that play schedules side by side: a schedule mostly waits."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from tests.swift import swift_server

Line = dict[str, Any]
_WIDTH = 30
_LOG = 6000
_END_SECONDS = 30.0


def play_in_processes(
    arguments: Sequence[str], seeds: Sequence[int], players: int, folder: str | None, swift: bool
) -> Iterator[Line]:
    """Yield the players' lines as they come; each schedule is played by one of them.

    This process has threads, and perhaps an S3 server; only the players fork.

    Args:
        arguments: Further arguments of `python -m tests.chaos`.
        seeds: Seeds of the schedules.
        players: Number of processes.
        folder: Folder for their stores.
        swift: Start an S3 server.
    """
    with ExitStack() as ends:
        place = ends.enter_context(tempfile.TemporaryDirectory(prefix="rloop-chaos-", dir=folder))
        environment: Mapping[str, str] = os.environ
        if swift:
            data = Path(place) / "swift"
            data.mkdir()
            server = ends.enter_context(swift_server(data))
            environment = {**os.environ, **server.environment}
            arguments = [*arguments, "--s3", server.uri]
        lines: queue.Queue[Line | None] = queue.Queue()
        shares = [seeds[number::players] for number in range(players)]
        running = []
        for share in (share for share in shares if share):
            command = [sys.executable, "-m", "tests.chaos", *arguments, "--json", "--folder", place, "--players", "1"]
            command += ["--seed", str(share[0]), "--count", str(len(share)), "--every", str(players)]
            player = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            ends.callback(_end, player)
            assert player.stdout
            threading.Thread(target=_read, args=(player.stdout, lines), daemon=True).start()
            running.append(player)
        left = len(running)
        while left:
            line = lines.get()
            if line is None:
                left -= 1
            else:
                yield line
        codes = [player.wait() for player in running]
        if set(codes) - {0, 1}:
            raise RuntimeError(f"players ended with {codes}")


def _read(stream: IO[str], lines: queue.Queue[Line | None]) -> None:
    for line in stream:
        with suppress(ValueError):
            lines.put(json.loads(line))
    lines.put(None)


def _end(player: subprocess.Popen[str]) -> None:
    """Interrupt a player, so that it ends its runs; kill it if it does not end."""
    with suppress(ProcessLookupError):
        player.send_signal(signal.SIGINT)
    try:
        player.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        player.kill()
        player.wait()


class Progress:
    """Prints progress: one line on a terminal, elsewhere a line every tenth.

    Args:
        total: Number of schedules.
    """

    def __init__(self, total: int) -> None:
        self._total, self._done, self._faults, self._wrong = total, 0, 0, 0
        self._started, self._tenth = time.monotonic(), 0

    def add(self, line: Line) -> None:
        """Count a played schedule."""
        self._done += 1
        self._faults += sum(line["happened"].values())
        self._wrong += bool(line["wrong"])
        seconds = time.monotonic() - self._started
        left = seconds / self._done * (self._total - self._done)
        bar = ("#" * round(_WIDTH * self._done / self._total)).ljust(_WIDTH, ".")
        words = (
            f"[{bar}] {self._done}/{self._total} schedules, {self._faults} faults, {self._wrong} wrong, "
            f"{seconds:.0f} s, about {left:.0f} s left"
        )
        tenth = 10 * self._done // self._total
        if sys.stderr.isatty():
            print(f"\r{words} ", end="" if self._done < self._total else "\n", file=sys.stderr, flush=True)
        elif tenth > self._tenth:
            print(words, file=sys.stderr, flush=True)
        self._tenth = tenth


def summary(played: Sequence[Line], seconds: float) -> tuple[str, list[int]]:
    """Return a table of the faults with a line of totals, and the seeds of schedules that went wrong."""
    happened = sum((Counter(line["happened"]) for line in played), Counter[str]())
    wrong = [line["seed"] for line in played if line["wrong"]]
    rows = "".join(f"| {kind} | {count} |\n" for kind, count in sorted(happened.items()) if count)
    starts = sum(line["starts"] for line in played)
    disturbed = sum(1 for line in played if line["happened"])
    end = f"wrong: seeds {', '.join(map(str, wrong))}" if wrong else "0 wrong"
    words = (
        f"{len(played)} schedules ({disturbed} disturbed), {starts} starts, {happened.total()} faults, {seconds:.0f} s"
    )
    return f"\n| fault | times |\n|---|---|\n{rows}\n{words}: {end}", wrong


def schedule_in_words(line: Line) -> str:
    """Return a played schedule as text."""
    happened = ", ".join(kind if count == 1 else f"{kind} x{count}" for kind, count in line["happened"].items())
    verdict = "; ".join(line["wrong"]) if line["wrong"] else "ok"
    head = f"{line['seed']:5}  {line['where']:4}  {line['starts']:2} starts  {line['seconds']:6.1f} s"
    return f"{head}  {verdict}  ({happened or 'nothing'})" + (f"\n{line['log'][-_LOG:]}" if line["wrong"] else "")
