"""What a run came to: the stages that ran, base against every theta_i, the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rloop_core.cli.formatting import duration, stage_name
from rloop_core.cli.live import Watcher
from rloop_core.config import Config
from rloop_core.imports import without_pandas


def outcome_of(config: Config, watcher: Watcher, seconds: float, cache: Path, *, report: bool = True) -> dict[str, Any]:
    """The run's result as plain values; with `report`, writes its report."""
    from rloop_core.results.report.evaluation import evaluation_rows
    from rloop_core.results.report.selection import selected
    from rloop_core.results.report.write import write_report
    from rloop_core.results.run_record import read_run
    from rloop_core.stages.order import stages_of
    from rloop_core.store import Store

    store = Store(config.placement.store)
    run = read_run(store, config.name, cache)
    as_read = replace(run, notes=list(run.notes))  # what is noted below is for the screen, and no part of the page
    ran = list(watcher.ran)
    with without_pandas():
        rows = evaluation_rows(run)
        chosen = run.read("what to select from", lambda: selected(run), None)
    page = write_report(store, [as_read], None, cache, keep_current=True) if report else None
    return {
        "run": config.name,
        "store": store.uri,
        "iterations": config.iterations,
        "nothing_to_do": not ran,
        "stages_run": [{"stage": stage, "iteration": iteration} for stage, iteration in ran],
        "stages_cached": len([key for key in stages_of(config) if (key[1], key[0]) not in watcher.ran]),
        "digests": {f"{iteration}/{stage}": manifest.digest for (iteration, stage), manifest in run.manifests.items()},
        "evaluation": [row.to_dict() for row in rows],
        "selected": chosen.to_dict() if chosen else None,
        "selected_in_words": chosen.sentence() if chosen else "",
        "report": str(page) if page else None,
        "seconds": round(seconds, 1),
        "notes": run.notes,
    }


def show_outcome(outcome: Mapping[str, Any], out: Any) -> None:
    """The tables, the report's path, and how much was done."""
    from rich.text import Text

    for label in dict.fromkeys(row["problem_set"] for row in outcome["evaluation"]):
        own = [row for row in outcome["evaluation"] if row["problem_set"] == label]
        out.print(_table(label, own))
        out.print()
    if outcome["selected"]:
        out.print(Text(f"selected: {outcome['selected_in_words']}"))
    for note in outcome["notes"]:
        out.print(Text(f"note: {note}"))
    if outcome["nothing_to_do"]:
        out.print(f"nothing to do: every stage was in the store ({outcome['stages_cached']} stages)")
    elif outcome["stages_cached"]:
        names = [stage_name(one["stage"], one["iteration"]) for one in outcome["stages_run"]]
        out.print(f"ran {len(names)} stages; {outcome['stages_cached']} were in the store")
    if outcome["report"]:
        out.print(Text(f"report: {outcome['report']}"))
    out.print(f"total: {duration(outcome['seconds'])}")


def _table(label: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    """A row a policy, and last the paired difference of the last policy to the base."""
    from rich.table import Table
    from rich.text import Text

    first = rows[0]
    caption = (
        f"{first['problems']} problems, {first['samples']:,} samples a policy; [95 % bootstrap interval over problems]"
    )
    table = Table(title=Text(label), title_justify="left", caption=Text(caption), caption_justify="left")
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    table.add_column("%")
    for name in metrics:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row["policy"], *(_value(row["metrics"].get(name)) for name in metrics))
    gain = rows[-1]["differences"]
    if gain:
        table.add_section()
        name = f"{rows[-1]['policy']} - base"
        table.add_row(name, *(_value(gain.get(name), sign="+") for name in metrics), style="bold")
    return table


def _value(one: Mapping[str, float] | None, sign: str = "") -> Any:
    from rich.text import Text

    from rloop_core.results.tables import percent_interval

    return Text("" if one is None else percent_interval(one, sign))
