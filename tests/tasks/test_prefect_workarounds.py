"""Workarounds for Prefect: a run goes on printing after the reader of its output is gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.process

_RUN = """
import sys
from rich.console import Console
from tasks.prefect_workarounds import relay_output
print("first", flush=True)
relay_output()
sys.stdin.readline()
for number in range(20_000):
    Console(file=sys.stderr).print("a line") if number % 5000 == 0 else print("a line", number)
print("last")
"""


def _start() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _RUN]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def test_a_run_whose_reader_is_gone_ends_as_if_it_were_there() -> None:
    process = _start()
    assert process.stdin and process.stdout and process.stderr
    assert process.stdout.readline() == "first\n"
    process.stdout.close()
    process.stderr.close()
    process.stdin.write("\n")
    process.stdin.close()
    assert process.wait(60) == 0


def test_a_reader_gets_every_line() -> None:
    process = _start()
    out, err = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert out.splitlines()[0] == "first" and out.splitlines()[-1] == "last"
    assert len(out.splitlines()) == 20_000 - 4 + 2
    assert err.splitlines() == ["a line"] * 4
