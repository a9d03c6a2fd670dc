"""Preflight as a task: nothing expensive starts before it, and a finished run does not wait for it."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks.session import RunSession


@task(name="preflight", task_run_name="preflight", cache_policy=NO_CACHE, persist_result=False)
def preflight(run: RunSession) -> None:
    """Check config, store, policy, problems and golds, unless every stage is in the store already."""
    remaining = run.runner.remaining()
    if not remaining:
        get_run_logger().info("every stage is in the store: nothing to compute")
        return
    report = run.runner.preflight(should_stop=lambda: run.stopping)
    get_run_logger().info("%d stages to compute; %s", len(remaining), report)
