from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.stage_log import LINES_A_MINUTE, StageLog


class Forwarded:
    """A stage's log and the lines that were forwarded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 0.0
        self.lines: list[tuple[int, str]] = []
        self.log = StageLog(lambda level, line: self.lines.append((level, line)), lambda: self.now)

    def write(self, data: bytes) -> list[str]:
        """Append to the file, forward, and return all lines so far."""
        with open(self.path, "ab") as stream:
            stream.write(data)
        self.log.forward()
        return self.texts

    @property
    def texts(self) -> list[str]:
        return [line for _, line in self.lines]


@pytest.fixture
def forwarded(tmp_path: Path) -> Iterator[Forwarded]:
    (tmp_path / "stage.log").write_bytes(b"of an earlier attempt\n")
    found = Forwarded(tmp_path / "stage.log")
    found.log.follow(found.path)
    yield found
    found.log.close()


def test_whole_lines_are_forwarded_warnings_as_such_and_what_stood_there_before_is_not(forwarded: Forwarded) -> None:
    assert forwarded.write(b"first\nsec") == ["first"]
    forwarded.write(b"ond\nUserWarning: look\n\n")
    assert forwarded.lines[1:] == [(logging.INFO, "second"), (logging.WARNING, "UserWarning: look")]


def test_a_bar_becomes_a_line_a_minute_and_its_last_state(forwarded: Forwarded) -> None:
    for percent in range(100):
        forwarded.now += 1.0
        forwarded.write(b"\rloading %d%%" % percent)
    assert len(forwarded.lines) == 1
    assert forwarded.write(b"\rloading 100%\nnext\n")[1:] == ["loading 100%", "next"]


def test_a_flood_is_cut_to_a_readable_rate_and_its_warnings_and_its_end_get_through(forwarded: Forwarded) -> None:
    forwarded.write(b"".join(b"line %d\n" % number for number in range(1000)) + b"RuntimeError: the reason\n")
    assert len(forwarded.lines) == LINES_A_MINUTE + 1
    assert forwarded.texts[-1] == "RuntimeError: the reason"
    forwarded.log.close()
    said = forwarded.texts[LINES_A_MINUTE + 1 :]
    assert said[0] == f"... {1000 - LINES_A_MINUTE - 5:,} lines left out, see {forwarded.path}"
    assert said[1:] == [f"line {number}" for number in range(995, 1000)]


def test_every_minute_has_room_again(forwarded: Forwarded) -> None:
    for minute in range(3):
        forwarded.now = 60.0 * minute
        forwarded.write(b"".join(b"line %d\n" % number for number in range(100)))
    left_out = [text for text in forwarded.texts if "left out" in text]
    assert len(left_out) == 2 and left_out[0].startswith(f"... {100 - LINES_A_MINUTE} lines")
    assert len(forwarded.lines) == 3 * LINES_A_MINUTE + 2


def test_of_more_than_anybody_could_read_only_the_end_is_read(forwarded: Forwarded) -> None:
    forwarded.write(b"y" * 30_000_000 + b"\nlast\n")
    assert forwarded.texts[0].startswith("... 29 MB of output left out") and forwarded.texts[-1] == "last"
    assert max(len(text) for text in forwarded.texts) <= 500


def test_escape_codes_and_secrets_do_not_get_through(forwarded: Forwarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Zk3vR9wLq7Yd")
    hostile = b"\x1b[2J\x1b[31mkey=Zk3v\x1b[1mR9wLq7Yd\x1b[0m\xff\n"
    assert forwarded.write(hostile) == ["key=***\N{REPLACEMENT CHARACTER}"]


def test_what_is_for_the_makers_of_libraries_is_left_out(forwarded: Forwarded) -> None:
    noise = b"a.py:1: FutureWarning: `x` is deprecated\n  warnings.warn(\n{'loss': '0.5', 'reward/mean': '1'}\n"
    assert forwarded.write(noise + b"kept\n") == ["kept"]


def test_the_end_is_forwarded_though_the_file_is_gone(forwarded: Forwarded) -> None:
    with open(forwarded.path, "ab") as stream:
        stream.write(b"last words")
    forwarded.path.unlink()
    forwarded.log.close()
    assert forwarded.texts == ["last words"]


def test_a_log_of_another_machine_is_let_be(tmp_path: Path) -> None:
    elsewhere = Forwarded(tmp_path / "no-such-folder/stage.log")
    elsewhere.log.follow(elsewhere.path)
    elsewhere.log.forward()
    elsewhere.log.close()
    assert not elsewhere.lines and not elsewhere.path.parent.exists()
