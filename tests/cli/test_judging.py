from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from rloop_core.cli.entry import group
from rloop_core.errors import ProblemsError
from rloop_core.verifier import Policies


def lines(*rows) -> str:
    return "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)


@pytest.mark.process
def test_verify_ends_quietly_when_its_reader_goes_away():
    row = json.dumps({"id": 1, "completion": "\\boxed{7}", "answer": "7"})
    script = f"yes '{row}' | head -20000 | {sys.executable} -m rloop_core verify | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["correct"] and done.stderr == ""


def verify(*options: str, **how) -> subprocess.Popen:
    command = [sys.executable, "-m", "rloop_core", "verify", *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


@pytest.mark.process
def test_verify_answers_each_line_while_the_caller_waits():
    process = verify()
    for i in range(3):
        process.stdin.write(json.dumps({"id": i, "completion": "\\boxed{7}", "answer": "7"}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == i
    assert process.communicate(timeout=60) == (b"", b"") and process.returncode == 0


@pytest.mark.process
def test_verify_is_quiet_about_ctrl_c_and_keeps_what_it_wrote():
    process = verify()
    process.stdin.write(b'{"id": 1, "completion": "\\\\boxed{7}", "answer": "7"}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["correct"]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"rloop: interrupted; lines judged: 1\n")


@pytest.mark.process
def test_verify_nothing_and_odd_characters():
    assert verify().communicate(b"", timeout=60) == (b"", b"")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    line = b'{"id": "\\ud800\xc3\xa9", "completion": "\\\\boxed{\xc2\xb7}", "answer": "7"}\n'
    out, errors = verify(env=ascii_only).communicate(line, timeout=60)
    assert errors == b"" and json.loads(out)["id"] == "\ud800\xe9" and json.loads(out)["extracted"] == "\xb7"


def test_verify_reads_and_writes_files(tmp_path):
    (tmp_path / "in").write_text(lines({"id": 1, "completion": "\\boxed{7}", "answer": "7"}))
    names = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(group, ["verify", *names])
    assert (result.exit_code, result.output) == (0, "")
    assert json.loads((tmp_path / "out").read_text())["correct"]


def test_policies_reach_the_verdicts_of_verify_and_score(tmp_path):
    row = {"id": 1, "problem_id": "p", "completion": "\\boxed{6} \\boxed{7} ok", "answer": "7"}
    for setting, correct in (("boxes=last", True), ("boxes=single", False), ("text_after=refuse", False)):
        judged = CliRunner().invoke(group, ["verify", "--policy", setting], input=lines(row))
        assert json.loads(judged.output)["correct"] is correct
        (tmp_path / "c.jsonl").write_text(lines(row))
        scored = CliRunner().invoke(
            group, ["score", "--completions", str(tmp_path / "c.jsonl"), "--policy", setting, "--json"]
        )
        assert json.loads(scored.output)["avg@1"]["value"] == float(correct)
    near = {"id": 1, "completion": "\\boxed{0.333}", "answer": "1/3"}
    for tolerance, correct in (("0", False), ("0.01", True)):
        judged = CliRunner().invoke(group, ["verify", "--policy", f"tolerance={tolerance}"], input=lines(near))
        assert json.loads(judged.output)["correct"] is correct


@pytest.mark.parametrize("command", ["verify", "score", "evaluate"])
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("boxes=first", "boxes is last or single, not 'first'"),
        ("tolerance=2", "tolerance is a number of at least 0 and below 1, not '2'"),
        ("box=last", "with one of the names boxes, text_after, units"),
        ("boxes", "'boxes' is not NAME=VALUE"),
    ],
)
def test_an_unknown_policy_is_named_with_its_values(command, setting, says):
    result = CliRunner().invoke(group, [command, "--policy", setting])
    assert result.exit_code == 2 and says in " ".join(result.output.replace("\n", " ").split())


def test_help_explains_every_policy():
    for command in ("verify", "score", "evaluate"):
        text = " ".join(CliRunner().invoke(group, [command, "--help"]).output.split())
        for name, field in Policies.model_fields.items():
            assert f"{name}=" in text and " ".join(field.description.replace("`", "").split()[-3:]) in text


def completions(tmp_path, *extra) -> str:
    # p0: 2 of 4 correct; p1: 0 of 4.
    rows = [{"problem_id": "p0", "completion": f"\\boxed{{{5 if s < 2 else 6}}}", "answer": "5"} for s in range(4)]
    rows += [{"problem_id": "p1", "completion": "\\boxed{1}", "answer": "2", "finished": s > 0} for s in range(4)]
    path = tmp_path / "c.jsonl"
    path.write_text(lines(*rows, *extra))
    return str(path)


def test_score_by_hand(tmp_path):
    result = CliRunner().invoke(group, ["score", "--completions", completions(tmp_path), "--k", "1,2,4", "--json"])
    scored = json.loads(result.output)
    assert scored["avg@4"]["value"] == scored["pass@1"]["value"] == 0.25
    assert scored["pass@2"]["value"] == pytest.approx((1 - (2 / 4) * (1 / 3)) / 2)
    assert scored["pass@4"]["value"] == 0.5
    # p0: 2 right against 2 times 6, a tie; p1: only wrong answers, one of them cut off.
    assert scored["majority@4"]["value"] == 0.25 and 0.2 < scored["majority@2"]["value"] < 0.3
    assert (scored["problems"], scored["samples"], scored["truncated"]) == (2, 8, 1 / 8)
    assert scored["verdicts"] == {"correct": 2, "wrong": 5, "truncated": 1}


def test_score_shows_a_table_and_takes_stdin(tmp_path):
    with open(completions(tmp_path), encoding="utf-8") as stream:
        result = CliRunner().invoke(group, ["score", "--completions", "-"], input=stream.read())
    assert "25.00%" in result.output and "avg@4" in result.output and "pass@1" in result.output
    assert "pass@8" not in result.output


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ("{broken\n", "line 9: not valid JSON"),
        ("[1]\n", "line 9: not a JSON object"),
        ("[" * 100_000 + "\n", "line 9: not valid JSON"),
        ('{"problem_id": "p", "completion": "x", "answer": ' + '{"a":' * 50_000 + "\n", "line 9: not valid JSON"),
        ('{"problem_id": "p", "completion": "x", "answer": "1", "answer": "2"}\n', "the key 'answer' appears twice"),
        ({"problem_id": "p", "completion": "x"}, "line 9: field answer is missing"),
        ({"completion": "x", "answer": "1"}, "line 9: field problem_id is missing"),
        ({"problem_id": ["p"], "completion": "x", "answer": "1"}, "line 9: field problem_id must be text or a number"),
        ({"problem_id": "p", "completion": 5, "answer": "1"}, "line 9: field completion must be text"),
        ({"problem_id": "p", "completion": "x", "answer": "1", "finished": 1}, "finished must be true or false"),
    ],
)
def test_score_names_a_bad_line_unless_told_to_skip_it(tmp_path, bad, what):
    path = completions(tmp_path, bad)
    result = CliRunner().invoke(group, ["score", "--completions", path])
    assert isinstance(result.exception, ProblemsError) and what in str(result.exception)
    skipped = CliRunner().invoke(group, ["score", "--completions", path, "--skip-malformed", "--json"])
    assert json.loads(skipped.output)["malformed_skipped"] == 1


