"""Tags, by which runs are found in the UI."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from prefect import Task, get_client, tags
from prefect.cache_policies import NO_CACHE
from prefect.context import TagsContext
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tasks.audience import is_watched


@contextmanager
def labelled(*names: str) -> Iterator[None]:
    """The flow run under way carries these tags besides its own, and so do the flows that start in the block."""
    if not is_watched():
        yield
        return
    if flow_run.id:
        try:
            with get_client(sync_client=True) as client:
                client.update_flow_run(flow_run.id, tags=sorted({*flow_run.tags, *names}))
        except Exception as error:  # a name in a list is not worth a run
            get_run_logger().warning("the run could not be tagged: %s", error)
    with tags(*names):
        yield


class UntaggedTask(Task[..., Any]):
    """A task whose runs carry no tags, those of the flow around it included; their names tell them apart.

    For a task run's tags Prefect asks its server for concurrency slots, once: that costs an embedded server up to two
    seconds, and a run its life when the server is away at that moment.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it here and now."""
        with TagsContext(current_tags=set()):
            return super().__call__(*args, **kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Run it beside the flow."""
        with TagsContext(current_tags=set()):
            return super().submit(*args, **kwargs)


def untagged_task(**options: Any) -> Callable[[Callable[..., Any]], UntaggedTask]:
    """Make a function such a task; results are the store's business, so Prefect keeps and caches none."""
    return partial(UntaggedTask, cache_policy=NO_CACHE, persist_result=False, **options)
