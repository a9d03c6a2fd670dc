"""Everything that a study says, figures apart."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rloop_core import __version__
from rloop_core.evaluation.bootstrap import CONFIDENCE, RESAMPLES
from rloop_core.results.analysis.transitions import SolvedRule
from rloop_core.results.study.claims import Claim, claims
from rloop_core.results.study.compute import compute_table, quantities
from rloop_core.results.study.config import StudyConfig
from rloop_core.results.study.forgetting import Forgetting, forgetting
from rloop_core.results.study.overfitting import Overfitting, overfitting
from rloop_core.results.study.record import StudyRecord, read_study
from rloop_core.results.study.table import Steps, StudyTable, by_step, study_table
from rloop_core.results.tables import Table
from rloop_core.store import Store

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class StudyFindings:
    """A study's runs and what they show.

    Attributes:
        study: The study.
        store: Store of its runs.
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

    study: StudyConfig
    store: Store
    record: StudyRecord
    rule: str
    table: StudyTable
    steps: Steps
    overfitting: Overfitting | None
    forgetting: list[Forgetting]
    claims: list[Claim]
    compute: Table
    page: Path

    @property
    def versions(self) -> dict[str, str]:
        """Packages that computed the runs; several versions of one are joined."""
        versions: dict[str, set[str]] = {}
        for arm in self.record.arms.values():
            for manifest in arm.run.manifests.values():
                for name, number in manifest.versions.items():
                    versions.setdefault(name, set()).add(number)
        return {name: ", ".join(sorted(numbers)) for name, numbers in sorted(versions.items())}

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain JSON values."""
        record = self.record
        return {
            "schema_version": SCHEMA_VERSION,
            "study": self.study.model_dump(mode="json"),
            "store": self.store.uri,
            "intervals": {"confidence": CONFIDENCE, "resamples": RESAMPLES, "seed": 0, "over": "problems and seeds"},
            "solved": self.rule,
            "runs": [{**asdict(run), "finished": run.finished} for run in record.progress],
            "notes": record.notes,
            "not_comparable": record.not_comparable,
            "sets": {
                label: {"problems": record.problems[label], "metrics": record.metrics[label]} for label in record.sets
            },
            "claims": [asdict(claim) for claim in self.claims],
            "table": [asdict(row) for row in self.table.rows()],
            "overfitting": self.overfitting.to_dict() if self.overfitting else None,
            "forgetting": [asdict(one) for one in self.forgetting],
            "by_step": [
                {"step": policy.step, "kind": policy.kind, **asdict(row)}
                for arms in self.steps.values()
                for rows in arms.values()
                for policy, row in rows.items()
            ],
            "compute": self.compute.to_dicts(),
            "versions": self.versions,
            "report": str(self.page),
            "rloop": __version__,
        }


def study_findings(study: StudyConfig, store: Store, page: Path, cache: Path, solved: str = "any") -> StudyFindings:
    """Read a study's runs as far as they have come, and analyse them; see `write_study`.

    Raises:
        ConfigError: There is no such rule.
        StoreError: The store cannot be read.
    """
    rule = SolvedRule(solved)
    record = read_study(study, store, cache)
    table, seen, forgotten = study_table(record), overfitting(record), forgetting(record, rule, record.sets)
    return StudyFindings(
        study=study,
        store=store,
        record=record,
        rule=rule.name,
        table=table,
        steps=by_step(record),
        overfitting=seen,
        forgetting=forgotten,
        claims=claims(record, table, seen, forgotten),
        compute=_compute_table(record),
        page=page,
    )


def _compute_table(record: StudyRecord) -> Table:
    """Return what each arm cost; means over the arm's finished seeds."""
    finished = {(run.arm, run.seed) for run in record.progress if run.finished}
    costs = {
        arm: [quantities(run) for key, run in record.arms.items() if key[0] == arm and key in finished]
        for arm in record.titles
    }
    table = compute_table(costs)
    return replace(table, rows=(("finished seeds", *map(len, costs.values())), *table.rows))
