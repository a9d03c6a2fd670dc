"""Tasks outside any run: compare two runs, evaluate a model. Their tables and figures are shown in the UI."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from rloop_core.config import Config
from rloop_core.evaluation.metrics import metrics_of
from rloop_core.printable import printable_line
from rloop_core.results.compare.comparison import compare_runs
from rloop_core.results.compare.figures import figure_4
from rloop_core.results.compare.page import write_comparison
from rloop_core.stages.standalone import evaluate
from rloop_core.store import Store
from tasks.artifacts import Origin, metric_rows, publish
from tasks.report import upload_folder

_SCRATCH = Path(".rloop/scratch")


@task(name="compare", task_run_name="compare-{run}", cache_policy=NO_CACHE, persist_result=False)
def compare_arms(run: str, vanilla: str, store: str) -> tuple[str, str]:
    """Write the comparison into `<store>/<run>/compare-<vanilla>/`, and show Table 1 and the curves of both arms.

    Returns:
        The page's address, and the result in one sentence.

    Raises:
        RLoopError: The arms are not comparable.
    """
    opened = Store(store)
    comparison = compare_runs(opened, run, vanilla, _SCRATCH / "cache")
    folder = f"{run}/compare-{vanilla}"
    page = write_comparison(comparison, None if opened.is_local else _SCRATCH / folder)
    uri = str(page) if opened.is_local else upload_folder(opened, page, folder)
    for note in comparison.notes:
        get_run_logger().warning(note)
    name, origin = f"{run}-{vanilla}-compare", Origin.current()
    publish(origin.table(name, comparison.table.to_table().to_dicts(), f"Table 1 of {uri}"))
    if picture := figure_4(comparison.record):
        publish(origin.figure(f"{name}-figure", picture, picture.title))
    return uri, printable_line(f"{run} against {vanilla}: {uri}")


@task(name="evaluate", task_run_name="evaluate-{config.problems.source}", cache_policy=NO_CACHE, persist_result=False)
def evaluate_model(config: Config, out: Path | None, store: str | None) -> tuple[str, str]:
    """Sample what is missing, judge it and show the metrics; with a store, put samples and metrics there.

    Returns:
        The address of samples and metrics, and the result in one sentence.
    """
    result = evaluate(config, out)
    folder = uri = str(result["out"])
    if store is not None:
        metrics = Path(folder) / "metrics.json"
        uri = upload_folder(Store(store), metrics, f"evaluations/{Path(folder).resolve().name}").rpartition("/")[0]
    model, problems = config.policy.path, config.problems.source
    title = f"{model} on {problems}: {result['samples']:,} samples"
    publish(Origin.current().table(f"evaluate-{model}-{problems}", metric_rows(problems, result), title))
    values = ", ".join(f"{name} {metric['value']:.1%}" for name, metric in metrics_of(result).items())
    return uri, printable_line(f"{model} on {problems}: {values}; {uri}", 1000)