@pytest.mark.process
def test_score_reads_odd_but_whole_lines(tmp_path):
    """A byte order mark, halves of characters, invalid UTF-8, and numbers that Python refuses to convert."""
    rows = [
        b'\xef\xbb\xbf{"problem_id": "p\\ud800", "completion": "\\\\boxed{7}", "answer": "7"}',
        b'{"problem_id": "\xff", "completion": "\\\\boxed{\\udfff}", "answer": "7"}',
        b'{"problem_id": 3, "completion": "\\\\boxed{7}", "answer": ' + b"9" * 10_000 + b"}",
        b'{"problem_id": ' + b"9" * 10_000 + b', "completion": "\\\\boxed{7}", "answer": 7}',
        b'{"problem_id": NaN, "completion": "\\\\boxed{7}", "answer": NaN}',
    ]
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b"\n".join(rows))
    result = CliRunner().invoke(group, ["score", "--completions", str(path), "--json"])
    assert result.exit_code == 0, result.exception
    scored = json.loads(result.output)
    assert (scored["problems"], scored["avg@1"]["value"]) == (5, 0.4)


def test_score_takes_several_files_as_one(tmp_path):
    path = completions(tmp_path)
    whole = json.loads(CliRunner().invoke(group, ["score", "--completions", path, "--json"]).output)
    with open(path, encoding="utf-8") as stream:
        text = stream.read().splitlines(keepends=True)
    parts = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    parts[0].write_text("".join(text[::2]))
    parts[1].write_text("".join(text[1::2]))
    sources = [word for part in parts for word in ("--completions", str(part))]
    merged = json.loads(CliRunner().invoke(group, ["score", *sources, "--json"]).output)
    assert {**merged, "source": path} == whole
    twice = CliRunner().invoke(group, ["score", *sources, "--completions", str(parts[0])])
    assert isinstance(twice.exception, ProblemsError) and "given twice" in str(twice.exception)


