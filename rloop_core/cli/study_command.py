"""`rloop study`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.formatting import duration
from rloop_core.cli.options import KList, cache_folder, console, json_option, print_json, store_option

if TYPE_CHECKING:
    from rloop_core.cli.study_runner import Progress

_MOST_JOBS = 4
_LINE_SECONDS = 60.0


class Names(click.ParamType):  # type: ignore[type-arg] # generic from click 8.5 on
    """A comma-separated list of names."""

    name = "NAME,NAME,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names, in order."""
        return value if isinstance(value, tuple) else tuple(part for part in str(value).split(",") if part)


@click.command("study")
@click.option(
    "--config",
    "config_file",
    required=True,
    metavar="F",
    help="Study file (YAML), such as deployments/studies/sums.yaml.",
)
@store_option
@click.option("--seeds", type=KList(), default=(), help="Only these seeds of the study.")
@click.option("--arms", type=Names(), default=(), help="Only these arms.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=None,
    help="Runs at a time.  [default: as many as CPU cores, at most 4; with a GPU 1]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of report, configs and logs.  [default: .rloop/studies/NAME]",
)
@click.option("--report-only", is_flag=True, help="Compute nothing; report what the store holds.")
@json_option
def command(
    config_file: str,
    store: str,
    seeds: tuple[int, ...],
    arms: tuple[str, ...],
    jobs: int | None,
    out: Path | None,
    report_only: bool,
    as_json: bool,
) -> None:
    """Run several arms over several seeds, and say what they show together: paired intervals over problems and seeds.

    Each arm at each seed is an ordinary run, `NAME-ARM-SEED`, which `rloop status`, `report` and `compare` know. What
    is finished is not computed again; after any interruption, start the same command again.

    \b
    Examples:
      rloop study --config deployments/studies/sums.yaml
      rloop study --config deployments/studies/sums.yaml --seeds 1 --arms rloop,vanilla-rl
      rloop study --config deployments/studies/sums.yaml --report-only
    """
    from rloop_core.cli.interrupt import ending_promptly
    from rloop_core.cli.study_runner import compute
    from rloop_core.results.study.config import load_study, part_of, study_runs
    from rloop_core.results.study.show import show_study
    from rloop_core.results.study.write import write_study
    from rloop_core.store import Store

    study = part_of(load_study(config_file), seeds, arms)
    folder = out or Path(".rloop/studies") / study.name
    started = time.monotonic()
    if not report_only:
        runs = study_runs(study, store)
        with ending_promptly(), _watched(as_json) as tell:
            compute(runs, Store(store), folder, jobs or _jobs(runs[0].config.placement.device), tell)
    findings = write_study(study, Store(store), folder, cache_folder())
    if as_json:
        print_json({**findings.to_dict(), "seconds": round(time.monotonic() - started, 1)})
        return
    show_study(findings, console())
    click.echo(f"\nreport: {findings.page}\ntotal: {duration(time.monotonic() - started)}")


def _jobs(device: str) -> int:
    """Runs at a time: they would share a GPU's memory, but not a CPU core."""
    has_gpu = Path("/dev/nvidia0").exists() and device != "cpu"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if has_gpu else min(cores, _MOST_JOBS)


@contextmanager
def _watched(as_json: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar over all stages on a terminal, a line a minute anywhere else."""
    shown = console(stderr=True)
    if shown.is_terminal and not as_json:
        from rich import progress as rich

        columns = (
            rich.TextColumn("stages"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.description}"),
        )
        with rich.Progress(*columns, console=shown) as bars:
            bar = bars.add_task("", total=None)
            yield lambda now: bars.update(bar, total=now.stages, completed=now.done, description=_running(now))
        return
    spoke, said = 0.0, set[str]()

    def tell(now: Progress) -> None:
        nonlocal spoke
        ended = [*now.finished, *now.failed]
        for name in ended:
            if name not in said:
                shown.print(f"{name}: {now.failed.get(name, 'finished')}")
        fresh = set(ended) - said
        said.update(ended)
        if fresh or time.monotonic() - spoke >= _LINE_SECONDS:
            spoke = time.monotonic()
            shown.print(f"{now.done} of {now.stages} stages; {_running(now) or 'nothing under way'}")

    yield tell


def _running(now: Progress) -> str:
    return ", ".join(now.running)
