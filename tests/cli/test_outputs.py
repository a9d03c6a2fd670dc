"""No command writes over a file that it reads, or two outputs to one file, however the paths are spelled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rloop_core.cli.entry import COMMANDS, group
from rloop_core.config.loading import read_mapping
from rloop_core.errors import ConfigError
from tests.conftest import ROOT

ROWS = [{"problem": f"{n} + {n} =", "completion": f"\\boxed{{{n}}}", "answer": str(2 * n)} for n in range(1, 600)]
INPUTS = {"problems": ("", "--against"), "verify": ("--input",)}
OUTPUTS = {"problems": ("--out",), "verify": ("--output",)}
SPELLINGS: dict[str, Callable[[Path], Path]] = {
    "as it is": lambda path: path,
    "relative": lambda path: Path(os.path.relpath(path)),
    "through a folder": lambda path: path.parent / "folder" / ".." / path.name,
    "through a link to its folder": lambda path: path.parent / "folder" / "up" / path.name,
    "by a symbolic link": lambda path: path.parent / "folder" / f"soft-{path.name}",
    "by a hard link": lambda path: path.parent / "folder" / f"hard-{path.name}",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two input files and with links to all files."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "up").symlink_to(tmp_path)
    for name, rows in (("one", ROWS), ("two", ROWS[:2])):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "folder" / f"hard-{name}").hardlink_to(tmp_path / name)
    for name in ("one", "two", "new", "new.tmp"):
        (tmp_path / "folder" / f"soft-{name}").symlink_to(tmp_path / name)
    return tmp_path


def rloop(command: str, files: dict[str, Path]) -> Result:
    words = [word for option, path in files.items() for word in (option, str(path)) if word]
    return CliRunner().invoke(group, [command, *words])


def refused(folder: Path, command: str, files: dict[str, Path], option: str, other: str) -> None:
    held = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    error = rloop(command, files).exception
    assert isinstance(error, ConfigError), files
    assert (error.field, error.what.endswith(f"is the file that {other}")) == (option, True)
    assert error.fix
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == held


def test_every_option_that_takes_a_file_is_tried_here() -> None:
    listed = {command: {*INPUTS[command], *OUTPUTS[command]} for command in OUTPUTS}
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        taking = [each for each in command.params if isinstance(each.type, click.Path) and not each.type.dir_okay]
        assert {option for each in taking for option in each.opts} <= listed.get(name, set()), name


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("command", OUTPUTS)
def test_no_input_is_written_over(folder: Path, command: str, spelling: str) -> None:
    given = dict(zip(INPUTS[command], (folder / "one", folder / "two"), strict=False))
    for output in OUTPUTS[command]:
        for read, path in given.items():
            other = f"{read or 'NAME_OR_FILE'} reads"
            refused(folder, command, {**given, output: SPELLINGS[spelling](path)}, output, other)


@pytest.mark.parametrize("read", ["", "--against"])
def test_the_pairs_are_not_written_over_an_input(folder: Path, read: str) -> None:
    pairs = (folder / "two").rename(folder / "new.pairs.jsonl")
    given = {"": folder / "one", "--against": folder / "one", read: pairs, "--out": folder / "new.jsonl"}
    refused(folder, "problems", given, "--out, for the pairs,", f"{read or 'NAME_OR_FILE'} reads")


def test_other_files_are_written(folder: Path) -> None:
    given = {"": folder / "one", "--against": folder / "two"}
    for _ in range(2):  # an older output is replaced
        assert rloop("problems", {**given, "--out": folder / "new"}).exit_code == 0
        assert len((folder / "new").read_text().splitlines()) == len(ROWS) - 2
        assert len((folder / "new.pairs.jsonl").read_text().splitlines()) == 2
    for device in ("/dev/null", "/dev/stdout"):
        assert rloop("verify", {"--input": folder / "one", "--output": Path(device)}).exit_code == 0


def test_a_pipe_or_link_is_written_to_and_stays(folder: Path) -> None:
    """A file is replaced by its new version; a device, or the link /dev/stdout, must not be."""
    link, pipe = folder / "link", folder / "pipe"
    (folder / "old").write_text("old")
    link.symlink_to("old")
    assert rloop("problems", {"": folder / "two", "--out": link}).exit_code == 0
    assert link.is_symlink() and len((folder / "old").read_text().splitlines()) == 2
    os.mkfifo(pipe)
    for out in (link, pipe):
        error = rloop("problems", {"": folder / "one", "--against": folder / "two", "--out": out}).exception
        assert isinstance(error, ConfigError) and "the pairs are written beside it" in str(error)
    held = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert rloop("problems", {"": folder / "two", "--out": pipe}).exit_code == 0
        assert pipe.is_fifo()
        assert len(os.read(held, 4096).splitlines()) == 2
    finally:
        os.close(held)


def test_a_study_is_not_written_over_by_its_numbers(tmp_path: Path) -> None:
    text = json.dumps(read_mapping(ROOT / "deployments/studies/sums.yaml"))
    (tmp_path / "study.json").write_text(text)
    words = ["--config", str(tmp_path / "study.json"), "--store", str(tmp_path / "store"), "--report-only"]
    error = CliRunner().invoke(group, ["study", *words, "--out", str(tmp_path)]).exception
    assert (tmp_path / "study.json").read_text() == text
    assert isinstance(error, ConfigError)
    assert (error.field, error.what) == ("--out", f"{tmp_path}/study.json is the file that --config reads")


@pytest.mark.process
@pytest.mark.parametrize("how", ["< {} --output {}", "--input {} >> {}", "< {} >> {}"])
def test_redirection_does_not_hide_that_it_is_one_file(folder: Path, how: str) -> None:
    held = (folder / "one").read_bytes()
    words = how.format(folder / "one", folder / "folder" / "soft-one")
    done = subprocess.run(["bash", "-c", f"exec {sys.executable} -m rloop_core verify {words}"],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 2
    assert "--output: " in done.stderr
    assert (folder / "one").read_bytes() == held
