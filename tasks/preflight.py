"""Preflight as a task: nothing expensive starts before it, and a finished run does not wait for it."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks.elsewhere import check_pools
from tasks.session import RunSession
from tasks.shown import shown


@task(name="preflight", task_run_name="preflight", cache_policy=NO_CACHE, persist_result=False)
def preflight(run: RunSession) -> None:
    """Check config, store, policy, problems and golds, unless all stages and the record of it are in the store."""
    remaining = run.runner.remaining()
    if not remaining and run.runner.is_recorded():
        get_run_logger().info("every stage is in the store: nothing to compute")
        return
    check_pools(run.config)
    with shown(run, "preflight", -1):
        report = run.runner.preflight(should_stop=lambda: run.stopping)
    get_run_logger().info("%d stages to compute; %s", len(remaining), report)
