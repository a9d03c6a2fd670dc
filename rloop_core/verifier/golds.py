"""Gold answers as data sets store them (strings, ints, floats, GSM8K's `####`), as clean text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rloop_core.verifier.normalise import normalise
from rloop_core.verifier.types import Gold


def gold_text(value: object) -> str:
    """One gold answer as text; 5.0 is "5", "...#### 18" is "18", a boxed or dollar-wrapped gold loses its wrapping.

    Leading zeros stay, since they are how the answer was written (AIME's 025).

    Raises:
        ValueError: The value is missing, empty, not finite, or of a type that is no answer.
    """
    if isinstance(value, bool) or value is None:
        raise ValueError("the gold answer is missing" if value is None else "a truth value is no gold answer")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"the gold answer {value} is not finite")
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if not isinstance(value, str):
        raise ValueError(f"a gold answer cannot be of type {type(value).__name__}")
    text = value.rsplit("####", 1)[-1].strip()
    if text.startswith(("$", "\\boxed", "\\(", "\\[")):
        text = normalise(text)
    if not text:
        raise ValueError("the gold answer is empty")
    return text


def acceptable_golds(gold: Gold) -> list[str]:
    """Every acceptable answer as text: the members of a list, or the one gold.

    Raises:
        ValueError: None of them is usable.
    """
    if isinstance(gold, Sequence) and not isinstance(gold, str | bytes):
        if not gold:
            raise ValueError("the list of gold answers is empty")
        return [gold_text(one) for one in gold]
    return [gold_text(gold)]
