"""Rows as `BytedTsinghua-SIA/DAPO-Math-17k` has them: a hundred copies of each problem, and what is wrong with some.

By index there are more problems than by prompt (the same prompt under two indices), and by prompt more than after NFKC
and case-folding (one prompt typed in two ways); some of the latter have golds that contradict each other.
"""

from __future__ import annotations

import random
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

INSTRUCTION = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its "
    'own line after "Answer:".'
)
_TEXT = pa.string()
SCHEMA = pa.schema(
    [
        ("data_source", _TEXT),
        ("prompt", pa.list_(pa.struct([("content", _TEXT), ("role", _TEXT)]))),
        ("ability", _TEXT),
        ("reward_model", pa.struct([("ground_truth", _TEXT), ("style", _TEXT)])),
        ("extra_info", pa.struct([("index", _TEXT)])),
    ]
)


@dataclass(frozen=True)
class Dapo:
    """Rows in the hub's schema, shuffled, and the problems among them that have two golds."""

    rows: list[dict[str, object]]
    contradicted: list[str]


def dapo(problems: int = 120, copies: int = 100, seed: int = 0) -> Dapo:
    """Make some problems, each about `copies` times.

    Every tenth stands under two indices, every fifteenth is typed in two ways; every thirtieth, among the latter, has
    another gold when it is typed the second way.
    """
    rng = random.Random(seed)
    texts = [f"Given that x + {n} = {2 * n} and \u2220A = {n}, find the value of $x_{{{n}}}$." for n in range(problems)]
    entries: list[tuple[str, str, str]] = []  # index, text, gold
    for n, text in enumerate(texts):
        entries.append((f"first-{n}", text, str(n)))
        if n % 10 == 0:
            entries.append((f"second-{n}", text, f"{n:03}"))
        if n % 15 == 0:
            entries.append((f"typed-{n}", _typed_otherwise(text), str(n + 1 if n % 30 == 0 else n)))
    rows = [_row(*entry) for entry in entries for _ in range(copies + rng.randrange(-2, 3))]
    rng.shuffle(rows)
    return Dapo(rows, texts[::30])


def _typed_otherwise(text: str) -> str:
    """Full-width digits and another first letter, which NFKC and case-folding undo."""
    wide = {ord(digit): chr(ord(digit) + 0xFEE0) for digit in "0123456789"}
    other = text.replace("Given", "given").translate(wide)
    assert unicodedata.normalize("NFKC", other).casefold() == text.casefold()
    return other


def _row(index: str, text: str, gold: str) -> dict[str, object]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": INSTRUCTION.format(text), "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": gold, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def write(rows: list[dict[str, object]], path: Path) -> Path:
    """The rows as one parquet file."""
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    return path
