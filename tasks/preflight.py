"""Preflight as a task: nothing expensive starts before it, and a finished run does not wait for it."""

from prefect.logging import get_run_logger

from tasks.live_progress import shown
from tasks.remote import check_pools
from tasks.session import RunSession
from tasks.stages import RETRIES
from tasks.tags import untagged_task


@untagged_task(name="preflight", task_run_name="preflight", **RETRIES)
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
