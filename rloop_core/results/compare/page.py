"""Write a comparison: one HTML file, every figure as PNG and CSV, every table as CSV, the lineage as JSON."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.results.analysis.transitions import History
from rloop_core.results.compare.comparison import AVERAGE, Comparison, TableOne
from rloop_core.results.compare.figures import Figures, draw, paper_figures
from rloop_core.results.compare.trajectories import Cases
from rloop_core.results.compare.transitions import SetTransitions
from rloop_core.results.page import default_folder, fill_template, image_uri, writable_folder, write_files
from rloop_core.results.report.lineage import artifact_table, lineage_section
from rloop_core.results.report.trajectories import EXPERTS_NAME, Sample, samples_of, write_expert_keys
from rloop_core.results.study.arms import Arm
from rloop_core.results.study.comparability import config_differences
from rloop_core.results.study.compute import compute_cells
from rloop_core.results.study.forgetting import forgetting_table
from rloop_core.results.study.table import headline_cards
from rloop_core.results.tables import Row, Table, difference_name

HTML_FILE = "compare.html"
PICTURE_BYTES = 3_000_000
"""Most bytes of the page that pictures take; with the trajectories it stays below 5 MB."""
SCRIPT = Path(__file__).with_name("filter.js")
KINDS = ("always", "learnt", "regained", "lost", "never")
_SHOWN_HISTORIES = 12
_SHOWN_CHARACTERS = 300
_PROMPT_CHARACTERS = 160
_SUMMARY_CHARACTERS = 90


def write_comparison(comparison: Comparison, out: Path | None = None) -> Path:
    """Write a comparison into a folder; returns the HTML file's path.

    By default it is `<store>/<run>/compare-<vanilla>`, or `.rloop/reports/<run>+<vanilla>` if the store is remote.

    Raises:
        StoreError: The folder cannot be written.
    """
    ours, theirs = (arm.run for arm in comparison.arms)
    out = out or default_folder(ours.store, [ours.name, theirs.name], f"compare-{theirs.name}")
    with writable_folder(out):
        figures = draw(comparison)
        forgotten = [one for of_set in comparison.transitions if of_set.blocks for one in of_set.blocks.forgetting]
        tables = (
            comparison.table.to_table(),
            _histories_table(comparison),
            forgetting_table(comparison.record.titles, forgotten),
            comparison.compute,
            _lineage_table(comparison),
        )
        lineages = ",\n".join(lineage.to_json() for lineage in comparison.lineages)
        texts = {"lineage.json": f"[{lineages}]\n", HTML_FILE: render(comparison, figures)}
        refined = {arm.run.name: arm.run for arm in comparison.arms if arm.run.config.arm == "rloop"}
        write_expert_keys(refined.values(), out / EXPERTS_NAME)
        write_files(out, figures.every, [table for table in tables if table.rows], texts)
    return out / HTML_FILE


def render(comparison: Comparison, figures: Figures) -> str:
    """Return one HTML document without any outside reference; the template escapes everything."""
    from markupsafe import Markup

    ours, theirs = comparison.arms
    runs = (ours.run, theirs.run)
    script = SCRIPT.read_text(encoding="utf-8")
    claim = difference_name(ours.title, theirs.title)
    return fill_template(
        "compare.html.j2",
        comparison=comparison,
        script=Markup(script),  # noqa: S704 (the project's own text)
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        arms=comparison.arms,
        lineages=[lineage_section(run, one) for run, one in zip(runs, comparison.lineages, strict=True)],
        ablation=ours.run.config.arm == theirs.run.config.arm,
        claim=claim,
        cards=headline_cards(_headlines(comparison.table, claim)),
        selected=[(arm.title, one) for arm, one in zip(comparison.arms, comparison.selected, strict=True) if one],
        figures=figures,
        paper=paper_figures(figures),
        outside=_outside(figures),
        sets=[_set_section(of_set, figures, comparison.arms) for of_set in comparison.transitions],
        titles=[arm.title for arm in comparison.arms],
        kinds=["problems", *KINDS],
        cases=_case_section(comparison.cases),
        compute=compute_cells(comparison.compute),
        differences=config_differences(*runs),
    )


def _outside(figures: Figures) -> set[str]:
    """Return the names of pictures for which the page has no room: those of the last sets, where there are many."""
    names, room = set(), PICTURE_BYTES
    for picture in (*figures.overall, *figures.experts, *(one for of_set in figures.by_set.values() for one in of_set)):
        room -= len(image_uri(picture))
        if room < 0:
            names.add(picture.name)
    return names


def _headlines(table: TableOne, claim: str) -> list[Row]:
    """Return the paired difference of the mean over sets, or of each of the first sets."""
    if average := table.row(AVERAGE, claim):
        return [replace(average, set="mean over sets")]
    return [row for block in table.blocks[:2] if (row := table.row(block.label, claim))]


def _set_section(of_set: SetTransitions, figures: Figures, arms: tuple[Arm, Arm]) -> dict[str, Any]:
    """Return one problem set's figures, forgetting and histories."""
    return {
        "label": of_set.label,
        "pictures": figures.by_set.get(of_set.label, []),
        "kinds": [[arm.title, *(f"{arm.kinds().get(kind, 0):,}" for kind in KINDS)] for arm in of_set.arms],
        "blocks": of_set.blocks,
        "problems": of_set.problems,
        "histories": _histories(of_set, arms),
    }


