"""The study's page, from what was found and drawn; the template escapes everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from rloop_core.results.compare.table import difference_name
from rloop_core.results.plotting import Picture
from rloop_core.results.report.page import fill_template
from rloop_core.results.study.claims import OUTCOMES
from rloop_core.results.study.config import ArmConfig
from rloop_core.results.study.effects import Effect
from rloop_core.results.study.forgetting import PATHS, Forgetting
from rloop_core.results.study.record import Policy
from rloop_core.results.study.table import Row, against_best, chosen_on
from rloop_core.results.tables import duration

if TYPE_CHECKING:
    from rloop_core.results.study.write import StudyFindings

TEMPLATE = "study.html.j2"


def render(found: StudyFindings, pictures: Mapping[str, Picture]) -> str:
    """One HTML document without any outside reference."""
    record = found.record
    study = record.study
    main, reference = record.titles[study.main], record.titles[study.reference]
    return fill_template(
        TEMPLATE,
        study=study,
        titles=record.titles,
        main=main,
        reference=reference,
        claim=difference_name(main, reference),
        steps=max((arm.total_steps for arm in record.arms.values()), default=0),
        progress=_progress(found) if record.missing() else [],
        one_seed=bool(found.claims) and max(len(one.seeds) for one in found.claims) == 1,
        notes=record.notes,
        objections=record.objections,
        cards=_cards(found),
        claims=found.claims,
        hindsight=_against_hindsight(found),
        outcomes=[(name, [one for one in found.claims if one.outcome == name]) for name in OUTCOMES],
        on_test=not record.sets or chosen_on(record)[2],
        sets=[_set(found, label) for label in record.sets],
        ablations=[_block(found, label, found.table.ablations.get(label, [])) for label in record.sets]
        if any(found.table.ablations.values()) else [],
        overfitting=found.overfitting,
        training=_training(found),
        forgetting=_forgetting(found),
        rule=found.rule,
        pictures=pictures,
        compute=[(row[0], [_number(row[0], value) for value in row[1:]]) for row in found.compute.rows],
        arms=[(name, study.arms[name], _settings(study.arms[name])) for name in record.titles],
        config=yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        store=record.store.uri,
        versions=found.versions,
    )  # fmt: skip


def _progress(found: StudyFindings) -> list[tuple[str, list[str]]]:
    """How far each run has come, a row an arm and a cell a seed."""
    cells = {(one.arm, one.seed): one for one in found.record.progress}
    said = {
        key: "finished" if one.finished else f"{one.done} of {one.stages} stages" if one.done else "not begun"
        for key, one in cells.items()
    }
    seeds = found.record.study.seeds
    return [(title, [said[arm, seed] for seed in seeds]) for arm, title in found.record.titles.items()]


def _cards(found: StudyFindings) -> list[dict[str, Any]]:
    """The main arm minus the reference: avg@n and the pass@k of the greatest k, on each set."""
    study = found.record.study
    cards: list[dict[str, Any]] = []
    for label in found.record.sets:
        row = found.table.difference(label, study.main, study.reference)
        if row is not None:
            cards += [
                {"set": label, "metric": metric, "effect": row.cells[metric], "seeds": len(row.seeds)}
                for metric in found.record.ends(label)
            ]
    return cards


def _against_hindsight(found: StudyFindings) -> list[tuple[str, str, str, Effect]]:
    """The main arm against the best checkpoint of the reference: difference, set, metric, effect."""
    rows = [row for label in found.record.sets if (row := against_best(found.record, label))]
    return [(row.name, row.set, name, row.cells[name]) for row in rows for name in found.record.ends(row.set)]


def _set(found: StudyFindings, label: str) -> dict[str, Any]:
    rows = [*found.table.policies[label], *found.table.differences[label]]
    falls = [one for one in (found.overfitting.falls if found.overfitting else ()) if one.set == label]
    return {
        **_block(found, label, rows),
        "paired": found.table.iterations[label],
        "falls": falls,
        "earlier": found.overfitting.earlier.get(label, []) if found.overfitting else [],
        "verdicts": [one for one in falls if one.metric in found.record.ends(label)],
        "steps": [(found.record.titles[arm], own) for arm, own in _steps(found, label).items() if own],
    }


def _block(found: StudyFindings, label: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "label": label,
        "problems": len(found.record.problems[label]),
        "metrics": found.record.metrics[label],
        "rows": rows,
    }


def _steps(found: StudyFindings, label: str) -> dict[str, dict[Policy, Row]]:
    return found.steps.get(label, {})


def _training(found: StudyFindings) -> list[tuple[str, Any]]:
    """What is said of training reward and accuracy, a line each."""
    if found.overfitting is None:
        return []
    lines = []
    for one in found.overfitting.training:
        lines.append((f"{one.metric}: slope over the last third, per 100 RL steps", one.slope))
        lines.append((f"{one.metric}: last {one.window} RL steps minus the {one.window} before", one.last))
        lines += [
            (f"{one.metric}: end minus where {fall.metric} on {fall.set} peaks", fall.since[one.metric])
            for fall in found.overfitting.falls
            if fall.metric in found.record.ends(fall.set)
        ]
    return lines


def _forgetting(found: StudyFindings) -> list[dict[str, Any]]:
    """A block a set and path, with a row an arm."""
    keys = list(dict.fromkeys((one.path, one.set) for one in found.forgetting))
    blocks = []
    for path, label in keys:
        rows: list[Forgetting] = [one for one in found.forgetting if (one.path, one.set) == (path, label)]
        blocks.append({"path": path, "about": PATHS[path], "set": label, "rows": rows, "steps": rows[0].steps})
    return blocks


def _settings(arm: ArmConfig) -> list[str]:
    return [*(["vanilla RL: one phase, no fine-tuning"] if arm.vanilla else []), *arm.set]


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return duration(value) if name.startswith("seconds") else f"{value:,.0f}"
