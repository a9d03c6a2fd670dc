"""Texts on which a regular expression may take more than linear time, made from the expression itself."""

from __future__ import annotations

import random
import re
import signal
import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, product
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

CHARACTERS = (
    string.ascii_letters + string.digits + string.punctuation + " \t\n\r\x0b\x1b\x07\x9f\xe9²½\u3000\u200b\uff1a"
)
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_LONG = 30
"""A repeat of at least so many is treated as one without end."""
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
    """Return texts that fill each repeat of a pattern and then break it.

    The repeat is filled with what it matches, with each kind of character that the pattern tells apart, with what it
    and its neighbour match, and with its own beginning: many places to begin, each as far from the end.
    """
    tree = _parser.parse(pattern.pattern, pattern.flags)
    kinds = _kinds(tree, pattern.flags)
    made = {Attack("", kind, after) for kind in kinds for after in ("", "\x00")}
    for before, body in _repeats(tree, [""], pattern.flags, kinds):
        inner = _Examples(body, pattern.flags, kinds).all(6)
        for start, unit in product(before, inner):
            for after in ("", "\x00", "\n\x00", *kinds[:2]):
                made |= {Attack(start, unit, after), Attack("", start + unit, after)}
            made |= {Attack(start, unit + other, "\x00") for other in inner if other != unit}
            made |= {Attack("", start + unit * 2, "\x00")}
    some = sorted(attack for attack in made if attack.unit)
    return set(random.Random(0).sample(some, min(len(some), _MOST)))


def _kinds(tree: Any, flags: int) -> list[str]:
    """Return one character of each kind that the pattern's classes tell apart."""
    classes = list(_classes(tree, flags))
    seen: dict[tuple[bool, ...], str] = {}
    for char in CHARACTERS:
        seen.setdefault(tuple(one.match(char) is not None for one in classes), char)
    return list(seen.values())


def _children(argument: Any) -> Iterator[Any]:
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _children(part)


def _classes(tree: Any, flags: int) -> Iterator[re.Pattern[str]]:
    for code, argument in tree:
        if code in (_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY):
            yield _compiled(tree, [(code, argument)], flags)
        for child in _children(argument):
            yield from _classes(child, flags)


def _compiled(tree: Any, items: list[Any], flags: int) -> re.Pattern[str]:
    part = _parser.SubPattern(tree.state, items)
    return _compiler.compile(part, flags)  # type: ignore[no-any-return]


def _repeats(tree: Any, before: list[str], flags: int, kinds: list[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield each long repeat: texts that lead to it, and its body."""
    for code, argument in tree:
        if code in _REPEATS and (argument[1] is _constants.MAXREPEAT or argument[1] >= _LONG):
            yield before, argument[2]
        for child in _children(argument):
            yield from _repeats(child, before, flags, kinds)
        ways = _Examples([(code, argument)], flags, kinds, tree).all(3)
        before = list(dict.fromkeys(start + way for start, way in product(before, ways or [""])))[:4]


class _Examples:
    """Texts that a part of a pattern matches, as far as groups and looks around allow."""

    def __init__(self, items: Any, flags: int, kinds: list[str], tree: Any = None) -> None:
        self.items, self.flags, self.kinds, self.tree = items, flags, kinds, tree if tree is not None else items

    def all(self, most: int) -> list[str]:
        texts = [""]
        for code, argument in self.items:
            ways = list(islice(dict.fromkeys(self._ways(code, argument)), most)) or [""]
            texts = [text + way for way in ways for text in texts][:most]
        return list(dict.fromkeys(texts))

    def _ways(self, code: Any, argument: Any) -> Iterator[str]:
        if code is _constants.LITERAL:
            yield chr(argument)
        elif code in (_constants.IN, _constants.NOT_LITERAL, _constants.ANY):
            one = _compiled(self.tree, [(code, argument)], self.flags)
            yield from (char for char in (*self.kinds, *CHARACTERS) if one.match(char))
        elif code in _REPEATS:
            ways = self._of(argument[2])
            for least in dict.fromkeys((max(argument[0], min(argument[1], 1)), argument[0])):
                yield from (way * least for way in ways)
        elif code is _constants.BRANCH:
            each = [self._of(branch) for branch in argument[1]]
            yield from (ways[0] for ways in each)
        elif code in (_constants.SUBPATTERN, _constants.ATOMIC_GROUP):
            yield from self._of(argument[-1] if code is _constants.SUBPATTERN else argument)

    def _of(self, tree: Any) -> list[str]:
        return _Examples(tree, self.flags, self.kinds).all(3)


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
