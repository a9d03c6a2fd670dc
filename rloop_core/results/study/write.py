"""Write what a study came to: one HTML file, all numbers as JSON and CSV, every figure as PNG."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rloop_core import __version__
from rloop_core.errors import StoreError
from rloop_core.evaluation.bootstrap import CONFIDENCE, RESAMPLES
from rloop_core.results.analysis.transitions import SolvedRule
from rloop_core.results.compare.compute import quantities
from rloop_core.results.plotting import Picture
from rloop_core.results.study import figures, forest
from rloop_core.results.study.claims import Claim, claims
from rloop_core.results.study.config import StudyConfig
from rloop_core.results.study.forgetting import Forgetting, forgetting
from rloop_core.results.study.overfitting import Overfitting, overfitting
from rloop_core.results.study.record import Policy, StudyRecord, read_study
from rloop_core.results.study.table import Row, StudyTable, by_step, rows_table, study_table, values_table
from rloop_core.results.tables import Table
from rloop_core.store import Store

HTML_FILE, JSON_FILE = "study.html", "study.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class StudyFindings:
    """Everything that a study says.

    Attributes:
        record: Its runs.
        rule: What counts as solved, for forgetting.
        table: The end of training, and the paired differences.
        steps: Every policy on the way, by set and arm.
        overfitting: What the reference arm shows; None where no seed of it has come to its end.
        forgetting: Every arm's, beside chance.
        claims: The paper's claims, what disagrees first.
        compute: What each arm cost, a mean over its finished seeds.
        page: The HTML file.
    """

    record: StudyRecord
    rule: str
    table: StudyTable
    steps: dict[str, dict[str, dict[Policy, Row]]]
    overfitting: Overfitting | None
    forgetting: list[Forgetting]
    claims: list[Claim]
    compute: Table
    page: Path

    @property
    def versions(self) -> dict[str, str]:
        """Packages that computed the runs; several versions of one are joined."""
        found: dict[str, set[str]] = {}
        for arm in self.record.arms.values():
            for manifest in arm.run.manifests.values():
                for name, number in manifest.versions.items():
                    found.setdefault(name, set()).add(number)
        return {name: ", ".join(sorted(numbers)) for name, numbers in sorted(found.items())}

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain JSON values."""
        record = self.record
        steps = [
            {"step": policy.step, "kind": policy.kind, **row.to_dict()}
            for own in self.steps.values() for rows in own.values() for policy, row in rows.items()
        ]  # fmt: skip
        return {
            "schema_version": SCHEMA_VERSION,
            "study": record.study.model_dump(mode="json"),
            "store": record.store.uri,
            "intervals": {"confidence": CONFIDENCE, "resamples": RESAMPLES, "seed": 0, "over": "problems and seeds"},
            "solved": self.rule,
            "runs": [{**one.__dict__, "finished": one.finished} for one in record.progress],
            "notes": record.notes,
            "objections": record.objections,
            "sets": {
                label: {"problems": len(record.problems[label]), "metrics": record.metrics[label]}
                for label in record.sets
            },
            "claims": [one.to_dict() for one in self.claims],
            "table": [row.to_dict() for row in self.table.rows()],
            "overfitting": self.overfitting.to_dict() if self.overfitting else None,
            "forgetting": [one.to_dict() for one in self.forgetting],
            "by_step": steps,
            "compute": [dict(zip(self.compute.columns, row, strict=True)) for row in self.compute.rows],
            "versions": self.versions,
            "report": str(self.page),
            "rloop": __version__,
        }


def write_study(study: StudyConfig, store: Store, out: Path, cache: Path, *, solved: str = "any") -> StudyFindings:
    """Read a study's runs, as far as they have come, and write its page, JSON, CSV and PNG.

    Args:
        study: The study.
        store: The object store with its runs.
        out: Folder to write to.
        cache: Folder for copies of files of remote stores.
        solved: When a problem counts as solved, for forgetting: `any`, `majority` or `at-least-M`.

    Raises:
        ConfigError: There is no such rule.
        StoreError: The store cannot be read, or the folder cannot be written.
    """
    from rloop_core.results.study.page import render

    try:
        out.mkdir(parents=True, exist_ok=True)  # before the work, so that a bad folder is known at once
        found = findings(study, store, out / HTML_FILE, cache, SolvedRule(solved))
        pictures = draw(found)
        for picture in pictures.values():
            picture.write(out, "")
        by_policy = [row for own in found.steps.values() for rows in own.values() for row in rows.values()]
        tables = (values_table(found.record), rows_table("table", found.table.rows()), rows_table("by-step", by_policy),
                  found.compute)  # fmt: skip
        for table in tables:
            (out / f"{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
        text = json.dumps(found.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        (out / JSON_FILE).write_text(f"{text}\n", encoding="utf-8")
        found.page.write_text(render(found, pictures), encoding="utf-8")
    except OSError as error:
        fix = "name a writable folder with --out"
        raise StoreError(f"cannot be written: {error.strerror or error}", field=str(out), fix=fix) from error
    return found


def findings(study: StudyConfig, store: Store, page: Path, cache: Path, rule: SolvedRule) -> StudyFindings:
    """Everything that the page says, figures apart.

    Raises:
        StoreError: The store cannot be read.
    """
    record = read_study(study, store, cache)
    table, seen, forgotten = study_table(record), overfitting(record), forgetting(record, rule)
    return StudyFindings(
        record=record,
        rule=rule.name,
        table=table,
        steps=by_step(record),
        overfitting=seen,
        forgetting=forgotten,
        claims=claims(record, table, seen, forgotten),
        compute=compute_table(record),
        page=page,
    )


def draw(found: StudyFindings) -> dict[str, Picture]:
    """Every figure that there are numbers for, by name."""
    record, table = found.record, found.table
    against = f"Against {record.titles[record.study.reference]}"
    ablations = f"Ablations against {record.titles[record.study.main]}"
    drawn = (
        figures.curves(record, found.steps),
        figures.training(record),
        forest.differences(record, table.differences, "differences", against),
        forest.differences(record, table.ablations, "ablations", ablations),
        forest.forgotten(record, found.forgetting),
    )
    return {one.name: one for one in drawn if one}


def compute_table(record: StudyRecord) -> Table:
    """One row a quantity, one column an arm: means over the arm's finished seeds; None where there is none."""
    finished = {(one.arm, one.seed) for one in record.progress if one.finished}
    costs: dict[str, list[dict[str, float]]] = {
        arm: [quantities(one) for (name, seed), one in record.arms.items() if name == arm and (name, seed) in finished]
        for arm in record.titles
    }
    names = list(dict.fromkeys(name for own in costs.values() for one in own for name in one))
    rows: list[tuple[Any, ...]] = [("finished seeds", *(len(own) for own in costs.values()))]
    rows += [
        (name, *(float(np.mean([one.get(name, 0.0) for one in own])) if own else None for own in costs.values()))
        for name in names
    ]
    return Table("compute", ("quantity", *costs), tuple(rows))
