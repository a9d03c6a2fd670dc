"""`rloop study`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rloop_core.cli.options import CACHE_FOLDER, COUNT, FOLDER, json_option, k_list, names, store_option
from rloop_core.cli.output import console, print_json, progress_bar
from rloop_core.results.progress import duration

if TYPE_CHECKING:
    from rloop_core.cli.study_runner import Progress

_MOST_JOBS = 4
_LINE_SECONDS = 60.0


@click.command("study")
@click.option(
    "--config", "config_file", required=True, metavar="F",
    help="Study file (YAML), such as deployments/studies/sums.yaml.",
)  # fmt: skip
@store_option
@click.option("--seeds", type=k_list, default=(), metavar="K,K,...", help="Only these seeds of the study.")
@click.option("--arms", type=names, default=(), metavar="NAME,NAME,...", help="Only these arms.")
@click.option(
    "--jobs", type=COUNT, help="Runs at a time.  [default: as many as CPU cores, at most 4; with a GPU 1]"
)
@click.option(
    "--out", type=FOLDER, help="Folder of report, configs and logs.  [default: .rloop/studies/NAME]"
)
@click.option("--report-only", is_flag=True, help="Compute nothing; report on what the store holds.")
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
    """Run several arms over several seeds, and report on all of them: paired intervals over problems and seeds.

    Each arm at each seed is an ordinary run, `NAME-ARM-SEED`, for `rloop status`, `report` and `compare`. Finished
    stages are not computed again; after any interruption, start the same command again.

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
        with ending_promptly(), _progress(as_json) as show:
            compute(runs, Store(store), folder, jobs or _jobs(runs[0].config.placement.device), show)
    findings = write_study(study, Store(store), folder, CACHE_FOLDER)
    if as_json:
        print_json({**findings.to_dict(), "seconds": round(time.monotonic() - started, 1)})
        return
    show_study(findings, console())
    click.echo(f"\nreport: {findings.page}\ntotal: {duration(time.monotonic() - started)}")


def _jobs(device: str) -> int:
    """Return the default number of concurrent runs: one on a GPU, whose memory they would share, else one per core."""
    has_gpu = Path("/dev/nvidia0").exists() and device != "cpu"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if has_gpu else min(cores, _MOST_JOBS)


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows progress: a bar over all stages on a terminal, a line a minute anywhere else."""
    if sys.stderr.isatty() and not as_json:
        with progress_bar("stages", "stages") as bar:
            yield lambda now: bar(now.done, now.stages, f"{now.done} of {now.stages}  {', '.join(now.running)}")
        return
    screen = console(stderr=True)
    last_line, printed = 0.0, set[str]()

    def show(now: Progress) -> None:
        nonlocal last_line
        ended = [name for name in (*now.finished, *now.failed) if name not in printed]
        for name in ended:
            screen.print(f"{name}: {now.failed.get(name, 'finished')}")
        printed.update(ended)
        if ended or time.monotonic() - last_line >= _LINE_SECONDS:
            last_line = time.monotonic()
            screen.print(f"{now.done} of {now.stages} stages; {', '.join(now.running) or 'no run under way'}")

    yield show
