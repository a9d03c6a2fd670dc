"""`rloop evaluate` on the bundled policy, for real."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rloop_core.cli.entry import group
from rloop_core.errors import ConfigError, ProblemsError

ARGS = ["evaluate", "--model", "bundled", "--samples", "4", "--max-tokens", "48", "--batch", "8", "--json"]


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "sums.jsonl"
    rows = [
        {"problem": f"State the final answer to the following arithmetic problem: {a} + 3 =", "answer": str(a + 3)}
        for a in range(1, 5)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*args):
    return CliRunner().invoke(group, [*ARGS, *map(str, args)])


def test_samples_are_stored_and_a_second_start_resumes(problems, tmp_path):
    out = tmp_path / "out"
    first = run("--problems", problems, "--out", out, "--k", "1,4")
    assert first.exit_code == 0, first.exception
    result = json.loads(first.output)
    assert result["problems"] == 4 and result["samples"] == 16
    assert {"avg@4", "pass@1", "pass@4"} <= result.keys() and 0 <= result["avg@4"]["value"] <= 1
    shards = sorted((out / "samples").glob("*.parquet"))
    assert len(shards) == 2
    kept, redrawn = shards[0].stat().st_mtime_ns, shards[1].read_bytes()
    shards[1].unlink()
    again = json.loads(run("--problems", problems, "--out", out, "--k", "4").output)
    assert shards[0].stat().st_mtime_ns == kept and shards[1].read_bytes() == redrawn
    assert again["pass@4"] == result["pass@4"] and "pass@1" not in again
    other = run("--problems", problems, "--out", out, "--seed", "1")
    assert isinstance(other.exception, ConfigError) and "other settings" in str(other.exception)


def test_impossible_requests_are_refused_before_anything_is_generated(problems, tmp_path):
    assert "as many samples" in str(run("--problems", problems, "--k", "8").exception)
    assert isinstance(run("--problems", tmp_path / "none.jsonl").exception, ProblemsError)
    far = run("--problems", problems, "--max-tokens", "1000000", "--out", tmp_path / "far")
    assert isinstance(far.exception, ConfigError) and "context" in str(far.exception)
    unknown = CliRunner().invoke(group, ["evaluate", "--model", "./nothing", "--problems", str(problems)])
    assert isinstance(unknown.exception, ConfigError)
