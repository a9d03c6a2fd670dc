"""Play a schedule: start the run, disturb it, start it again until it finishes; then judge it."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rloop_core.config import Config, make_config
from rloop_core.store import Store
from tests.chaos.bad_s3 import BadS3
from tests.chaos.damage import damage
from tests.chaos.flow import FAILED, FINISHED, REFUSED, run_flow
from tests.chaos.kills import Kill
from tests.chaos.processes import (
    END_SECONDS,
    WrongError,
    exit_code,
    fork,
    kill_all,
    living,
    processes_of,
    wait_for,
    wait_until_alone,
)
from tests.chaos.schedule import Act, Moments, Schedule, Start, Where, draw_schedule
from tests.chaos.verdict import what_is_wrong, what_it_is

_MOST_STARTS = 12
_SILENT_SECONDS = 180.0
"""A start without an event for so long hangs; its whole duration depends on the machine and its load."""
_GONE_SECONDS = 1.5
_ENDINGS = {FINISHED, FAILED, REFUSED, 128 + signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM}


@dataclass
class Outcome:
    """The outcome of a schedule."""

    schedule: Schedule
    """The schedule."""
    wrong: list[str] = field(default_factory=list)
    """What is wrong in the end; empty if the run is as it should be."""
    happened: Counter[str] = field(default_factory=Counter)
    """Faults that really came, by name."""
    starts: int = 0
    """Number of starts."""
    seconds: float = 0.0
    """Duration."""
    log: Path = Path()
    """Log of its processes."""


class Harness:
    """Plays schedules in a folder, and on an S3 server if there is one.

    Args:
        folder: Folder for stores, scratch and logs.
        config: Config of the run, as plain data.
        s3: URI below which stores may be made; None without a server.
    """

    def __init__(self, folder: Path, config: dict[str, Any], s3: str | None) -> None:
        self.folder, self._config, self._s3 = folder, config, s3
        self.undisturbed: dict[str, Any] = {}
        self._seconds: dict[str, float] = {}
        self._moments: dict[str, list[Moments]] = {}
        self._server = os.environ.get("AWS_ENDPOINT_URL", "")
        self._proxy = BadS3(self._server) if s3 else None

    def measure(self, where: Where) -> float:
        """Play without faults; keep the run's result and its stages' counts; return the seconds."""
        play = _Play(self, Schedule(-1, where, ()))
        play.tally = play.folder / "tally"
        play.play()
        assert not play.outcome.wrong, (play.outcome.wrong, play.outcome.log.read_text()[-3000:])
        self._seconds[where] = play.outcome.seconds
        counts = [json.loads(line) for line in play.tally.read_text().splitlines()]
        self._moments[where] = [
            Moments(line["stage"], line["iteration"], at, line[at])
            for line in sorted(counts, key=lambda line: (line["stage"], line["iteration"]))
            for at in ("step", "file")
            if line.get(at) and line["stage"] != "preflight"  # it has nothing to resume from
        ]
        return play.outcome.seconds

    def draw(self, seed: int, where: Where) -> Schedule:
        """Draw the schedule of a seed."""
        return draw_schedule(seed, where, self._seconds[where], self._moments[where])

    def play(self, schedule: Schedule, wrong: Callable[[], None] | None = None, starts: int = _MOST_STARTS) -> Outcome:
        """Play a schedule.

        Args:
            schedule: The schedule.
            wrong: Plants a wrong in the run's processes; called in each flow.
            starts: Most starts until the run must have finished.
        """
        play = _Play(self, schedule, wrong, starts)
        play.play()
        return play.outcome

    def play_together(self, schedule: Schedule, starters: int, wrong: Callable[[], None] | None = None) -> Outcome:
        """Start one run in several processes at the same moment."""
        play = _Play(self, schedule, wrong)
        play.play_together(starters)
        return play.outcome

    def close(self) -> None:
        """Stop the proxy of the S3 server."""
        if self._proxy:
            self._proxy.stop()


class _Play:
    def __init__(
        self, harness: Harness, schedule: Schedule, wrong: Callable[[], None] | None = None, starts: int = _MOST_STARTS
    ) -> None:
        self._harness, self._schedule, self._plant_wrong, self._most_starts = harness, schedule, wrong, starts
        self.outcome = Outcome(schedule)
        self.tally: Path | None = None
        name = f"{schedule.where}-{schedule.seed}"
        self.folder = self._folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=harness.folder))
        on_s3 = schedule.where == "s3"
        self._proxy = harness._proxy if on_s3 else None
        uri = f"{harness._s3}/{self._folder.name}-{time.time_ns()}" if on_s3 else str(self._folder / "store")
        self._scratch = self._folder / "scratch" if on_s3 else self._folder / "store" / f".scratch-{os.geteuid()}"
        placement = {**harness._config["placement"], "store": uri, "scratch": str(self._scratch) if on_s3 else None}
        self._config: Config = make_config({**harness._config, "placement": placement})
        self._uri, self._keep = uri, harness._proxy.pid if harness._proxy else None
        self._log = self.outcome.log = self._folder / "log.txt"

    def play(self) -> None:
        """Play the schedule and fill in the outcome."""
        with self._ending():
            began = time.monotonic()
            for number, start in enumerate(self._schedule.starts):
                self._damage(start, number)
                self._start(start, number)
            while self._start(Start(), self.outcome.starts) != FINISHED:
                if self.outcome.starts >= self._most_starts:
                    failures = [line for line in self._log.read_text().splitlines() if line.startswith("failed: ")]
                    raise WrongError(f"not finished after {self.outcome.starts} starts; {failures[-1:]}")
            self.outcome.seconds = time.monotonic() - began
            self._judge()

    def play_together(self, starters: int) -> None:
        """Start the run in several processes at once; each either computes or is refused, and none computes twice."""
        with self._ending():
            gate, opener = os.pipe()
            flows = [self._fork(gate=gate) for _ in range(starters)]
            os.close(gate)
            os.close(opener)
            codes = [self._end_of(flow) for flow, _ in flows]
            started: Counter[str] = Counter()
            for _, reading in flows:
                with os.fdopen(reading, "rb") as report:
                    events = [json.loads(line) for line in report]
                started.update(f"{event['stage']} {event['iteration']}" for event in events if event["kind"] == "start")
            self.outcome.starts = starters
            self.outcome.happened["refused"] = codes.count(REFUSED)
            refusals = [line for line in self._log.read_text().splitlines() if line.startswith("refused: ")]
            if set(codes) - {FINISHED, REFUSED} or FINISHED not in codes:
                raise WrongError(f"they ended with {codes}: {self._log.read_text()[-1500:]}")
            if any(" is being written by process " not in line for line in refusals):
                raise WrongError(f"refused without saying who holds the run: {refusals}")
            if len(refusals) != codes.count(REFUSED) or set(started.values()) != {1}:
                raise WrongError(f"{codes} with {len(refusals)} refusals; stages were begun so often: {dict(started)}")
            self._judge()

    def _judge(self) -> None:
        wait_until_alone(self._keep)
        config, undisturbed = self._config, self._harness.undisturbed
        if undisturbed:
            self.outcome.wrong += self._away(lambda store, cache: what_is_wrong(config, store, cache, undisturbed))
        else:
            self._harness.undisturbed = self._away(lambda store, cache: what_it_is(config, store, cache))

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Record a WrongError of the block, and leave no process behind."""
        try:
            yield
        except WrongError as wrong:
            self.outcome.wrong.append(str(wrong))
        finally:
            kill_all(self._keep)

    def _damage(self, start: Start, number: int) -> None:
        for index, kind in enumerate(start.before):
            seed = f"{self._schedule.seed} {number} {index}"
            done = self._away(
                lambda store, cache, k=kind, s=seed: damage(k, store, self._config.name, self._scratch, s)
            )
            if done:
                self._write(done)
                self.outcome.happened[f"{kind} between starts"] += 1

    def _start(self, start: Start, number: int) -> int:
        """Start the run, carry out its faults, and return its exit code."""
        self.outcome.starts += 1
        self._write(f"start {number}: {start}")
        if self._proxy:
            before = self._proxy.behave(rate=start.rate, faults=start.network)
        began = time.monotonic()
        kill = next((self._kill(act, number) for act in start.acts if act.in_process), None)
        flow, reading = self._fork(kill)
        rivals: list[int] = []
        waiting = [act for act in start.acts if not act.in_process]
        events, buffer, gone, back, moved = 0, b"", start.gone, None, began
        code: int | None = None
        while code is None:
            now = time.monotonic() - began
            if time.monotonic() - moved > _SILENT_SECONDS:
                self._dump_stacks()
                raise WrongError(f"start {number} has sent no event for {_SILENT_SECONDS:.0f} s")
            for act in [act for act in waiting if (now if act.by == "seconds" else events) >= act.after]:
                waiting.remove(act)
                if self._act(act, flow, rivals):
                    self.outcome.happened[act.kind] += 1
            if self._proxy and gone is not None and now >= gone:
                self._proxy.behave(gone=True)
                gone, back = None, now + _GONE_SECONDS
                self.outcome.happened["S3 gone"] += 1
            if self._proxy and back is not None and now >= back:
                self._proxy.behave()
                back = None
            if select.select([reading], [], [], 0.01)[0]:
                piece = os.read(reading, 1 << 16)
                events += piece.count(b"\n")
                buffer += piece
                moved = time.monotonic() if piece else moved
                if not piece:
                    time.sleep(0.005)
            code = exit_code(flow)
        os.close(reading)
        self._write(f"ended with {code}; events: {[line.decode()[:200] for line in buffer.splitlines()[-6:]]}")
        codes = [code, *(self._end_of(rival) for rival in rivals)]
        if self._proxy:
            seen = self._proxy.behave()
            for kind in start.network:
                self.outcome.happened[f"S3 {kind}"] += seen.get(kind, 0) - before.get(kind, 0)
        if kill and kill.claim.exists():
            self.outcome.happened[next(act.kind for act in start.acts if act.in_process)] += 1
        unexpected = [code for code in codes if code not in _ENDINGS]
        if unexpected:
            raise WrongError(f"start {number} ended with {unexpected}: {self._log.read_text()[-1500:]}")
        if codes.count(FINISHED) > 1 and REFUSED not in codes:
            self.outcome.happened["second start after the first"] += 1
        self.outcome.happened["second start refused"] += codes[1:].count(REFUSED)
        if start.patient:
            wait_until_alone(self._keep)
        return FINISHED if FINISHED in codes else code

    def _fork(self, kill: Kill | None = None, gate: int | None = None) -> tuple[int, int]:
        """Fork a flow, which waits for the gate to open; return its process id and the descriptor of its events."""
        reading, writing = os.pipe()
        keep = [writing] if gate is None else [writing, gate]
        flow = fork(lambda: self._flow(writing, kill, gate), self._log, keep)
        os.close(writing)
        return flow, reading

    def _flow(self, writing: int, kill: Kill | None, gate: int | None) -> int:
        faulthandler.register(signal.SIGUSR1)
        if gate is not None:
            os.read(gate, 1)
        if self._proxy:
            os.environ["AWS_ENDPOINT_URL"] = self._proxy.url
        if self._plant_wrong:
            self._plant_wrong()
        return run_flow(self._config, writing, kill, self.tally)

    def _kill(self, act: Act, number: int) -> Kill:
        assert act.by in ("request", "step", "file")
        claim = self._folder / f"kill-{number}"
        return Kill(act.kind.split()[1], act.by, int(act.after), act.sent, claim, act.stage, act.iteration)

    def _act(self, act: Act, flow: int, rivals: list[int]) -> bool:
        """Carry out a fault; return False if it found no process."""
        if act.kind == "second start":
            rival, reading = self._fork()
            os.close(reading)
            rivals.append(rival)
            return True
        number = signal.SIGTERM if act.kind.startswith("terminate") else signal.SIGKILL
        chosen = processes_of(flow)[act.kind.partition(" ")[2]]
        for pid in chosen[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(chosen)

    def _away(self, work: Callable[[Store, Path], Any]) -> Any:
        """Do some work on the store in a child, so that no thread of its clients stays here; return its result."""
        result = self._folder / "result.json"

        def do() -> int:
            result.write_text(json.dumps(work(Store(self._uri), self._folder / "cache")))
            return 0

        code = self._end_of(fork(do, self._log))
        if code:
            lines = self._log.read_text().splitlines()
            raise WrongError(f"reading the store ended with {code}: {lines[-1:]}")
        return json.loads(result.read_text())

    def _end_of(self, pid: int) -> int:
        deadline = time.monotonic() + _SILENT_SECONDS + END_SECONDS
        return wait_for(pid, lambda: time.monotonic() > deadline)

    def _dump_stacks(self) -> None:
        """Have the flow and its processes write their stacks to the log."""
        for pid in living(self._keep):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1)

    def _write(self, line: str) -> None:
        with open(self._log, "a") as log:
            log.write(f"--- {line}\n")