def _histories(of_set: SetTransitions, arms: tuple[Arm, Arm]) -> list[dict[str, Any]]:
    """Return problems whose history differs between the arms, lost ones first."""
    if len(of_set.arms) < 2:
        return []

    def order(pair: tuple[History, History]) -> tuple[bool, bool, bool]:
        kinds = [history.kind for history in pair]
        return kinds[0] == kinds[1], "lost" not in kinds, "regained" not in kinds

    pairs = [
        pair
        for pair in zip(of_set.arms[0].histories, of_set.arms[1].histories, strict=False)
        if pair[0].problem_id == pair[1].problem_id and {"lost", "regained", "learnt"} & {one.kind for one in pair}
    ]
    shown = sorted(pairs, key=order)[:_SHOWN_HISTORIES]
    prompts = _prompts(of_set, arms[0], [first.problem_id for first, _ in shown])
    return [
        {
            "problem_id": pair[0].problem_id,
            "prompt": _cut(prompts.get(pair[0].problem_id, ""), _PROMPT_CHARACTERS),
            "arms": [{"title": arm.title, "kind": history.kind, "told": _cut(history.told, _SHOWN_CHARACTERS)}
                     for arm, history in zip(of_set.arms, pair, strict=True)],
        }
        for pair in shown
    ]  # fmt: skip


def _prompts(of_set: SetTransitions, arm: Arm, wanted: Sequence[str]) -> dict[str, str]:
    """Return prompts by problem, from the first checkpoint's samples."""
    nothing: dict[str, list[Sample]] = {}
    reader = partial(samples_of, of_set.arms[0].checkpoints[0].files, wanted, "", 1)
    by_problem = arm.run.read(f"Prompts of {of_set.label}", reader, nothing) if wanted else nothing
    return {problem: samples[0].prompt for problem, samples in by_problem.items() if samples}


def _case_section(cases: Cases) -> dict[str, Any]:
    """Return the trajectories, with the choices of the page's filter.

    Attributes of HTML elements hold numbers in place of names: no hostile text.
    """
    places, fates = (list(dict.fromkeys(getattr(case, name) for case in cases.cases)) for name in ("place", "fate"))
    shown = Counter((case.place, case.fate) for case in cases.cases)
    verdicts = sorted({sample.verdict for case in cases.cases for side in case.sides for sample in side.shown})
    return {
        "places": places,
        "fates": fates,
        "verdicts": verdicts,
        "left_out": cases.left_out,
        "cases": [
            {
                "case": case,
                "place": places.index(case.place),
                "fate": fates.index(case.fate),
                "summary": _cut(" ".join(case.prompt.split()), _SUMMARY_CHARACTERS),
                "sides": [(side, [(verdicts.index(one.verdict), one) for one in side.shown]) for side in case.sides],
            }
            for case in cases.cases
        ],
        "found": [(*kind, f"{count:,}", shown[kind]) for kind, count in cases.found.items()],
    }


def _cut(text: str, characters: int) -> str:
    """Return the beginning of a text, with a mark where it goes on."""
    return text if len(text) <= characters else f"{text[:characters]}\N{HORIZONTAL ELLIPSIS}"


def _histories_table(comparison: Comparison) -> Table:
    """One row a set, arm and problem."""
    rows = [
        (of_set.label, arm.title, one.problem_id, one.kind, one.told, " ".join(map(str, one.correct)))
        for of_set in comparison.transitions
        for arm in of_set.arms
        for one in arm.histories
    ]
    return Table("histories", ("set", "arm", "problem_id", "kind", "history", "correct"), tuple(rows))


def _lineage_table(comparison: Comparison) -> Table:
    """Every artifact of both arms, one row each."""
    tables = {arm.run.name: artifact_table(arm.run) for arm in comparison.arms}
    columns = next(iter(tables.values())).columns
    rows = [(run, *row) for run, table in tables.items() for row in table.rows]
    return Table("lineage", ("run", *columns), tuple(rows))
