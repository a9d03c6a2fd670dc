"""No text makes a regular expression, or a function that reads foreign text, take more than linear time.

`re` holds the interpreter's lock: while it searches, no heartbeat is sent and no other thread runs.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rloop_core.json_text import parse_json
from rloop_core.printable import printable_line, visible, without_secrets
from rloop_core.problems.sources import problem_and_gold
from rloop_core.problems.types import problem_id
from rloop_core.problems.wording import _LONGEST, words
from rloop_core.results.tables import markdown_text
from rloop_core.store.uri import holds_credentials
from rloop_core.verifier import Policies
from rloop_core.verifier.compare.answers import compare
from rloop_core.verifier.limits import MAX_CHARS
from rloop_core.verifier.read.extract import _MAX_LINE, extract
from rloop_core.verifier.read.normalise import acceptable_golds, normalise
from rloop_core.verifier.read.tree import _MAX_SHOWN
from tests.conftest import ROOT
from tests.security.hostile_texts import Attack, attacks, too_slow

MEGABYTE = 1_000_000
LONGEST = {
    "rloop_core.problems.loading _FORMULA": MAX_CHARS, "rloop_core.problems.wording": _LONGEST,
    "rloop_core.verifier.read.tree _SHOWN_REPEATS": _MAX_SHOWN, "rloop_core.verifier.read.tree": MAX_CHARS,
    "rloop_core.verifier.compare": MAX_CHARS, "rloop_core.verifier.read.answers": MAX_CHARS,
    "rloop_core.verifier.read.tokens": MAX_CHARS, "rloop_core.verifier.read.quantities": MAX_CHARS,
    "rloop_core.verifier.read.units": MAX_CHARS, "rloop_core.verifier.read.grammar": MAX_CHARS,
    "rloop_core.verifier.engine": MAX_CHARS, "rloop_core.verifier.limits": MAX_CHARS,
    "rloop_core.verifier.read.extract _FORMULA": _MAX_LINE,
}  # fmt: skip
"""Longest text that a module's patterns, or one of them, meet; any other may meet a megabyte."""
ANCHORED = {"rloop_core.config.yaml_text"}
"""Modules whose patterns, kept in tables, only match whole texts."""
SEARCHES = {"search", "finditer", "findall", "sub", "subn", "split"}
SOURCES = [
    path
    for folder in ("rloop_core", "tasks", "flows")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if re.search(r"\bre\.|\bimport regex|from re ", path.read_text())
]


class Found:
    """The patterns of a module, by name or line, each with the methods that use it."""

    def __init__(self, path: Path) -> None:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        self._name = name
        self._module = vars(importlib.import_module(name))
        self._tree = ast.parse(path.read_text())
        self.patterns: dict[str, tuple[re.Pattern[str], set[str]]] = {}
        for key, value in self._module.items():
            for number, pattern in enumerate(_inside(value)):
                self.patterns[f"{key} {number}"] = pattern, self._methods(key)
        self._calls()

    def longest(self, key: str) -> int:
        """Return the length of the longest text that a pattern meets."""
        return next((size for start, size in LONGEST.items() if f"{self._name} {key}".startswith(start)), MEGABYTE)

    def _methods(self, name: str) -> set[str]:
        """Return the methods called on a variable; all when it is passed on."""
        if self._name in ANCHORED:
            return {"match"}
        uses = {id(node) for node in ast.walk(self._tree) if isinstance(node, ast.Name) and node.id == name}
        called = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Attribute) and id(node.value) in uses and isinstance(node.value, ast.Name)
        ]
        return {node.attr for node in called} if len(called) == len(uses) - 1 else SEARCHES

    def _calls(self) -> None:
        """Add the patterns of calls such as `re.sub(...)`, whose pattern must be known before the call."""
        known = {(pattern.pattern, pattern.flags) for pattern, _ in self.patterns.values()}
        for node in ast.walk(self._tree):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "re"), "import re as a module"
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re") or node.func.attr == "escape":
                continue
            flags = [word.value for word in node.keywords if word.arg == "flags"]
            flags += node.args[1:2] if node.func.attr == "compile" else []
            values = [eval(compile(ast.Expression(each), "", "eval"), self._module) for each in (node.args[0], *flags)]
            pattern = re.compile(*values)
            if (pattern.pattern, pattern.flags) not in known:
                self.patterns[f"line {node.lineno}"] = pattern, {node.func.attr}


def _inside(value: Any) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        yield from _inside(list(value.values()))
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from _inside(part)


def _use(pattern: re.Pattern[str], methods: set[str]) -> Callable[[str], object]:
    def work(text: str) -> None:
        if methods & SEARCHES or "compile" in methods:
            for _ in pattern.finditer(text):
                pass
        if "match" in methods:
            pattern.match(text)
        if "fullmatch" in methods:
            pattern.fullmatch(text)

    return work


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_regular_expression_takes_linear_time(path: Path) -> None:
    found = Found(path)
    slow = {
        name: attack
        for name, (pattern, methods) in found.patterns.items()
        if (attack := too_slow(_use(pattern, methods), attacks(pattern), found.longest(name)))
    }
    assert not slow


TOKENS = [
    "answer", "Answer:", " ", "\n", "\r", "\t", "\\boxed{", "\\boxed", "{", "}", "\\", "$", "$$", "\\(", "\\[",
    "#### 7", "<think>", "</think>", "```", "*", "_", "(", ")", "<|", "|>", "<s>", "7", "a", ",", ".", " because", "://",
    "@", ":", "\x1b]", "\x1b[", "\x07", "&", "$ OR $", "\u00b2", "\u00bd", "\u0301", "\\frac", "\\text{", "\\,", "[",
    '"', "x-amz-credential=", "^\\circ ", "\\cdot ",
]  # fmt: skip
ENDS = [("", ""), ("", "\n\x00"), ("7", "."), ("\\boxed{", "}")]
STRICT = Policies(text_after="refuse")
READERS: dict[str, Callable[[str], object]] = {
    "extract": lambda text: extract(text, STRICT),
    "answer line": lambda text: extract(f"Answer: {text}", STRICT),
    "gold": acceptable_golds,
    "gold in dollars": lambda text: acceptable_golds(f"$${text}$$"),
    "line": printable_line,
    "secrets": lambda text: without_secrets(text, {"MY_TOKEN": "aaaaaaaa"}),
    "visible": visible,
    "answer": lambda text: compare(normalise(f"5 {text[:MAX_CHARS]}"), "5"),
    "words": words,
    "id": problem_id,
    "row": lambda text: problem_and_gold({"problem": text, "solution": text}),
    "json": lambda text: parse_json(text.encode()),
    "cell": markdown_text,
    "uri": lambda text: holds_credentials(f"s3://{text}"),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_of_foreign_text_takes_linear_time(reader: str) -> None:
    def work(text: str) -> None:
        with contextlib.suppress(ValueError, ArithmeticError):
            READERS[reader](text)

    pairs = [Attack(before, one + other, after) for one in TOKENS for other in TOKENS for before, after in ENDS]
    made = {*random.Random(1).sample(pairs, 200), *(Attack("", token, "") for token in TOKENS)}
    assert too_slow(work, made, MEGABYTE) is None
