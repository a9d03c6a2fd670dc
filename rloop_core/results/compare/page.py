"""The comparison's page, from what was read and drawn; the template escapes everything."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core.results.compare.arms import Arm
from rloop_core.results.compare.comparability import config_differences
from rloop_core.results.compare.page_sets import KINDS, case_section, set_section
from rloop_core.results.compare.paper import paper_figures
from rloop_core.results.compare.table import AVERAGE, Block, TableOne, difference_name
from rloop_core.results.report.lineage import Lineage, lineage_section
from rloop_core.results.report.page import fill_template, image_uri
from rloop_core.results.tables import duration

if TYPE_CHECKING:
    from rloop_core.results.compare.comparison import Comparison
    from rloop_core.results.compare.files import Figures

TEMPLATE = "compare.html.j2"
PICTURE_BYTES = 3_000_000
"""Most bytes of the page that pictures take; with the trajectories it stays below 5 MB."""
SCRIPT = Path(__file__).with_name("filter.js")


def render(comparison: Comparison, figures: Figures) -> str:
    """One HTML document without any outside reference."""
    from markupsafe import Markup

    ours, theirs = comparison.arms
    script = SCRIPT.read_text(encoding="utf-8")
    return fill_template(
        TEMPLATE,
        comparison=comparison,
        script=Markup(script),  # noqa: S704 (the project's own text)
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        arms=[_arm(arm, lineage) for arm, lineage in zip(comparison.arms, comparison.lineages, strict=True)],
        ablation=ours.run.config.arm == theirs.run.config.arm,
        notes=comparison.notes,
        rule=comparison.rule,
        claim=difference_name(ours.title, theirs.title),
        headlines=_headlines(comparison.table, difference_name(ours.title, theirs.title)),
        blocks=[_block(block) for block in comparison.table.blocks],
        average=AVERAGE,
        selected=[(arm.title, one) for arm, one in zip(comparison.arms, comparison.selected, strict=True) if one],
        pictures=figures.overall,
        paper=paper_figures(figures.overall, figures.by_set),
        outside=_outside(figures),
        sets=[set_section(one, figures, comparison.arms) for one in comparison.dynamics],
        kinds=KINDS,
        cases=case_section(comparison.cases),
        experts=figures.experts,
        compute=[(row[0], [_number(row[0], value) for value in row[1:]]) for row in comparison.compute.table.rows],
        equality=comparison.compute.equality,
        differences=config_differences(ours.run, theirs.run),
    )  # fmt: skip


def _outside(figures: Figures) -> set[str]:
    """Names of the pictures for which the page has no room: those of the last sets, where there are many."""
    found, room = set(), PICTURE_BYTES
    for one in (*figures.overall, *figures.experts, *(one for own in figures.by_set.values() for one in own)):
        room -= len(image_uri(one))
        if room < 0:
            found.add(one.name)
    return found


def _arm(arm: Arm, lineage: Lineage) -> dict[str, Any]:
    run = arm.run
    return {
        "title": arm.title,
        "name": run.name,
        "kind": run.config.arm,
        "steps": arm.total_steps,
        "iterations": run.config.iterations,
        "seed": run.config.seed,
        "policy": run.config.policy.path,
        "problems": run.config.problems.label,
        "config": json.dumps(run.config.model_dump(mode="json"), indent=2, ensure_ascii=False),
        "lineage": lineage_section(run, lineage),
        "versions": {name: ", ".join(sorted(numbers)) for name, numbers in sorted(run.versions.items())},
        "drawn_by": run.drawn_by,
    }


def _headlines(table: TableOne, claim: str) -> list[dict[str, Any]]:
    """The paired difference in avg@n and in pass@k of the greatest k: of the mean over sets, or of each set."""
    blocks = [block for block in table.blocks if block.label == AVERAGE] or table.blocks[:2]
    cards = []
    for block in blocks:
        row = next((row for row in block.rows if row.name == claim), None)
        if row is not None:
            passes = [name for name in row.cells if name.startswith("pass@")]
            ends = dict.fromkeys([*list(row.cells)[:1], *passes[-1:]])
            cards += [{"set": block.label, "metric": metric, **row.cells[metric]} for metric in ends]
    return cards


def _block(block: Block) -> dict[str, Any]:
    metrics = list(dict.fromkeys(metric for row in block.rows for metric in row.cells))
    return {"label": block.label, "problems": block.problems, "metrics": metrics, "rows": block.rows}


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return duration(value) if name.startswith("seconds") else f"{value:,.0f}"
