"""Every grader's reply beside rloop's verdict: who is right, why they disagree, and the counts of a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.graders.corpus import AS_WRITTEN, OWN_FORM, Row, rows_in
from benchmarks.graders.environments import ROOT, Grader
from benchmarks.graders.runner import Reply, kept_replies, run_grader, run_rloop


@dataclass(frozen=True)
class Case:
    """One row in one form, a grader's reply to it, and rloop's."""

    grader: str
    form: str
    row: Row
    theirs: Reply
    ours: Reply

    @property
    def side(self) -> str:
        """agree; else whose reply is the label: ours or theirs; open if the row has no label."""
        if self.theirs.correct is not None and self.theirs.correct == bool(self.ours.correct):
            return "agree"
        if self.row.label is None:
            return "open"
        return "ours" if bool(self.ours.correct) == self.row.label else "theirs"

    @property
    def both_wrong(self) -> bool:
        return self.side == "agree" and self.row.label is not None and self.theirs.correct != self.row.label


def cases(rows: list[Row], graders: Iterable[Grader], log: Callable[[str], None]) -> list[Case]:
    """Ask every grader about every form of the rows, and rloop about the same completions."""
    compared: list[Case] = []
    verdicts: dict[str, list[Reply]] = {}
    for grader in graders:
        for form in [AS_WRITTEN, *([OWN_FORM[grader.name]] if grader.name in OWN_FORM else [])]:
            shaped = rows_in(form, rows)
            requests = [row.request for row in shaped]
            if form not in verdicts:
                log(f"rloop: {len(shaped)} rows {form}")
                verdicts[form] = list(run_rloop(requests))
            log(f"{grader.name}: {len(shaped)} rows {form}")
            path = ROOT / "replies" / f"{grader.name}-{grader.version}.jsonl"
            replies = kept_replies(path, requests, partial(run_grader, grader.python(), grader.name))
            compared += [
                Case(grader.name, form, row, theirs, ours)
                for row, theirs, ours in zip(shaped, replies, verdicts[form], strict=True)
            ]
    return compared


def counts(compared: Iterable[Case]) -> dict[tuple[str, str], Counter[str]]:
    """Count by (grader, form): rows, the sides, both_wrong, and stopped (no reply: killed or dead)."""
    table: dict[tuple[str, str], Counter[str]] = {}
    for case in compared:
        line = table.setdefault((case.grader, case.form), Counter())
        line["rows"] += 1
        line[case.side] += 1
        line["both_wrong"] += case.both_wrong
        line["stopped"] += case.theirs.correct is None
    return table


@dataclass(frozen=True)
class Cause:
    """One reason for a disagreement; causes.yaml explains the fields."""

    name: str
    why: str
    graders: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    says: bool | None = None
    form: str = ""
    read: str = ""
    elsewhere: bool | None = None

    def fits(self, case: Case) -> bool:
        read_elsewhere = _plain(case.theirs.extracted) != _plain(case.row.answer or case.ours.extracted)
        return (
            (not self.graders or case.grader in self.graders)
            and (not self.rows or case.row.what in self.rows)
            and (self.says is None or case.theirs.correct is self.says)
            and (not self.form or case.form == self.form)
            and (not self.read or re.search(self.read, case.theirs.extracted or "", re.DOTALL) is not None)
            and (self.elsewhere is None or read_elsewhere is self.elsewhere)
        )


STOPPED = Cause("stopped", "The grader's process was killed after 20 seconds, or died, on this row.")
OURS = Cause("rloop", "rloop's own error; listed above.")
UNEXPLAINED = Cause("unexplained", "No known cause.")


def find_cause(case: Case) -> Cause:
    """Return the first cause in causes.yaml that fits; a killed grader and rloop's own errors come before them."""
    if case.theirs.correct is None:
        return STOPPED
    if case.side == "theirs":
        return OURS
    return next((cause for cause in known_causes() if cause.fits(case)), UNEXPLAINED)


@lru_cache(maxsize=1)
def known_causes() -> list[Cause]:
    """Return the entries of causes.yaml, in order."""
    entries: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8"))
    for entry in entries:
        entry.update({key: tuple(entry[key]) for key in ("graders", "rows") if key in entry})
    return [Cause(**entry) for entry in entries]


def _plain(text: str | None) -> str:
    return "".join((text or "").replace("$", "").split()).rstrip(".")
