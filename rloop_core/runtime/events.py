"""The events of a run: what a stage's process and its run report while a stage is computed.

Events cross processes as JSON, so they are plain dictionaries with a `kind`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict


class Start(TypedDict):
    """A stage begins to compute; `note` is the reason."""

    kind: Literal["start"]
    note: str


class Cached(TypedDict):
    """The store holds the stage's artifact; `note` is what was verified."""

    kind: Literal["cached"]
    note: str


class Step(TypedDict):
    """The stage has done `done` of `total` steps (0 = unknown); `metrics` are those of the last step."""

    kind: Literal["step"]
    done: float
    total: float
    metrics: dict[str, Any]


class Done(TypedDict):
    """The stage's artifact is published; its metrics, and the seconds that it took to compute."""

    kind: Literal["done"]
    metrics: dict[str, Any]
    seconds: float


class Note(TypedDict):
    """One line for the user."""

    kind: Literal["note"]
    note: str


class Log(TypedDict):
    """Path of the file that holds what the stage's processes print."""

    kind: Literal["log"]
    path: str


Event = Start | Cached | Step | Done | Note | Log
OnEvent = Callable[[Event], None]
"""Takes an event of one stage."""
OnRunEvent = Callable[[str, int, Event], None]
"""Takes an event of a run: stage, iteration, event."""


def note(line: str) -> Note:
    """Return a note."""
    return {"kind": "note", "note": line}


def as_notes(on_event: OnEvent) -> Callable[[str], None]:
    """Return a function that sends each line as a note."""
    return lambda line: on_event(note(line))


def ignore_event(event: Event) -> None:
    """Drop an event: one process of a stage sends them for all."""
