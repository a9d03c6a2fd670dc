"""Tasks outside any run: compare two runs, evaluate a model. Their tables and figures are shown in the UI."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from rloop_core.config import Config
from rloop_core.results.compare.comparison import compare_runs
from rloop_core.results.compare.figures import figure_4
from rloop_core.results.compare.page import write_comparison
from rloop_core.stages.standalone import evaluate
from rloop_core.store import Store
from tasks.artifacts import metric_rows, publish_figure, publish_table


@task(name="compare", task_run_name="compare-{run}", cache_policy=NO_CACHE, persist_result=False)
def compare_arms(run: str, vanilla: str, store: str) -> str:
    """Write the comparison's page and show Table 1 and the curves of both arms; return the page's path.

    Raises:
        RLoopError: The arms are not comparable.
    """
    comparison = compare_runs(Store(store), run, vanilla, Path(".rloop/scratch/cache"))
    page = write_comparison(comparison)
    for note in comparison.notes:
        get_run_logger().warning(note)
    publish_table(f"{run}-{vanilla}-compare", comparison.table.to_table().to_dicts(), f"Table 1 of {page}")
    if picture := figure_4(comparison.record):
        publish_figure(f"{run}-{vanilla}-compare-figure", picture, picture.title)
    return str(page)


@task(name="evaluate", task_run_name="evaluate-{config.problems.source}", cache_policy=NO_CACHE, persist_result=False)
def evaluate_model(config: Config, out: Path | None) -> str:
    """Sample what is missing, judge it and show the metrics; return the folder of samples and metrics."""
    result = evaluate(config, out)
    model, problems = config.policy.path, config.problems.source
    publish_table(
        f"evaluate-{model}-{problems}",
        metric_rows(problems, result),
        f"{model} on {problems}: {result['samples']:,} samples",
    )
    return str(result["out"])
