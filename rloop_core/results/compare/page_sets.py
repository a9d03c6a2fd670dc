"""What the comparison's page says about each problem set, and about single problems, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rloop_core.results.compare.arms import Arm
from rloop_core.results.compare.dynamics import Blocks, SetDynamics
from rloop_core.results.compare.trajectories import Case, Cases
from rloop_core.results.report.trajectories import Sample, samples_of

if TYPE_CHECKING:
    from rloop_core.results.compare.files import Figures

KINDS = ("always", "learnt", "regained", "lost", "never")
_SHOWN_HISTORIES = 12
_SHOWN_CHARACTERS = 300
_PROMPT_CHARACTERS = 160
_SUMMARY_CHARACTERS = 90


def set_section(one: SetDynamics, figures: Figures, arms: tuple[Arm, Arm]) -> dict[str, Any]:
    """One problem set's figures, forgetting and histories."""
    return {
        "label": one.label,
        "pictures": figures.by_set.get(one.label, []),
        "kinds": [(arm.title, [arm.kinds().get(kind, 0) for kind in KINDS]) for arm in one.arms],
        "blocks": _forgetting(one.blocks, arms) if one.blocks else None,
        "problems": one.problems,
        "histories": _histories(one, arms),
    }


def case_section(cases: Cases) -> dict[str, Any]:
    """The trajectories, with the choices of the page's filter."""
    verdicts = sorted({one.verdict for case in cases.cases for side in case.sides for one in side.shown})
    return {
        "places": cases.places,
        "fates": cases.fates,
        "verdicts": verdicts,
        "left_out": cases.left_out,
        "cases": [_case(case, cases, verdicts) for case in cases.cases],
        "found": [(place, fate, count, _shown(cases, place, fate)) for (place, fate), count in cases.found.items()],
    }


def _case(case: Case, cases: Cases, verdicts: Sequence[str]) -> dict[str, Any]:
    """Numbers in place of names: an attribute holds no hostile text."""
    return {
        "case": case,
        "place": cases.places.index(case.place),
        "fate": cases.fates.index(case.fate),
        "summary": cut(" ".join(case.prompt.split()), _SUMMARY_CHARACTERS),
        "sides": [(side, [(verdicts.index(one.verdict), one) for one in side.shown]) for side in case.sides],
    }


def _shown(cases: Cases, place: str, fate: str) -> int:
    return sum((one.place, one.fate) == (place, fate) for one in cases.cases)


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
    return {
        "titles": (theirs.title, ours.title),
        "rows": rows,
        "equal": blocks.equal,
        "steps": len(blocks.steps),
        "phase": ours.run.config.explore.steps,
    }


def _histories(one: SetDynamics, arms: tuple[Arm, Arm]) -> list[dict[str, Any]]:
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
    prompts = _prompts(one, arms[0], [a.problem_id for a, _ in shown])
    return [
        {
            "problem_id": a.problem_id,
            "prompt": cut(prompts.get(a.problem_id, ""), _PROMPT_CHARACTERS),
            "arms": [{"title": arm.title, "kind": found.kind, "told": cut(found.told, _SHOWN_CHARACTERS)}
                     for arm, found in zip(one.arms, (a, b), strict=True)],
        }
        for a, b in shown
    ]  # fmt: skip


def _prompts(one: SetDynamics, arm: Arm, wanted: Sequence[str]) -> dict[str, str]:
    """Prompts by problem, from the first checkpoint's samples."""
    nothing: dict[str, list[Sample]] = {}
    reader = partial(samples_of, one.arms[0].checkpoints[0].files, wanted, "", 1)
    found = arm.run.read(f"Prompts of {one.label}", reader, nothing) if wanted else nothing
    return {problem: samples[0].prompt for problem, samples in found.items() if samples}


def cut(text: str, characters: int) -> str:
    """The beginning of a text, with a mark where it goes on."""
    return text if len(text) <= characters else f"{text[:characters]}\N{HORIZONTAL ELLIPSIS}"
