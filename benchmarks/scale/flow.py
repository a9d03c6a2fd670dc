"""The flow itself on a real Prefect server: many iterations of one run, and many runs at the same time.

What a stage costs beside its own time is the gap between the end of one and the beginning of the next in its run.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.scale.measure import figures_of

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
class Bench:
    """A running server.

    Args:
        environment: Of a client.
        database: Address of its Postgres; None where it is SQLite.
        processes: The server's own, workers of the database left out.
        log: What it had to say.
    """

    environment: dict[str, str]
    database: str | None
    processes: list[psutil.Process]
    log: Path

    @property
    def mib(self) -> float:
        """Memory of the server now."""
        return sum(one.memory_info().rss for one in self.processes) / 2**20

    @property
    def cpu(self) -> float:
        """Processor seconds that the server has used."""
        return sum(sum(one.cpu_times()[:2]) for one in self.processes)

    def rows(self) -> dict[str, int]:
        """Rows of every table that has any, and the bytes of all of it."""
        return asyncio.run(_rows(self.database)) if self.database else {}

    def complaints(self) -> int:
        """Lines of the log that tell of an error."""
        return sum(bool(_COMPLAINTS.search(line)) for line in self.log.read_text(errors="replace").splitlines())


@contextmanager
def server_on(folder: Path, *, postgres: bool) -> Iterator[Bench]:
    """A server of our own, on a Postgres that waits for its disk, or on SQLite."""
    from contextlib import nullcontext

    from tests.flows.postgres import postgres_server
    from tests.flows.server import prefect_server

    folder.mkdir(parents=True)
    with postgres_server(folder / "postgres.log", durable=True) if postgres else nullcontext() as database:
        before = psutil.Process().children(recursive=True)
        with prefect_server(folder, database, **(_AS_COMPOSE if postgres else {})) as server:
            new = [one for one in psutil.Process().children(recursive=True) if one not in before]
            processes = [one for one in new if one.name() != "postgres"]
            yield Bench(server.environment(**_RUNS), database, processes, folder / "server.log")


def side_by_side(
    bench: Bench, folder: Path, real: Path, *, runs: int, iterations: int, seconds: float
) -> dict[str, Any]:
    """So many runs, let go at the same moment; some share a process, for the memory's sake.

    Args:
        bench: Their server.
        folder: For stores and scratch.
        real: Store of the run that gives the files.
        runs: How many.
        iterations: Of each.
        seconds: What a stage takes.
    """
    place = folder / f"runs-{runs}-{iterations}"
    place.mkdir(parents=True)
    go = place / "go"
    begun, rows = time.monotonic(), bench.rows()
    children = []
    names = [f"run-{number:02d}" for number in range(runs)]
    shares = [names[first : first + _RUNS_A_PROCESS] for first in range(0, runs, _RUNS_A_PROCESS)]
    for share in shares:
        common = (place / "store", place / "scratch", ",".join(share), iterations, real, seconds, go)
        command = [sys.executable, "-m", "benchmarks.scale.measure", "flow:some", *map(str, common)]
        errors = open(place / f"{share[0]}.log", "wb")  # noqa: SIM115 - the child's, until it ends
        children.append(
            subprocess.Popen(command, env=bench.environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        )
        errors.close()
    try:
        while len(list(place.glob("go.*"))) < len(shares):
            assert all(child.poll() is None for child in children) and time.monotonic() - begun < _PATIENCE
            time.sleep(0.2)
        cpu, let_go = bench.cpu, time.monotonic()
        go.touch()
        found = [figures_of(child, _PATIENCE) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    wall = time.monotonic() - let_go
    time.sleep(5)  # task runs reach the database as events, a little later
    after = bench.rows()
    whole = [one for one in found if one]
    ended = [run for one in whole for run in one["runs"].values()]
    broken = [
        f"process of {share[0]}: exit code {child.returncode}, {_last_line(place / f'{share[0]}.log')}"
        for share, child, one in zip(shares, children, found, strict=True)
        if not one
    ]
    done = [run for run in ended if not run["error"]]
    stages = sum(len(run["spans"]) for run in ended)
    return {
        "runs": runs, "failed": runs - len(done),
        "errors": broken + sorted({run["error"] for run in ended if run["error"]}),
        "iterations": iterations, "stage_seconds": seconds, "wall": wall, "stages": stages,
        **spread([gaps_of(run["spans"]) for run in done]),
        "flow_mib": max((one["peak_mib"] for one in whole), default=0.0), "processes": len(shares),
        "flow_cpu_a_stage": sum(one["cpu"] for one in whole) / max(1, stages),
        "server_mib": bench.mib, "server_cpu_a_stage": (bench.cpu - cpu) / max(1, stages),
        "complaints": bench.complaints(), "rows": {name: after[name] - rows.get(name, 0) for name in after},
        "flow_mib_by_stage": [round(span[4], 1) for run in done[:1] for span in run["spans"]][:: max(1, stages // 60)],
        "load": os.getloadavg()[0],
    }  # fmt: skip


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").splitlines() or ["nothing said"])[-1][-300:]


def gaps_of(spans: Sequence[Sequence[Any]]) -> list[float]:
    """Seconds from the end of each stage to the beginning of the next."""
    return [later[2] - sooner[3] for sooner, later in pairwise(spans)]


def spread(runs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Median, 95th percentile and most of all gaps; and the medians of the runs' first and last tenths."""
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


def some(store: str, scratch: str, names: str, iterations: str, real: str, seconds: str, go: str) -> dict[str, Any]:
    """Runs through the flow `rloop`, a thread each; they begin when the file `go` appears."""
    from concurrent.futures import ThreadPoolExecutor

    import tasks.session
    from benchmarks.scale.simulated import TimedStages, config_for
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
    with ThreadPoolExecutor(len(timed)) as threads:
        errors = dict(zip(timed, threads.map(run, timed), strict=True))
    return {"runs": {name: {"error": errors[name], "spans": one.spans} for name, one in timed.items()}}


async def _rows(database: str) -> dict[str, int]:
    import asyncpg

    connection = await asyncpg.connect(database.replace("+asyncpg", ""))
    try:
        tables = await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
        found = {}
        for (table,) in tables:
            found[table] = await connection.fetchval(f'select count(*) from "{table}"')
        found["bytes"] = await connection.fetchval("select pg_database_size(current_database())")
        return {name: count for name, count in found.items() if count}
    finally:
        await connection.close()
