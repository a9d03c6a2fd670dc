"""The comparison of two arms as a task: the page is written, and Table 1 and both arms' curves are shown in the UI."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from rloop_core.results.compare.comparison import compare_runs
from rloop_core.results.compare.curves import curves
from rloop_core.results.compare.write import write_comparison
from rloop_core.store import Store
from tasks.artifacts import publish_figure, publish_table


@task(name="compare", task_run_name="compare-{run}", cache_policy=NO_CACHE, persist_result=False)
def compare_arms(run: str, vanilla: str, store: str) -> str:
    """Write the page; refuses arms that are not comparable."""
    found = compare_runs(Store(store), run, vanilla, Path(".rloop/scratch/cache"))
    page = write_comparison(found)
    for note in found.notes:
        get_run_logger().warning(note)
    table = found.table.to_table()
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    publish_table(f"{run}-{vanilla}-compare", rows, f"Table 1 of {page}")
    if picture := curves(found.arms):
        publish_figure(f"{run}-{vanilla}-compare-figure", picture, picture.title)
    return str(page)
