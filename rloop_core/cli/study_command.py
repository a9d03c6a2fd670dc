"""`rloop study`: several runs at a time, each an ordinary `rloop run` in its own process.

The store is the only state: a study that is started again skips finished runs and resumes the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.options import CACHE_FOLDER, COUNT, FOLDER, json_option, k_list, names, store_option
from rloop_core.cli.output import check_outputs, console, print_json, progress_bar
from rloop_core.errors import StageError
from rloop_core.results.progress import duration
from rloop_core.results.study_config import StudyRun, load_study, part_of, study_runs
from rloop_core.stages.inputs import stages_of
from rloop_core.store import Store, manifest_key

if TYPE_CHECKING:
    from rloop_core.results.findings import Report

_MOST_JOBS = 4
_LINE_SECONDS = 60.0
_POLL_SECONDS = 0.5
_STORE_SECONDS = 5.0
_GRACE_SECONDS = 10.0


@click.command("study")
@click.option(
    "--config", "config_file", required=True, metavar="F",
    help="Study file (YAML), such as deployments/studies/sums.yaml.",
)  # fmt: skip
@store_option
@click.option("--seeds", type=k_list, default=(), metavar="K,K,...", help="Only these seeds of the study.")
@click.option("--arms", type=names, default=(), metavar="NAME,NAME,...", help="Only these arms.")
@click.option("--jobs", type=COUNT, help="Runs at a time.  [default: as many as CPU cores, at most 4; with a GPU 1]")
@click.option("--out", type=FOLDER, help="Folder of report, configs and logs.  [default: .rloop/studies/NAME]")
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

    Each arm at each seed is an ordinary run, `NAME-ARM-SEED`, for `rloop status` and `rloop report`. Finished stages
    are not computed again; after any interruption, start the same command again.

    \b
    Examples:
      rloop study --config deployments/studies/sums.yaml
      rloop study --config deployments/studies/sums.yaml --seeds 1 --arms rloop,vanilla-rl
      rloop study --config deployments/studies/sums.yaml --report-only
    """
    from rloop_core.cli.interrupt import ending_promptly
    from rloop_core.results.page import STUDY_FILE, write_study

    study = part_of(load_study(config_file), seeds, arms)
    folder = out or Path(".rloop/studies") / study.name
    check_outputs({"--out": (folder / STUDY_FILE).with_suffix(".json")}, [("--config", config_file)], temporary="")
    started = time.monotonic()
    if not report_only:
        runs = study_runs(study, store)
        with ending_promptly(), _progress(as_json) as show:
            _compute(runs, Store(store), folder, jobs or _jobs(runs[0].config.placement.device), show)
    page, report = write_study(study, Store(store), folder, CACHE_FOLDER)
    seconds = time.monotonic() - started
    if as_json:
        print_json({**report.to_dict(), "report": str(page), "seconds": round(seconds, 1)})
        return
    _show(report, console())
    click.echo(f"\nreport: {page}\ntotal: {duration(seconds)}")


def _show(report: Report, out: Any) -> None:
    """Print what is missing, the table of each set, and the claims."""
    from rich.table import Table
    from rich.text import Text

    from rloop_core.results.claims import AS_CLAIMED, OPPOSITE
    from rloop_core.results.table import metric_table
    from rloop_core.results.tables import percent_interval

    results, colours = report.results, {OPPOSITE: "bold red", AS_CLAIMED: "green"}
    if missing := results.missing():
        names = ", ".join(f"{run.name} ({run.done} of {run.stages} stages)" for run in missing[:6])
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        out.print(Text(f"not complete: {names}{more}"))
    for reason in results.not_comparable:
        out.print(Text(f"not comparable: {reason}", style="bold red"))
    for note in results.notes:
        out.print(Text(f"note: {note}"))
    out.print(Text(f"{report.sentence}\n", style="bold"))
    for label in results.sets:
        out.print(metric_table(results, report.table, label).to_terminal())
        out.print()
    table = Table(title=Text("The paper's claims, what disagrees first"), title_justify="left")
    for name in ("claim", "set", "measured"):
        table.add_column(name)
    table.add_column("found, points", justify="right")
    table.add_column("outcome")
    for claim in report.claims:
        one_seed = ", one seed" if len(claim.seeds) == 1 else ""  # its interval knows nothing of seeds
        outcome = Text(claim.outcome + one_seed, style=colours.get(claim.outcome, ""))
        found = percent_interval(claim.effect, "+")
        table.add_row(Text(claim.claim), Text(claim.set), Text(claim.quantity), Text(found), outcome)
    if report.claims:
        out.print(table)