def score(*paths: object) -> Result:
    sources = [word for path in paths for word in ("--completions", str(path))]
    return CliRunner().invoke(group, ["score", *sources, "--json"])


@pytest.mark.parametrize("name", ["./c.jsonl", "folder/../c.jsonl", "folder/up/c.jsonl", "soft", "hard", "/dev/fd/{}"])
def test_score_counts_no_file_twice_however_it_is_spelled(tmp_path, monkeypatch, name):
    path = completions(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "up").symlink_to(tmp_path)
    (tmp_path / "soft").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    monkeypatch.chdir(tmp_path)
    with open(path, "rb") as held:
        for files in ([path, name.format(held.fileno())], [name.format(held.fileno()), path]):
            twice = score(*files)
            assert isinstance(twice.exception, ProblemsError)
            assert "given twice" in str(twice.exception)
    assert json.loads(score(path).output)["samples"] == 8


@pytest.mark.process
def test_score_knows_the_file_behind_stdin(tmp_path):
    path = completions(tmp_path)
    words = [sys.executable, "-m", "rloop_core", "score", "--completions", "-", "--completions", path]
    with open(path, "rb") as stream:
        done = subprocess.run(words, stdin=stream, capture_output=True, text=True, check=False)
    assert done.returncode == ProblemsError.exit_code
    assert "given twice" in done.stderr


GOLDS = [  # each line: one gold in several notations
    ["5", 5, 5.0, "$5$", "005", "2 + 3 = 5\n#### 5", ["5"]],
    ["1/2", 0.5, "\\frac12", "\\frac{1}{2}", ["1/2"]],
    ["\\sqrt{8}", "2\\sqrt{2}"],
    ["(1, 2)", "\\left(1,2\\right)"],
    [["1", "7"], [7, 1]],
    ["\\text{Evelyn}", "Evelyn"],
    [7],
]


@pytest.mark.process
def test_score_takes_one_gold_in_several_notations(tmp_path):
    rows = [
        {"problem_id": number, "completion": "\\boxed{5}", "answer": gold}
        for number, golds in enumerate(GOLDS)
        for gold in golds
    ]
    for number, row in enumerate(rows):
        (tmp_path / f"{number % 2}").open("a").write(lines(row))
    scored = json.loads(score(tmp_path / "0", tmp_path / "1").output)
    assert (scored["problems"], scored["samples"], scored["verdicts"]["correct"]) == (len(GOLDS), len(rows), 7)


@pytest.mark.parametrize("one", [0, 1, 4, 5, 6])
@pytest.mark.parametrize("files", [1, 2])
def test_score_refuses_two_problems_with_one_id(tmp_path, one, files):
    """Data sets that each count their problems from 0 are not samples of the same problems."""
    for other in {0, 1, 4, 5, 6} - {one}:
        paths = [tmp_path / f"{other}-{number % files}.jsonl" for number in range(2)]
        for path, golds in zip(paths, (GOLDS[one], GOLDS[other]), strict=True):
            same = [{"problem_id": "same", "completion": "\\boxed{1}", "answer": "1"}]
            rows = [{"problem_id": 0, "completion": "\\boxed{5}", "answer": gold} for gold in golds[:1]]
            path.open("a").write(lines(*same, *rows))
        error = score(*dict.fromkeys(paths)).exception
        assert isinstance(error, ProblemsError)
        assert "problem 0" in error.what
        assert str(paths[0]) in error.what
        assert (error.field, "id of its own" in error.fix) == (f"{paths[1]} line {4 if files == 1 else 2}", True)


def test_score_refuses_missing_and_empty_files_and_bad_k(tmp_path):
    missing = CliRunner().invoke(group, ["score", "--completions", str(tmp_path / "none")])
    assert isinstance(missing.exception, ProblemsError)
    (tmp_path / "empty").write_text("\n")
    empty = CliRunner().invoke(group, ["score", "--completions", str(tmp_path / "empty")])
    assert "no completions" in str(empty.exception)
    path = completions(tmp_path)
    assert "needs 8 samples" in str(CliRunner().invoke(group, ["score", "--completions", path, "--k", "8"]).exception)
    for k in ("0", "a", ""):
        assert CliRunner().invoke(group, ["score", "--completions", path, "--k", k]).exit_code == 2
