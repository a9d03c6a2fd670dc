"""One schedule played: the run started, disturbed, started again, until it finishes; then looked at."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rloop_core.config import Config, make_config
from rloop_core.store import Store
from tests.chaos.bad_s3 import BadS3
from tests.chaos.damage import damage
from tests.chaos.flow import FAILED, FINISHED, REFUSED, DeathAtRequest, run_flow
from tests.chaos.schedule import Act, Schedule, Start
from tests.chaos.verdict import what_is_wrong, what_it_is
from tests.chaos.warm import fork

_MOST_STARTS = 12
_START_SECONDS = 600.0
_GONE_SECONDS = 1.5
_END_SECONDS = 60.0
_ENDINGS = {FINISHED, FAILED, REFUSED, 128 + signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM}


@dataclass
class Outcome:
    """What became of a schedule.

    Attributes:
        schedule: It.
        wrong: What is wrong in the end; empty is what is wanted.
        happened: Faults that really came, by name.
        starts: Starts that it took.
        seconds: Time that it took.
        log: Where its processes wrote.
    """

    schedule: Schedule
    wrong: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    seconds: float = 0.0
    log: Path = Path()


class Stage:
    """Where schedules are played: a folder, and an S3 server where there is one.

    Args:
        folder: Takes stores, scratch and logs.
        config: Of the run, as plain data.
        s3: URI below which stores may be made, None where there is no server.
    """

    def __init__(self, folder: Path, config: dict[str, Any], s3: str | None) -> None:
        self.folder, self._config, self._s3 = folder, config, s3
        self.undisturbed: dict[str, Any] = {}
        self._server = os.environ.get("AWS_ENDPOINT_URL", "")
        self._proxy = BadS3(self._server) if s3 else None

    def measure(self, where: str) -> float:
        """Play without any fault, and keep what the run became; the seconds it took."""
        schedule = Schedule(-1, where, ())  # type: ignore[arg-type]
        one = _Play(self, schedule)
        one.play()
        assert not one.outcome.wrong, (one.outcome.wrong, one.outcome.log.read_text()[-3000:])
        return one.outcome.seconds

    def play(self, schedule: Schedule) -> Outcome:
        """What becomes of a schedule."""
        one = _Play(self, schedule)
        one.play()
        return one.outcome

    def play_together(self, schedule: Schedule, starters: int) -> Outcome:
        """What becomes of a run that several processes start at the same moment."""
        one = _Play(self, schedule)
        one.play_together(starters)
        return one.outcome

    def close(self) -> None:
        """End what stands before the server."""
        if self._proxy:
            self._proxy.stop()


class _Play:
    def __init__(self, stage: Stage, schedule: Schedule) -> None:
        self._stage, self._schedule = stage, schedule
        self.outcome = Outcome(schedule)
        name = f"{schedule.where}-{schedule.seed}"
        self._folder = stage.folder / name
        self._folder.mkdir(parents=True)
        on_s3 = schedule.where == "s3"
        self._proxy = stage._proxy if on_s3 else None
        uri = f"{stage._s3}/{name}-{time.time_ns()}" if on_s3 else str(self._folder / "store")
        self._scratch = self._folder / "scratch" if on_s3 else self._folder / "store" / ".scratch"
        placement = {**stage._config["placement"], "store": uri, "scratch": str(self._scratch) if on_s3 else None}
        self._config: Config = make_config({**stage._config, "placement": placement})
        self._uri = uri
        self._log = self.outcome.log = self._folder / "log.txt"

    def play(self) -> None:
        """All of it; what is wrong is in the outcome."""
        with self._ending():
            began = time.monotonic()
            for number, start in enumerate(self._schedule.starts):
                self._damage(start, number)
                self._start(start, number)
            while self._start(Start(), self.outcome.starts) != FINISHED:
                if self.outcome.starts >= _MOST_STARTS:
                    raise _WrongError(f"not finished after {self.outcome.starts} starts")
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
            begun: Counter[str] = Counter()
            for _, reading in flows:
                with os.fdopen(reading, "rb") as report:
                    events = [json.loads(line) for line in report]
                begun.update(f"{one['stage']} {one['iteration']}" for one in events if one["kind"] == "start")
            self.outcome.starts = starters
            self.outcome.happened["refused"] = codes.count(REFUSED)
            refusals = [line for line in self._log.read_text().splitlines() if line.startswith("refused: ")]
            if set(codes) - {FINISHED, REFUSED} or FINISHED not in codes:
                raise _WrongError(f"they ended with {codes}: {self._log.read_text()[-1500:]}")
            if any(" is being written by process " not in line for line in refusals):
                raise _WrongError(f"refused without saying who holds the run: {refusals}")
            if len(refusals) != codes.count(REFUSED) or set(begun.values()) != {1}:
                raise _WrongError(f"{codes} with {len(refusals)} refusals; stages were begun so often: {dict(begun)}")
            self._judge()

    def _judge(self) -> None:
        self._wait_until_alone()
        config, undisturbed = self._config, self._stage.undisturbed
        if undisturbed:
            self.outcome.wrong += self._away(lambda store, cache: what_is_wrong(config, store, cache, undisturbed))
        else:
            self._stage.undisturbed = self._away(lambda store, cache: what_it_is(config, store, cache))

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Note what goes wrong in the block, and leave no process behind."""
        try:
            yield
        except _WrongError as wrong:
            self.outcome.wrong.append(str(wrong))
        finally:
            for process in self._living():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self._reap()

    def _damage(self, start: Start, number: int) -> None:
        for place, kind in enumerate(start.before):
            seed = f"{self._schedule.seed} {number} {place}"
            did = self._away(lambda store, cache, k=kind, s=seed: damage(k, store, self._config.name, self._scratch, s))
            if did:
                self._write(did)
                self.outcome.happened[f"{kind} between starts"] += 1

    def _start(self, start: Start, number: int) -> int:
        """Start the run and do to it what is planned; its exit code."""
        self.outcome.starts += 1
        self._write(f"start {number}: {start}")
        if self._proxy:
            before = self._proxy.behave(rate=start.rate, faults=start.network)
        began = time.monotonic()
        death = next((self._death(act, number) for act in start.acts if act.by == "requests"), None)
        flow, reading = self._fork(death)
        rivals: list[int] = []
        waiting = [act for act in start.acts if act.by != "requests"]
        events, buffer, gone, back = 0, b"", start.gone, None
        code: int | None = None
        while code is None:
            now = time.monotonic() - began
            if now > _START_SECONDS:
                raise _WrongError(f"start {number} did not end in {_START_SECONDS:.0f} s")
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
                if not piece:
                    time.sleep(0.005)
            code = self._ended(flow)
        os.close(reading)
        self._write(f"ended with {code}; events: {[line.decode()[:200] for line in buffer.splitlines()[-6:]]}")
        codes = [code, *(self._end_of(rival) for rival in rivals)]
        if self._proxy:
            seen = self._proxy.behave()
            for kind in start.network:
                self.outcome.happened[f"S3 {kind}"] += seen.get(kind, 0) - before.get(kind, 0)
        if death and death.claim.exists():
            self.outcome.happened[next(act.kind for act in start.acts if act.by == "requests")] += 1
        strange = [one for one in codes if one not in _ENDINGS]
        if strange:
            raise _WrongError(f"start {number} ended with {strange}: {self._log.read_text()[-1500:]}")
        if codes.count(FINISHED) > 1 and REFUSED not in codes:
            self.outcome.happened["second start after the first"] += 1
        self.outcome.happened["second start refused"] += codes[1:].count(REFUSED)
        if start.patient:
            self._wait_until_alone()
        return FINISHED if FINISHED in codes else code

    def _fork(self, death: DeathAtRequest | None = None, gate: int | None = None) -> tuple[int, int]:
        """A flow's process id, and where its events are read; it waits for the gate to open."""
        reading, writing = os.pipe()
        keep = [writing] if gate is None else [writing, gate]
        flow = fork(lambda: self._flow(writing, death, gate), self._log, keep)
        os.close(writing)
        return flow, reading

    def _flow(self, writing: int, death: DeathAtRequest | None, gate: int | None) -> int:
        if gate is not None:
            os.read(gate, 1)
        if self._proxy:
            os.environ["AWS_ENDPOINT_URL"] = self._proxy.url
        return run_flow(self._config, writing, death)

    def _death(self, act: Act, number: int) -> DeathAtRequest:
        who = act.kind.split()[1]
        return DeathAtRequest(who, int(act.after), act.sent, self._folder / f"death-{number}")

    def _act(self, act: Act, flow: int, rivals: list[int]) -> bool:
        """Do it; False when there was nothing to do it to."""
        if act.kind == "second start":
            rival, reading = self._fork()
            os.close(reading)
            rivals.append(rival)
            return True
        number = signal.SIGTERM if act.kind.startswith("terminate") else signal.SIGKILL
        victims = {"flow": [flow], "fork server": [], "supervisor": [], "stage": []}
        with suppress(psutil.Error):
            for server in (one for one in psutil.Process(flow).children() if one.cmdline() == _own_command()):
                victims["fork server"].append(server.pid)
                for supervisor in server.children():
                    victims["supervisor"].append(supervisor.pid)
                    victims["stage"] += [one.pid for one in supervisor.children()]
        chosen = victims[act.kind.partition(" ")[2]]
        for pid in chosen[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(chosen)

    def _away(self, work: Callable[[Store, Path], Any]) -> Any:
        """What some work on the store returns, done in a child, so that no thread of its clients stays here."""
        result = self._folder / "result.json"

        def do() -> int:
            result.write_text(json.dumps(work(Store(self._uri), self._folder / "cache")))
            return 0

        code = self._end_of(fork(do, self._log))
        if code:
            raise _WrongError(f"looking at the store ended with {code}: {self._log.read_text()[-1500:]}")
        return json.loads(result.read_text())

    def _living(self) -> list[int]:
        """Processes that this schedule left."""
        keep = self._stage._proxy.pid if self._stage._proxy else None
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if process.pid != keep and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    def _wait_until_alone(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while left := self._living():
            self._reap()
            if time.monotonic() > deadline:
                commands = [" ".join(psutil.Process(pid).cmdline())[:80] for pid in left if psutil.pid_exists(pid)]
                raise _WrongError(f"left processes behind: {commands}")
            time.sleep(0.05)

    def _ended(self, flow: int) -> int | None:
        pid, status = os.waitpid(flow, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _end_of(self, pid: int) -> int:
        deadline = time.monotonic() + _START_SECONDS
        while (code := self._ended(pid)) is None:
            if time.monotonic() > deadline:
                raise _WrongError("a process did not end")
            time.sleep(0.005)
        return code

    def _reap(self) -> None:
        """Take in the orphans that ended; they come to us because we asked for them."""
        for process in psutil.Process().children():
            with suppress(psutil.Error, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)

    def _write(self, line: str) -> None:
        with open(self._log, "a") as log:
            log.write(f"--- {line}\n")


class _WrongError(Exception):
    """What is wrong with a run, in one line."""


def _own_command() -> list[str]:
    return psutil.Process().cmdline()