def _jobs(device: str) -> int:
    """Return the default number of concurrent runs: one on a GPU, whose memory they would share, else one per core."""
    has_gpu = Path("/dev/nvidia0").exists() and device != "cpu"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if has_gpu else min(cores, _MOST_JOBS)


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[_Progress], None]]:
    """Yield a function that shows progress: a bar over all stages on a terminal, a line a minute anywhere else."""
    if sys.stderr.isatty() and not as_json:
        with progress_bar("stages", "stages") as bar:
            yield lambda now: bar(now.done, now.stages, f"{now.done} of {now.stages}  {', '.join(now.running)}")
        return
    screen = console(stderr=True)
    last_line, printed = 0.0, set[str]()

    def show(now: _Progress) -> None:
        nonlocal last_line
        ended = [name for name in (*now.finished, *now.failed) if name not in printed]
        for name in ended:
            screen.print(f"{name}: {now.failed.get(name, 'finished')}")
        printed.update(ended)
        if ended or time.monotonic() - last_line >= _LINE_SECONDS:
            last_line = time.monotonic()
            screen.print(f"{now.done} of {now.stages} stages; {', '.join(now.running) or 'no run under way'}")

    yield show


@dataclass
class _Progress:
    """Progress of a study."""

    stages: int = 0
    """Stages of all runs together."""
    done: int = 0
    """Those whose manifest is in the store."""
    running: list[str] = field(default_factory=list)
    """Names of the runs under way."""
    finished: list[str] = field(default_factory=list)
    """Names of the runs that ended, in order."""
    failed: dict[str, str] = field(default_factory=dict)
    """Last line of the log of each run that failed, by name."""


@dataclass
class _Child:
    run: StudyRun
    process: subprocess.Popen[bytes]
    log: Path
    slot: int

    @property
    def name(self) -> str:
        return self.run.config.name


def _compute(
    runs: Sequence[StudyRun], store: Store, folder: Path, jobs: int, on_progress: Callable[[_Progress], None]
) -> None:
    """Compute every run of which the store lacks a stage.

    Args:
        runs: In the order in which to start them.
        store: Store of the runs.
        folder: For their configs, logs and Prefect homes.
        jobs: Runs at a time.
        on_progress: Called with the progress whenever something may have changed.

    Raises:
        StageError: Runs failed; all others were computed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = {key for run in runs for key in _manifests(run)}
    waiting, children, progress = list(runs), list[_Child](), _Progress(stages=len(missing))

    def update(changed: Sequence[StudyRun]) -> None:
        # Each missing manifest costs a request, so only those of runs that may have made one are looked up.
        made = [key for run in changed for key in _manifests(run) if key in missing and store.exists(key)]
        missing.difference_update(made)
        progress.done = progress.stages - len(missing)

    update(runs)
    updated = time.monotonic()
    try:
        while waiting or children:
            while waiting and len(children) < jobs:
                slot = min(set(range(jobs)) - {child.slot for child in children})
                children.append(_start(waiting.pop(0), folder, slot))
            if time.monotonic() - updated >= _STORE_SECONDS:
                update([child.run for child in children])
                updated = time.monotonic()
            progress.running = [child.name for child in children]
            on_progress(progress)
            time.sleep(_POLL_SECONDS)
            for child in [child for child in children if child.process.poll() is not None]:
                children.remove(child)
                update([child.run])
                if child.process.returncode == 0:
                    progress.finished.append(child.name)
                else:
                    progress.failed[child.name] = _last_line(child.log)
        progress.running = []
        on_progress(progress)
    finally:
        _stop(children)
    if progress.failed:
        failures = "; ".join(f"{name}: {line}" for name, line in progress.failed.items())
        raise StageError(f"{len(progress.failed)} of {len(runs)} runs failed: {failures}", field=str(folder / "logs"),
                         fix="see their logs, and start the same command again")  # fmt: skip


def _manifests(run: StudyRun) -> list[str]:
    return [manifest_key(run.config.name, iteration, stage) for iteration, stage in stages_of(run.config)]


def _start(run: StudyRun, folder: Path, slot: int) -> _Child:
    config, log = folder / "configs" / f"{run.config.name}.yaml", folder / "logs" / f"{run.config.name}.log"
    for path in (config, log):
        path.parent.mkdir(parents=True, exist_ok=True)
    # JSON is YAML: `rloop run --config` takes this file.
    config.write_text(json.dumps(run.config.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
    # Each slot has its own Prefect home: two embedded servers on one SQLite file block each other.
    environment = {**os.environ, "PREFECT_HOME": str((folder / f"prefect-{slot}").absolute())}
    command = [sys.executable, "-m", "rloop_core.cli.study_child", str(os.getpid()), str(config)]
    with open(log, "ab") as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    return _Child(run, process, log, slot)


def _stop(children: list[_Child]) -> None:
    """Stop the runs under way; each ends its stages and can be resumed."""
    for child in children:
        child.process.terminate()
    limit = time.monotonic() + _GRACE_SECONDS
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.1, limit - time.monotonic()))
            continue
        child.process.kill()
        child.process.wait()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"see {log}"
