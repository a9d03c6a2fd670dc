"""Tags, by which runs and their stages are found in the UI."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from prefect import get_client, tags
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tasks.audience import is_watched


def tagged(*names: str) -> AbstractContextManager[object]:
    """Flow and task runs that start in the block carry these tags, where there is a UI to look for them."""
    return tags(*names) if is_watched() else nullcontext()


@contextmanager
def labelled(*names: str) -> Iterator[None]:
    """The flow run under way carries these tags besides its own, and so does all that starts in the block."""
    wanted = sorted({*flow_run.tags, *names})
    if flow_run.id and is_watched():
        try:
            with get_client(sync_client=True) as client:
                client.update_flow_run(flow_run.id, tags=wanted)
        except Exception as error:  # a name in a list is not worth a run
            get_run_logger().warning("the run could not be tagged: %s", error)
    with tagged(*names):
        yield
