"""Texts on which a regular expression may take more than linear time, made from the expression itself."""

from __future__ import annotations

import random
import re
import signal
import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

CHARACTERS = (
    string.ascii_letters + string.digits + string.punctuation + " \t\n\r\x0b\x1b\x07\x9f\xe9²½\u3000\u200b\uff1a"
)
_MOST = 120
_SHORT = 400
_SUSPECT = 0.02
"""Seconds for a short text, at which the long one is tried at once: what takes cubic time would take hours there."""


class Attack(NamedTuple):
    """The text `before`, then `unit` many times, then `after`."""

    before: str
    unit: str
    after: str

    def text(self, size: int) -> str:
        return self.before + self.unit * (size // len(self.unit)) + self.after


def attacks(pattern: re.Pattern[str]) -> set[Attack]:
    """Return texts that repeat what a pattern tells apart, and what it spells, after each other and then broken."""
    tree = _parser.parse(pattern.pattern, pattern.flags)
    seen: dict[tuple[bool, ...], str] = {}
    classes = list(_classes(tree, pattern.flags))
    for char in CHARACTERS:
        seen.setdefault(tuple(one.match(char) is not None for one in classes), char)
    units = [*seen.values(), *_words(tree)]
    made = {Attack("", unit, after) for unit in units for after in ("", "\x00", "\n\x00")}
    pairs = [(first, second) for first, second in product(units, units) if first != second]
    for first, second in random.Random(0).sample(pairs, min(len(pairs), _MOST // 2)):
        made |= {Attack(first, second, "\x00"), Attack("", first + second, "\x00")}
    return made


def _children(argument: Any) -> Iterator[Any]:
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _children(part)


def _classes(tree: Any, flags: int) -> Iterator[re.Pattern[str]]:
    """Yield a pattern for each character or class of characters."""
    for code, argument in tree:
        if code in (_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY):
            yield _compiler.compile(_parser.SubPattern(tree.state, [(code, argument)]), flags)
        for child in _children(argument):
            yield from _classes(child, flags)


def _words(tree: Any) -> Iterator[str]:
    """Yield each run of two and more characters that the pattern spells."""
    word = ""
    for code, argument in [*tree, (None, None)]:
        if code is _constants.LITERAL:
            word += chr(argument)
            continue
        if len(word) > 1:
            yield word
        word = ""
        for child in _children(argument):
            yield from _words(child)


class TooSlowError(Exception):
    """More processor time than the limit."""


@contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raise TooSlowError in the block after so much processor time; the engine of `re` checks for signals."""

    def stop(*_: object) -> None:
        raise TooSlowError

    earlier = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, earlier)


def too_slow(work: Callable[[str], object], made: set[Attack], size: int, seconds: float = 20.0) -> Attack | None:
    """Return an attack with which the work exceeds the limit on a text of `size`; None if there is none.

    All attacks are timed on short texts; those that are slow there, and the slowest two, are tried on long ones. A
    million characters take milliseconds in linear time, and hours in quadratic time: the machine's speed decides
    nothing.
    """
    timed = []
    attack = None
    try:
        for attack in sorted(made):
            with processor_limit(seconds):
                began = time.thread_time()
                text = attack.text(min(size, max(_SHORT, 40 * len(attack.unit))))
                work(text)
                taken = time.thread_time() - began
                if taken > _SUSPECT:
                    work(attack.text(size))
            timed.append((taken / len(text), attack))
        for _, attack in sorted(timed)[-2:]:
            with processor_limit(seconds):
                work(attack.text(size))
    except TooSlowError:
        return attack
    return None
