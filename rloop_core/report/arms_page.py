"""The comparison's page, from what was read and drawn; the template escapes everything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rloop_core.report.arms import Arm, Checkpoint
from rloop_core.report.arms_dynamics import Blocks, SetDynamics
from rloop_core.report.arms_fairness import config_differences
from rloop_core.report.arms_table import AVERAGE, Block, TableOne, difference_name
from rloop_core.report.page import duration, fill_template
from rloop_core.report.write import lineage

if TYPE_CHECKING:
    from rloop_core.report.comparison import Comparison, Figures

TEMPLATE = "compare.html.j2"
KINDS = ("always", "learnt", "regained", "lost", "never")
_SHOWN_HISTORIES = 12
_SHOWN_CHARACTERS = 300


def render(comparison: Comparison, figures: Figures) -> str:
    """One HTML document without any outside reference."""
    ours, theirs = comparison.arms
    runs = [arm.run for arm in comparison.arms]
    return fill_template(
        TEMPLATE,
        comparison=comparison,
        arms=[_arm(arm) for arm in comparison.arms],
        notes=comparison.notes,
        rule=comparison.rule,
        claim=difference_name(ours.title, theirs.title),
        headlines=_headlines(comparison.table, difference_name(ours.title, theirs.title)),
        blocks=[_block(block) for block in comparison.table.blocks],
        average=AVERAGE,
        pictures=figures.overall,
        sets=[_set(one, figures, comparison.arms) for one in comparison.dynamics],
        kinds=KINDS,
        compute=[(row[0], [_number(row[0], value) for value in row[1:]]) for row in comparison.compute.rows],
        differences=config_differences(*runs),
    )  # fmt: skip


def _arm(arm: Arm) -> dict[str, Any]:
    run = arm.run
    table = lineage(run)
    versions: dict[str, set[str]] = {}
    for manifest in run.manifests.values():
        for name, number in manifest.versions.items():
            versions.setdefault(name, set()).add(number)
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
        "lineage": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        "versions": {name: ", ".join(sorted(numbers)) for name, numbers in sorted(versions.items())},
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


def _set(one: SetDynamics, figures: Figures, arms: tuple[Arm, Arm]) -> dict[str, Any]:
    return {
        "label": one.label,
        "pictures": figures.by_set.get(one.label, []),
        "kinds": [(arm.title, [arm.kinds().get(kind, 0) for kind in KINDS]) for arm in one.arms],
        "blocks": _forgetting(one.blocks, arms) if one.blocks else None,
        "problems": one.problems,
        "histories": _histories(one),
    }


def _forgetting(blocks: Blocks, arms: tuple[Arm, Arm]) -> dict[str, Any]:
    """Mean forgetting within and across iterations: each arm beside its null, and their difference."""
    ours, theirs = arms
    rows = []
    for place, name in enumerate(("intra", "inter")):
        if name not in blocks.intervals:
            continue
        chance = (blocks.chance.vanilla[place], blocks.chance.rloop[place])
        rows.append(
            {
                "name": "within an iteration" if name == "intra" else "across iterations",
                "cells": [(blocks.found.vanilla[place], chance[0]), (blocks.found.rloop[place], chance[1])],
                "difference": blocks.intervals[name],
                "chance": (chance[0] or 0.0) - (chance[1] or 0.0),
            }
        )
    phase = ours.run.config.explore.steps
    return {
        "titles": (theirs.title, ours.title),
        "rows": rows,
        "equal": blocks.equal,
        "steps": len(blocks.steps),
        "phase": phase,
    }


def _histories(one: SetDynamics) -> list[dict[str, Any]]:
    """Problems whose fate differs between the arms, lost ones first, in both arms' words."""
    if len(one.arms) < 2:
        return []
    both = list(zip(one.arms[0].histories, one.arms[1].histories, strict=False))
    both = [(a, b) for a, b in both if a.problem_id == b.problem_id]

    def interest(pair: Any) -> tuple[bool, bool, bool]:
        kinds = [one.kind for one in pair]
        return kinds[0] == kinds[1], "lost" not in kinds, "regained" not in kinds

    shown = [pair for pair in sorted(both, key=interest) if {"lost", "regained", "learnt"} & {one.kind for one in pair}]
    shown = shown[:_SHOWN_HISTORIES]
    prompts = _prompts(one.arms[0].checkpoints, {a.problem_id for a, _ in shown})
    return [
        {
            "problem_id": a.problem_id,
            "prompt": _cut(prompts.get(a.problem_id, "")),
            "arms": [{"title": arm.title, "kind": found.kind, "told": _cut(found.told)}
                     for arm, found in zip(one.arms, (a, b), strict=True)],
        }
        for a, b in shown
    ]  # fmt: skip


def _prompts(checkpoints: Sequence[Checkpoint], wanted: set[str]) -> dict[str, str]:
    import pyarrow.parquet as pq

    found: dict[str, str] = {}
    for path in checkpoints[0].files if wanted else ():
        table = pq.read_table(path, columns=["problem_id", "prompt"])
        rows = zip(table["problem_id"].to_pylist(), table["prompt"].to_pylist(), strict=True)
        found |= {problem: prompt for problem, prompt in rows if problem in wanted}
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}\N{HORIZONTAL ELLIPSIS}"


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return duration(value) if name.startswith("seconds") else f"{value:,.0f}"
