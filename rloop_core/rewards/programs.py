"""Reward by running a program: `reward: program` (or `rloop_core.rewards.programs:passed`).

The completion's last fenced block is the program; the gold is JSON with its tests, in one of three forms:

- `[{"input": "3 4\\n", "output": "7\\n"}, ...]`: standard input, and the standard output expected;
- `{"inputs": [...], "outputs": [...]}`: the same, as APPS and its successors write it;
- `["assert add(3, 4) == 7", ...]`: run after the program, as MBPP writes it.

**What it protects from.** Each program runs as a process of its own, killed with all that it starts when its time is
up. Processor time, memory, processes, sizes of files and of the output are limited. Where Linux allows namespaces it
sees no network, no other process and no file but Python, the system's libraries and its own empty folder, which is
deleted. As root it runs under a user id that nobody has. **What it does not protect from**: faults of the kernel; where
namespaces are refused (`confinement()` says so; Docker's default profile refuses them to non-root users) the program
can read what the user can read, and use the network. It never sees the expected outputs, nor the right side of an
assert that compares with a literal; other asserts run beside it in one process, so a program may look at them.
"""

import ast
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from rloop_core.rewards import sandbox

_BLOCK = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_PYTHON = os.path.realpath(sys.executable)
"""The interpreter without its virtual environment: a program has the standard library alone."""
_CLOCK_FACTOR = 4.0
SECONDS = 5
"""Processor time of a program; four times as many may pass on the clock."""
_MEMORY_MB = 512
"""Address space of each of its processes, in MiB."""
_PROCESSES = 16
"""Processes and threads at a time."""
_FILE_MB = 16
"""Size of each file that it writes, in MiB."""
_OUTPUT_BYTES = 1 << 20
"""Standard output; a program that writes more has failed."""


class Run(NamedTuple):
    """How a program ended."""

    status: int
    """Exit status; 128 + the signal that ended it."""
    output: str
    """Its standard output, undecodable bytes replaced."""


@lru_cache(maxsize=1)
def confinement() -> bool:
    """Return True if programs run without network, other processes and other files; False if only limits hold."""
    return sys.platform == "linux" and run_program("pass", confine=True).status == 0


def passed(completion: str, gold: str) -> float | None:
    """Return the share of a problem's tests that the completion's program passes; None if it has no program.

    Raises ValueError if the gold is not a list of tests.
    """
    blocks = _BLOCK.findall(completion)
    tests = parse_tests(gold)
    if not blocks:
        return None
    program = blocks[-1]
    if isinstance(tests[0], str):
        return _passed_asserts(program, [str(test) for test in tests])
    runs = ((run_program(program, test[0]), test[1]) for test in tests)
    return sum(run.status == 0 and _lines(run.output) == _lines(expected) for run, expected in runs) / len(tests)


def parse_tests(gold: str) -> Sequence[tuple[str, str] | str]:
    """Return (input, output) pairs, or asserts; ValueError for text that is not JSON in one of the three forms."""
    content = json.loads(gold)
    if isinstance(content, dict) and {"inputs", "outputs"} <= content.keys():
        pairs = zip(content["inputs"], content["outputs"], strict=True)
        content = [{"input": text, "output": expected} for text, expected in pairs]
    if isinstance(content, list) and content:
        if all(isinstance(each, str) for each in content):
            return content
        if all(isinstance(each, dict) and {"input", "output"} <= each.keys() for each in content):
            return [(_text(each["input"]), _text(each["output"])) for each in content]
    raise ValueError("the gold is not a list of tests: {input, output} objects, or asserts")


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(output: str) -> list[str]:
    """Return lines without white space at their ends, without empty ones at the end."""
    return [line.rstrip() for line in output.rstrip().splitlines()]


_HARNESS = """
import sys, json
given = json.loads(sys.stdin.buffer.readline())
names = {"__name__": "program"}
exec(compile(given["program"], "program", "exec"), names)
for kind, code in given["tests"]:
    try:
        value = eval(code, names) if kind == "value" else exec(code, names)
        said = repr(value) if kind == "value" else "passed"
    except BaseException as error:
        said = "failed"
    sys.__stdout__.write("\\n" + given["mark"] + json.dumps(said) + "\\n")
sys.__stdout__.flush()
"""


