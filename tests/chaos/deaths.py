"""A SIGKILL at a moment that a process reaches: a request to the store, a step of a stage, a file put in its place.

A kill after so many seconds hits what takes long; what is short and must not be cut in two is hit by counting it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rloop_core.stages import execute, process
from rloop_core.store import Store

_STANDSTILL = 2.0
At = Literal["request", "step", "file"]


@dataclass(frozen=True)
class Death:
    """Of one process, once.

    Args:
        of: `flow`, or `stage`, or `supervisor` of a stage.
        at: What is counted: its requests; or a stage's steps and files, and that stage kills whom it is to kill.
        number: Which of them.
        sent: Whether what is counted is still done: the request sent, the step told, the file put in place.
        claim: File that is made when it happens, so that it happens once.
        stage: Whose steps or files.
        iteration: The stage's.
    """

    of: str
    at: At
    number: int
    sent: bool
    claim: Path
    stage: str = ""
    iteration: int = 0


def lie_in_wait(death: Death | None, tally: Path | None = None) -> None:
    """Have this process, the flow, and those forked from it from now on, count what they do.

    Args:
        death: Of one of them; None when nobody is to die.
        tally: Takes a JSON line a finished stage: what it counted.
    """
    if death and death.at == "request":
        _count_requests(death, os.getpid())
    elif death or tally:
        _count_in_stages(death, tally, os.getpid())


def _count_requests(death: Death, flow: int) -> None:
    ask, made = Store._ask, 0

    def counted(self: Store, *arguments: Any) -> Any:
        nonlocal made
        here = "flow" if os.getpid() == flow else "stage"
        made += 1
        due = made == death.number and (here == death.of or (here == "stage" and death.of == "supervisor"))
        found = ask(self, *arguments) if not due or death.sent else None
        if due:
            _kill(death, flow)
        return ask(self, *arguments) if due and not death.sent else found

    Store._ask = counted  # type: ignore[method-assign]


def _count_in_stages(death: Death | None, tally: Path | None, flow: int) -> None:
    work = process._work

    def counted(job: Any, events: Any) -> int:
        """In the stage's own process."""
        seen: Counter[str] = Counter()
        mine = death is not None and (job.stage, job.iteration) == (death.stage, death.iteration)

        def pass_by(at: At, do: Callable[[], Any]) -> Any:
            seen[at] += 1
            due = death if death and mine and (at, seen[at]) == (death.at, death.number) else None
            if due and not due.sent:
                _kill(due, flow)
            found = do()
            if due and due.sent:
                _kill(due, flow)
            return found

        _hook(pass_by)
        code = work(job, events)
        if tally and not code:
            with open(tally, "a") as stream:
                stream.write(json.dumps({"stage": job.stage, "iteration": job.iteration, **seen}) + "\n")
        return code

    process._work = counted


def _hook(pass_by: Callable[[At, Callable[[], Any]], Any]) -> None:
    run, replace = execute.execute, Path.replace

    def executed(job: Any, tell: Callable[[dict[str, Any]], None], *more: int) -> Any:
        def told(event: dict[str, Any]) -> None:
            if event["kind"] == "step":
                pass_by("step", lambda: tell(event))
            else:
                tell(event)

        return run(job, told, *more)

    execute.execute = executed
    Path.replace = lambda self, target: pass_by("file", lambda: replace(self, target))  # type: ignore[method-assign]


def _kill(death: Death, flow: int) -> None:
    try:
        death.claim.touch(exist_ok=False)
    except FileExistsError:
        return
    whom = {"flow": flow, "stage": os.getpid(), "supervisor": os.getppid()}
    os.kill(whom[death.of], signal.SIGKILL)
    if death.at != "request":
        time.sleep(_STANDSTILL)  # whoever ends this stage finds it at this moment
