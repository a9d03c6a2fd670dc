"""The flow on a real Prefect server: many iterations of one run, and many runs at the same time.

The overhead of a stage is the gap between the end of one and the beginning of the next in its run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import command_for, figures_in

_PATIENCE = 3600.0
_RUNS_A_PROCESS = 5
_AS_COMPOSE = {
    "PREFECT_SERVER_DATABASE_SQLALCHEMY_POOL_SIZE": "15",
    "PREFECT_SERVER_DATABASE_SQLALCHEMY_MAX_OVERFLOW": "25",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "30",
}
_RUNS = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
    "PREFECT_LOGGING_LEVEL": "INFO",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "OMP_NUM_THREADS": "1",
}
_COMPLAINTS = re.compile(r"(?i)database is locked|traceback|too many clients|QueuePool limit| 503 | 500 ")


@dataclass(frozen=True)
class Server:
    """A running Prefect server.

    Args:
        environment: Environment of its clients.
        database: Address of its Postgres; None for SQLite.
        processes: The server's processes, without those of the database.
        log: Its log file.
    """

    environment: dict[str, str]
    database: str | None
    processes: list[psutil.Process]
    log: Path

    def figures(self) -> dict[str, Any]:
        """Return its MiB and processor seconds, the lines of its log that report an error, and the rows by table."""
        lines = self.log.read_text(errors="replace").splitlines()
        return {
            "mib": sum(process.memory_info().rss for process in self.processes) / 2**20,
            "cpu": sum(sum(process.cpu_times()[:2]) for process in self.processes),
            "complaints": sum(bool(_COMPLAINTS.search(line)) for line in lines),
            "rows": asyncio.run(_rows(self.database)) if self.database else {},
        }


async def _rows(database: str) -> dict[str, int]:
    """Count the rows of every table, and the bytes of the database."""
    import asyncpg

    connection = await asyncpg.connect(database.replace("+asyncpg", ""))
    try:
        tables = await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
        counts = {table: await connection.fetchval(f'select count(*) from "{table}"') for (table,) in tables}
        return {**counts, "bytes": await connection.fetchval("select pg_database_size(current_database())")}
    finally:
        await connection.close()


@contextlib.contextmanager
def server_on(folder: Path, *, postgres: bool) -> Iterator[Server]:
    """Start a server on a Postgres that waits for its disk, or on SQLite."""
    from tests.flows.postgres import postgres_server
    from tests.flows.server import prefect_server

    folder.mkdir(parents=True)
    log = folder / "postgres.log"
    with postgres_server(log, durable=True) if postgres else contextlib.nullcontext() as database:
        before = psutil.Process().children(recursive=True)
        with prefect_server(folder, database, **(_AS_COMPOSE if postgres else {})) as server:
            new = [child for child in psutil.Process().children(recursive=True) if child not in before]
            processes = [child for child in new if child.name() != "postgres"]
            yield Server(server.environment(**_RUNS), database, processes, folder / "server.log")


def side_by_side(
    server: Server, folder: Path, real: Path, *, runs: int, iterations: int, seconds: float
) -> dict[str, Any]:
    """Start runs at the same moment; some share a process, to save memory.

    Args:
        server: Their server.
        folder: Folder for stores and scratch.
        real: Store of the run that gives the files.
        runs: Number of runs.
        iterations: Iterations of each.
        seconds: Duration of a stage.
    """
    place = folder / f"runs-{runs}-{iterations}"
    place.mkdir(parents=True)
    go = place / "go"
    started, before = time.monotonic(), server.figures()
    names = [f"run-{number:02d}" for number in range(runs)]
    shares = [names[first : first + _RUNS_A_PROCESS] for first in range(0, runs, _RUNS_A_PROCESS)]
    children = []
    for share in shares:
        common = (place / "store", place / "scratch", ",".join(share), iterations, real, seconds, go)
        command = command_for("scale.flow:run_some", *common)
        with open(place / f"{share[0]}.log", "wb") as errors:
            options = {"env": server.environment, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
            children.append(subprocess.Popen(command, **options))
    try:
        while len(list(place.glob("go.*"))) < len(shares):
            assert all(child.poll() is None for child in children) and time.monotonic() - started < _PATIENCE
            time.sleep(0.2)
        released = time.monotonic()
        go.touch()
        figures = [_figures(child) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    wall = time.monotonic() - released
    time.sleep(5)  # task runs reach the database as events, a little later
    after = server.figures()
    done = [process for process in figures if process]
    errors = [
        f"process of {share[0]}: exit code {child.returncode}, {_last_line(place / f'{share[0]}.log')}"
        for share, child, process in zip(shares, children, figures, strict=True)
        if not process
    ]
    ended = [run for process in done for run in process["runs"].values()]
    whole = [run for run in ended if not run["error"]]
    stages = max(1, sum(len(run["spans"]) for run in ended))
    return {
        "runs": runs, "failed": runs - len(whole),
        "errors": errors + sorted({run["error"] for run in ended if run["error"]}),
        "iterations": iterations, "stage_seconds": seconds, "wall": wall, "stages": stages,
        **spread([gaps_of(run["spans"]) for run in whole]),
        "flow_mib": max((process["peak_mib"] for process in done), default=0.0), "processes": len(shares),
        "flow_cpu_a_stage": sum(process["cpu"] for process in done) / stages,
        "server_mib": after["mib"], "server_cpu_a_stage": (after["cpu"] - before["cpu"]) / stages,
        "complaints": after["complaints"],
        "rows_a_stage": {name: (count - before["rows"].get(name, 0)) / stages for name, count in after["rows"].items()},
        "flow_mib_by_stage": [round(span[4], 1) for run in whole[:1] for span in run["spans"]][:: max(1, stages // 60)],
        "load": os.getloadavg()[0],
    }  # fmt: skip


def _figures(child: subprocess.Popen[str]) -> dict[str, Any] | None:
    """Return the figures of a process; None if it fails or takes too long."""
    try:
        output, _ = child.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return None
    return None if child.returncode else figures_in(output)


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").splitlines() or ["no output"])[-1][-300:]


def gaps_of(spans: Sequence[Sequence[Any]]) -> list[float]:
    """Return the seconds from the end of each stage to the beginning of the next."""
    return [later[2] - earlier[3] for earlier, later in pairwise(spans)]


def spread(runs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return median, 95th percentile and maximum of all gaps, and the medians of the runs' first and last tenths."""
    gaps = [gap for run in runs for gap in run]
    if len(gaps) < 2:
        return {}
    return {
        "gap_median": statistics.median(gaps),
        "gap_p95": statistics.quantiles(gaps, n=20)[-1],
        "gap_most": max(gaps),
        "gap_first": statistics.median([gap for run in runs for gap in run[: max(5, len(run) // 10)]]),
        "gap_last": statistics.median([gap for run in runs for gap in run[-max(5, len(run) // 10) :]]),
    }


def run_some(store: str, scratch: str, names: str, iterations: str, real: str, seconds: str, go: str) -> dict[str, Any]:
    """Run the flow `rloop` in a thread for each name; they begin when the file `go` appears.

    Without a configured Prefect API all threads use one embedded server: each would start its own on one database.
    """
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    import tasks.session
    from benchmarks.scale.simulated import TimedStages, config_for
    from flows.embedded import prefect_api
    from flows.rloop import rloop
    from rloop_core.stages.runner import StageRunner
    from rloop_core.store import Store

    timed = {name: TimedStages(Store(real), "smoke", float(seconds)) for name in names.split(",")}

    def runner(config: Any, *arguments: Any, **options: Any) -> StageRunner:
        return StageRunner(config, *arguments, **{**options, "launch": timed[config.name]})

    def run(name: str) -> str | None:
        config = config_for(store, Path(scratch), name, int(iterations), **{"placement.parallel_evaluation": False})
        try:
            rloop(config)
        except Exception as error:  # the others go on
            return f"{type(error).__name__}: {error}"
        return None

    tasks.session.StageRunner = runner  # type: ignore[misc, assignment]
    Path(f"{go}.{next(iter(timed))}").touch()
    while not Path(go).exists():
        time.sleep(0.05)
    with prefect_api(), ThreadPoolExecutor(len(timed)) as threads:
        contexts = [copy_context() for _ in timed]  # Prefect's settings are context variables
        errors = dict(
            zip(timed, threads.map(lambda context, name: context.run(run, name), contexts, timed), strict=True)
        )
    return {"runs": {name: {"error": errors[name], "spans": stages.spans} for name, stages in timed.items()}}