def _passed_asserts(program: str, asserts: list[str]) -> float:
    """Return the share of asserts that hold; a value that must equal a literal is compared here, not by the program."""
    expected = [_equal_to(line) for line in asserts]
    mark = secrets.token_hex(16)
    tests = [("value", each[0]) if each else ("statement", line) for each, line in zip(expected, asserts, strict=True)]
    run = run_program(_HARNESS, json.dumps({"program": program, "tests": tests, "mark": mark}) + "\n")
    said = [line.removeprefix(mark) for line in run.output.splitlines() if line.startswith(mark)]
    if run.status != 0 or len(said) != len(asserts):
        return 0.0
    return sum(_holds(each, text) for each, text in zip(expected, said, strict=True)) / len(asserts)


def _equal_to(line: str) -> tuple[str, Any] | None:
    """Return expression and literal of `assert expression == literal`; None for any other statement."""
    with suppress(SyntaxError, ValueError, RecursionError):
        (statement,) = ast.parse(line.strip()).body
        test = statement.test if isinstance(statement, ast.Assert) else None
        if isinstance(test, ast.Compare) and [type(each) for each in test.ops] == [ast.Eq]:
            return ast.unparse(test.left), ast.literal_eval(test.comparators[0])
    return None


def _holds(expected: tuple[str, Any] | None, said: str) -> bool:
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        value = json.loads(said)
        if expected is None:
            return bool(value == "passed")
        return bool(ast.literal_eval(value) == expected[1])
    return False


def run_program(program: str, text: str = "", *, confine: bool | None = None) -> Run:
    """Run a Python program with a text as its standard input, in an empty folder that is deleted then.

    It is confined where this system allows it; `confine` insists, and the program does not run where it does not.
    """
    temporary = tempfile.TemporaryFile
    with tempfile.TemporaryDirectory(prefix="rloop-program-") as top, temporary() as given, temporary() as printed:
        folder, root = Path(top, "folder"), Path(top, "root")
        folder.mkdir()
        root.mkdir()
        Path(top).chmod(0o711)
        (folder / "program.py").write_text(program, encoding="utf-8", errors="replace")
        given.write(text.encode("utf-8", errors="replace"))
        given.seek(0)
        settings = {
            "command": [_PYTHON, "-I", "-S", str(folder / "program.py")],
            "folder": str(folder),
            "root": str(root),
            "readable": sorted({sys.base_prefix, str(Path(_PYTHON).parent.parent)}),
            "confine": confinement() if confine is None else confine,
            "limits": {
                "RLIMIT_CPU": SECONDS,
                "RLIMIT_AS": _MEMORY_MB << 20,
                "RLIMIT_NPROC": _PROCESSES,
                "RLIMIT_FSIZE": _FILE_MB << 20,
                "RLIMIT_NOFILE": 64,
                "RLIMIT_CORE": 0,
            },
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", sandbox.__file__, json.dumps(settings)],
            stdin=given,
            stdout=printed,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            run = _outcome(process, printed)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            status = process.wait()
        return run if run.status else run._replace(status=status if status >= 0 else 128 - status)


def _outcome(process: subprocess.Popen[bytes], printed: IO[bytes]) -> Run:
    """Return what a program has printed when it ends (status 0); no output if its time is up or it wrote too much.

    It is not waited for: its process group, which is killed next, could be another's by then.
    """
    deadline = time.monotonic() + SECONDS * _CLOCK_FACTOR
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return Run(128 + signal.SIGXCPU, "")
        time.sleep(0.002)
    printed.seek(0)
    output = printed.read(_OUTPUT_BYTES + 1)
    if len(output) > _OUTPUT_BYTES:
        return Run(128 + signal.SIGXFSZ, "")
    return Run(0, output.decode("utf-8", errors="replace"))
