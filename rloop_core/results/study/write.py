"""Write a study: one HTML file, all numbers as JSON and CSV, every figure as PNG."""

from __future__ import annotations

import json
from pathlib import Path

from rloop_core.results.page import writable_folder, write_files
from rloop_core.results.study.config import StudyConfig
from rloop_core.results.study.figures import draw
from rloop_core.results.study.findings import StudyFindings, findings
from rloop_core.results.study.page import render
from rloop_core.results.study.table import rows_table, values_table
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
        found = findings(study, store, out / HTML_FILE, cache, solved)
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
