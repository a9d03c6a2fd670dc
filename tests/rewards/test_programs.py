"""Programs as rewards: what passes, and what hostile programs cannot do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from rloop_core.rewards.programs import confinement, parse_tests, passed, run_program

pytestmark = pytest.mark.process

ADD = "```python\nprint(sum(map(int, input().split())))\n```"
FUNCTION = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
PAIRS = '[{"input": "3 4\\n", "output": "7\\n"}, {"input": "3 5", "output": "8"}]'


@pytest.mark.parametrize(
    ("completion", "gold", "share"),
    [
        (ADD, PAIRS, 1.0),
        (ADD, '{"inputs": ["3 4", "1 1"], "outputs": ["7", "3"]}', 0.5),
        (FUNCTION, '["assert add(3, 4) == 7", "assert abs(add(1, 1) - 2) < 1e-9"]', 1.0),
        (FUNCTION, '["assert add(3, 4) == 7", "assert add(1, 1) == 3", "assert add(1) == 1", "assert not add"]', 0.25),
        ("```python\nprint(1)\n```\nBetter:\n" + ADD, PAIRS, 1.0),  # the last block counts
        ("```python\nprint(int(input().split()[0]) / 0)\n```", PAIRS, 0.0),
        ("```python\nprint('7')\nraise SystemExit(3)\n```", PAIRS, 0.0),
        ("```python\nprint('7  \\n\\n')\n```", PAIRS, 0.5),
        ("```python\nthis is no program\n```", PAIRS, 0.0),
        ("the answer is 7", PAIRS, None),
        ("print(7)", PAIRS, None),
    ],
)
def test_the_share_of_tests_that_pass(completion: str, gold: str, share: float | None) -> None:
    assert passed(completion, gold) == share


@pytest.mark.parametrize("gold", ["7", "[]", '[{"input": "3"}]', '["assert f()", 3]', "not json"])
def test_a_gold_without_tests_is_an_error(gold: str) -> None:
    with pytest.raises(ValueError):
        parse_tests(gold)


@pytest.mark.parametrize(
    "body",
    [
        "import sys\nclass Any:\n    __eq__ = lambda *_: True\n    __repr__ = lambda *_: 'Any()'\n"
        "def add(a, b): return Any()",
        "import os\nprint('passed')\nos._exit(0)",
        "import sys, json\nrest = sys.stdin.read()\ndef add(a, b): return 7 if '7' in rest else 8",
        "import gc\ndef add(a, b):\n    found = [o for o in gc.get_objects() if isinstance(o, str) and '== 7' in o]\n"
        "    return 7 if found else None",
    ],
)
def test_a_program_passes_no_assert_that_it_does_not_solve(body: str) -> None:
    assert passed(f"```python\n{body}\n```", '["assert add(3, 4) == 7", "assert add(9, 9) == 18"]') == 0.0


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "import time\ntime.sleep(1000)",
        "while True: print('x' * 1000)",
        "x = bytearray(10**10)\nprint('7')",
        "open('large', 'wb').write(b'x' * 10**9)\nprint('7')",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, signal.SIGKILL)\nprint('7')",
    ],
)
def test_a_hostile_program_costs_its_own_tests_alone(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rloop_core.rewards.programs.SECONDS", 1)
    started = time.monotonic()
    run = run_program(body)
    assert (run.status != 0 or run.output.strip() != "7") and time.monotonic() - started < 60
    assert run_program("print(7)").output == "7\n"


def test_nothing_runs_on_and_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    body = "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n        time.sleep(987)\n"
    assert run_program(body + "    os._exit(0)\nprint('done')").status == 0
    assert not list(tmp_path.iterdir())
    commands = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    assert confinement() is False or not [line for line in commands if str(tmp_path) in line]


@pytest.mark.skipif(not confinement(), reason="this system allows no namespaces")
def test_a_program_sees_no_network_no_process_and_no_file_of_ours(tmp_path: Path) -> None:
    secret = tmp_path / "gold.json"
    secret.write_text("7")
    body = (
        "import os, socket\n"
        f"print(os.path.exists({str(secret)!r}), os.path.exists({os.getcwd()!r} + '/pyproject.toml'))\n"
        "print([name for _, name in socket.if_nameindex()], os.path.exists('/proc/1'), os.listdir('.'))\n"
        "print('SECRET' in os.environ)\n"
    )
    os.environ["SECRET"] = "x"
    try:
        assert run_program(body).output.splitlines() == ["False False", "['lo'] False ['program.py']", "False"]
    finally:
        del os.environ["SECRET"]
