"""`rloop run`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from dataclasses import replace as with_fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.options import CACHE_FOLDER, COUNT, json_option, set_option
from rloop_core.cli.output import bars, console, print_json
from rloop_core.results.progress import Key, LineWatcher, Watcher, duration, position_text, stage_label

if TYPE_CHECKING:
    from rloop_core.config import Config
    from rloop_core.results.tables import MetricTable


@click.command("run")
@click.option(
    "--config", "config_file", required=True, metavar="F",
    help="Config file (YAML), such as deployments/configs/demo.yaml.",
)  # fmt: skip
@set_option
@click.option(
    "--name", metavar="RUN",
    help="Name of the run, its folder in the store. {date} in it stands for today (UTC); to continue such a run on "
    "another day, write its day out.",
)  # fmt: skip
@click.option("--store", metavar="URI", help="Object store: a path or s3://bucket/prefix.")
@click.option("--iterations", type=COUNT, metavar="N", help="Iterations; raising it later continues the run.")
@click.option(
    "--arm", type=click.Choice(["rloop", "vanilla-rl"]),
    help="`vanilla-rl` runs the config's control: as many RL steps in one phase, without fine-tuning. Its run is named "
    "NAME-vanilla-rl.",
)  # fmt: skip
@click.option(
    "--replace", is_flag=True,
    help="Compute finished stages again, and replace them, if config, policy, problems or versions have changed since; "
    "without it such a start is refused.",
)  # fmt: skip
@click.option("--quiet", is_flag=True, help="Show no progress, only the result.")
@click.option("--no-report", is_flag=True, help="Write no report; `rloop report` writes it at any time.")
@json_option
def command(
    config_file: str,
    overrides: tuple[str, ...],
    name: str | None,
    store: str | None,
    iterations: int | None,
    arm: str | None,
    replace: bool,
    quiet: bool,
    no_report: bool,
    as_json: bool,
) -> None:
    """Run RLoop, or continue a run: explore, harvest, filter, rft and evaluate for each iteration.

    What the store already holds is not computed again. After any interruption, start the same command again.

    \b
    Examples:
      rloop run --config deployments/configs/demo.yaml
      rloop run --config qwen.yaml --set explore.steps=100 --name short --store s3://bucket/rloop
      rloop run --config qwen.yaml --arm vanilla-rl      # the control at equal compute
    """
    from flows.local import run_locally
    from rloop_core.cli.interrupt import ending_promptly
    from rloop_core.config import as_vanilla, dated, load_config

    # JSON is YAML: a quoted name stays text, whatever it looks like.
    options = {"name": name, "placement.store": store, "iterations": iterations, "placement.replace": replace or None}
    fields = [f"{field}={json.dumps(value)}" for field, value in options.items() if value is not None]
    config = dated(load_config(config_file, [*overrides, *fields]), datetime.now(UTC).date())
    if arm == "vanilla-rl":
        config = as_vanilla(config)
    started = time.monotonic()
    with ending_promptly(), watch(console(stderr=as_json), quiet=quiet) as watcher:
        run_locally(config, watcher.on_event)
    outcome, tables = _outcome(config, watcher, time.monotonic() - started, report=not no_report)
    if as_json:
        print_json(outcome)
    else:
        _show(outcome, tables)


def _outcome(
    config: Config, watcher: Watcher, seconds: float, *, report: bool
) -> tuple[dict[str, Any], list[MetricTable]]:
    """Return the run's result as plain values, and its tables; with `report`, write its report."""
    from rloop_core.results.findings import run_results
    from rloop_core.results.page import write_report
    from rloop_core.results.run_reader import read_run
    from rloop_core.results.table import effect_of_finetuning, metric_table, result_table
    from rloop_core.stages.inputs import stages_of
    from rloop_core.store import Store

    store = Store(config.placement.store)
    run = read_run(store, config.name, CACHE_FOLDER)
    for_report = with_fields(run, notes=list(run.notes))  # later notes are for the screen only
    ran = list(watcher.ran)
    results = run_results(run, snapshots=False)
    table = result_table(results)
    for sentence in effect_of_finetuning(results):
        run.note(sentence)
    page = write_report(store, [for_report], None, CACHE_FOLDER, keep_current=True)[0] if report else None
    outcome = {
        "run": config.name,
        "store": store.uri,
        "iterations": config.iterations,
        "nothing_to_do": not ran,
        "stages_run": [{"stage": stage, "iteration": iteration} for stage, iteration in ran],
        "stages_cached": len([key for key in stages_of(config) if (key[1], key[0]) not in watcher.ran]),
        "digests": {f"{iteration}/{stage}": manifest.digest for (iteration, stage), manifest in run.manifests.items()},
        "evaluation": [asdict(row) for row in table.rows()],
        "report": str(page) if page else None,
        "seconds": round(seconds, 1),
        "notes": run.notes,
    }
    return outcome, [metric_table(results, table, label) for label in results.sets]


def _show(outcome: Mapping[str, Any], tables: Iterable[MetricTable]) -> None:
    """Print the tables, the notes, the report's path, and how much was computed."""
    from rich.text import Text

    out = console()
    for table in tables:
        out.print(table.to_terminal())
        out.print()
    for note in outcome["notes"]:
        out.print(Text(f"note: {note}"))
    if outcome["nothing_to_do"]:
        out.print(f"nothing to do: every stage was in the store ({outcome['stages_cached']} stages)")
    elif outcome["stages_cached"]:
        out.print(f"ran {len(outcome['stages_run'])} stages; {outcome['stages_cached']} were in the store")
    if outcome["report"]:
        out.print(Text(f"report: {outcome['report']}"))
    out.print(f"total: {duration(outcome['seconds'])}")


class BarWatcher(Watcher):
    """Shows a bar for each stage under way; a finished stage leaves one line."""

    def __init__(self, progress: Any) -> None:
        super().__init__()
        self._progress = progress
        self._tasks: dict[Key, Any] = {}

    def started(self, key: Key, note: str) -> None:
        """Open a bar; a line says why a stage is computed again."""
        from rich.markup import escape

        if note:
            self.line(key, "again", note, None)
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(escape(stage_label(*key)), total=None, text="")

    def stepped(self, key: Key, done: float, total: float, metrics: Mapping[str, Any]) -> None:
        """Move the bar."""
        from rich.markup import escape

        if key in self._tasks:
            text = escape(position_text(key, done, total, metrics))
            self._progress.update(self._tasks[key], completed=done, total=total, text=text)

    def line(self, key: Key, status: str, text: str, seconds: float | None) -> None:
        """Print a line above the bars and remove the bar of a finished stage."""
        from rich.text import Text

        if status == "done" and key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))
        mark, style = {"done": ("✓", "green"), "Cached": ("=", "cyan")}.get(status, ("!", "yellow"))
        took = f"{duration(seconds):>7}" if seconds is not None else f"{status:>7}"
        name = f" {stage_label(*key):<17} "
        self._progress.console.print(Text.assemble((mark, style), name, (took, "dim"), f"  {text}"))


@contextmanager
def watch(console: Any, *, quiet: bool = False) -> Iterator[Watcher]:
    """Yield the watcher that fits the console: bars, lines, or nothing if `quiet`."""
    from rich.text import Text

    if quiet:
        yield Watcher()
    elif not console.is_terminal:
        yield LineWatcher(lambda line: console.print(Text(line)))
    else:
        with bars(console) as progress:
            yield BarWatcher(progress)
