"""Write a study: one HTML file, all numbers as JSON and CSV, every figure as PNG."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rloop_core.results.page import fill_template, writable_folder, write_files
from rloop_core.results.plotting import Picture
from rloop_core.results.study.claims import OUTCOMES
from rloop_core.results.study.compute import compute_cells
from rloop_core.results.study.config import StudyConfig
from rloop_core.results.study.figures import draw
from rloop_core.results.study.findings import StudyFindings, study_findings
from rloop_core.results.study.forgetting import PATHS
from rloop_core.results.study.table import against_best, chosen_on, headline_cards, rows_table, values_table
from rloop_core.results.tables import difference_name
from rloop_core.store import Store

HTML_FILE, JSON_FILE = "study.html", "study.json"


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
    with writable_folder(out):
        found = study_findings(study, store, out / HTML_FILE, cache, solved)
        pictures = draw(found)
        by_policy = [row for arms in found.steps.values() for rows in arms.values() for row in rows.values()]
        tables = (
            values_table(found.record),
            rows_table("table", found.table.rows()),
            rows_table("by-step", by_policy),
            found.compute,
        )
        text = json.dumps(found.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        write_files(out, pictures.values(), tables, {JSON_FILE: f"{text}\n", HTML_FILE: render(found, pictures)})
    return found


def render(findings: StudyFindings, pictures: Mapping[str, Picture]) -> str:
    """Return one HTML document without any outside reference; the template escapes everything."""
    record, study = findings.record, findings.study
    main, reference = (record.titles[arm] for arm in record.pair)
    headlines = [findings.table.difference(label, *record.pair) for label in record.sets]
    best = [row for label in record.sets if (row := against_best(record, label))]
    return fill_template(
        "study.html.j2",
        findings=findings,
        record=record,
        study=study,
        titles=record.titles,
        main=main,
        reference=reference,
        claim=difference_name(main, reference),
        steps=max((arm.total_steps for arm in record.arms.values()), default=0),
        progress=_progress(findings) if record.missing() else [],
        seed_names=["arm", *(f"seed {seed}" for seed in study.seeds)],
        one_seed=bool(findings.claims) and max(len(claim.seeds) for claim in findings.claims) == 1,
        cards=headline_cards(row for row in headlines if row),
        hindsight=[(row.name, row.set, name, row.cells[name]) for row in best for name in record.ends(row.set)],
        outcomes=[(name, [claim for claim in findings.claims if claim.outcome == name]) for name in OUTCOMES],
        on_test=not record.sets or chosen_on(record)[2],
        sets=[_set(findings, label) for label in record.sets],
        training=_training(findings),
        forgetting=_forgetting(findings),
        pictures=pictures,
        compute=compute_cells(findings.compute),
        config=yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
    )


def _progress(findings: StudyFindings) -> list[list[str]]:
    """Return how far each run has come, a row an arm and a cell a seed."""
    cells = {(run.arm, run.seed): run.state for run in findings.record.progress}
    seeds = findings.record.seeds
    return [[title, *(cells[arm, seed] for seed in seeds)] for arm, title in findings.record.titles.items()]


def _set(findings: StudyFindings, label: str) -> dict[str, Any]:
    """Return what the page says about one problem set."""
    record, table, seen = findings.record, findings.table, findings.overfitting
    falls = [fall for fall in seen.falls if fall.set == label] if seen else []
    return {
        "label": label,
        "problems": record.problems[label],
        "metrics": record.metrics[label],
        "rows": [*table.policies[label], *table.differences[label]],
        "ablations": table.ablations[label],
        "iterations": table.iterations[label],
        "falls": falls,
        "earlier": seen.earlier.get(label, []) if seen else [],
        "verdicts": [fall for fall in falls if fall.metric in record.ends(label)],
        "steps": [
            (record.titles[arm], [replace(row, name=policy.label) for policy, row in rows.items()])
            for arm, rows in findings.steps[label].items()
            if rows
        ],
    }


def _training(findings: StudyFindings) -> list[tuple[str, Any]]:
    """Return what is said of training reward and accuracy, a line each."""
    seen, lines = findings.overfitting, []
    for one in seen.training if seen else ():
        lines.append((f"{one.metric}: slope over the last third, per 100 RL steps", one.slope))
        lines.append((f"{one.metric}: last {one.window} RL steps minus the {one.window} before", one.last))
        lines += [
            (f"{one.metric}: end minus where {fall.metric} on {fall.set} peaks", fall.since[one.metric])
            for fall in (seen.falls if seen else ())
            if fall.metric in findings.record.ends(fall.set)
        ]
    return lines


def _forgetting(findings: StudyFindings) -> list[dict[str, Any]]:
    """Return a block a set and path, with a row an arm."""
    blocks: dict[tuple[str, str], dict[str, Any]] = {}
    for row in findings.forgetting:
        empty = {"path": row.path, "about": PATHS[row.path], "set": row.set, "rows": [], "steps": row.steps}
        blocks.setdefault((row.path, row.set), empty)["rows"].append(row)
    return list(blocks.values())
