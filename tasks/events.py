"""What a run tells the server besides its states: events, which automations can act upon."""

from prefect.events import emit_event
from prefect.logging import get_run_logger

from rloop_core.store import Manifest
from tasks.audience import is_watched

EMPTY_EXPERT_SET = "rloop.expert-set.empty"
_TAG = {"prefect.resource.id": "prefect.tag.rloop", "prefect.resource.role": "tag"}


def warn_if_carried(manifest: Manifest) -> None:
    """Tell the log and the server if RFT had nothing to learn from, so that theta_i goes on as theta_{i+1}."""
    if manifest.stage != "rft" or manifest.metrics.get("status") != "carried":
        return
    message = (
        f"iteration {manifest.iteration} of {manifest.run} has an empty expert set, and its policy goes on unchanged; "
        "look at the filter stage's figures, then raise filter.threshold or explore.steps"
    )
    get_run_logger().warning(message)
    if is_watched():
        resource = {
            "prefect.resource.id": f"rloop.run.{manifest.run}",
            "prefect.resource.name": manifest.run,
            "rloop.message": message,
        }
        emit_event(EMPTY_EXPERT_SET, resource, related=[_TAG], payload={"iteration": manifest.iteration})
