"""What is refused before it reaches the math engine, because evaluating it could take for ever or all memory.

An answer beyond a limit is `wrong`: a gold within the limits never needs such an answer. A gold beyond a limit is an
`error`. The limits are the cheap first defence; the killable, memory-limited pool is the second.
"""

from __future__ import annotations

import math
import re

MAX_CHARS = 2000
MAX_DIGITS = 1000
MAX_DEPTH = 40
MAX_EXPONENT = 100_000
MAX_FACTORIAL = 5000
MAX_FACTORIALS = 12
MAX_BINOMIAL = 10_000

_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_LEFT_RIGHT = re.compile(r"\\(?:left|right)(?![A-Za-z])|\s")
_EXPONENT = re.compile(r"(?:\^|\*\*|(?<=\d)[eE])[{(+-]*(\d+)(!?)")
_TOWER = re.compile(r"(?:\^|\*\*)[{(]*(\d+)[})]*(?:\^|\*\*)[{(]*(\d+)")
_FACTORIAL = re.compile(r"(\d+)[})]*!")
_POWER_FACTORIAL = re.compile(r"(\d+)[})]*\^[{(]*(\d+)[})]*!")
_BINOMIAL = re.compile(r"binom\{?(\d+)")
_NESTED_FACTORIAL = re.compile(r"![})\]]*!")
_TALL_TOWER = re.compile(r"(?:(?:\^|\*\*)[{(]*\d+[})]*){3}")


def beyond_limits(text: str) -> str | None:
    """Why the text must not be evaluated, or None when it may be."""
    if len(text) > MAX_CHARS:
        return f"longer than {MAX_CHARS} characters"
    if _DIGITS.search(text):
        return f"a number of more than {MAX_DIGITS} digits"
    if _depth(text) > MAX_DEPTH:
        return f"brackets nested deeper than {MAX_DEPTH}"
    text = _LEFT_RIGHT.sub("", text)
    for match in _EXPONENT.finditer(text):
        size = int(match.group(1))
        if size > MAX_EXPONENT or (match.group(2) and size > 8):
            return f"an exponent above {MAX_EXPONENT}"
    for match in _TOWER.finditer(text):
        low, high = int(match.group(1)), int(match.group(2))
        if low > 1 and high * math.log10(low) > math.log10(MAX_EXPONENT):
            return f"a power tower with an exponent above {MAX_EXPONENT}"
    if _TALL_TOWER.search(text):
        return "a power tower of four or more levels"
    if any(int(match.group(1)) > MAX_BINOMIAL for match in _BINOMIAL.finditer(text)):
        return f"a binomial coefficient above {MAX_BINOMIAL}"
    if "!" in text:
        if any(int(match.group(1)) > MAX_FACTORIAL for match in _FACTORIAL.finditer(text)):
            return f"a factorial above {MAX_FACTORIAL}!"
        for match in _POWER_FACTORIAL.finditer(text):
            low, high = int(match.group(1)), int(match.group(2))
            if low > 1 and high * math.log10(low) > math.log10(MAX_FACTORIAL):
                return f"a factorial above {MAX_FACTORIAL}!"
        if _NESTED_FACTORIAL.search(text) or text.count("!") > MAX_FACTORIALS:
            return "nested or too many factorials"
    return None


def _depth(text: str) -> int:
    """The deepest nesting of brackets of any kind."""
    depth = deepest = 0
    for char in text:
        if char in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "})]":
            depth -= 1
    return deepest
