"""Workarounds for Prefect 3.7: each says what Prefect does, and may go when Prefect no longer does it.

- `OneLineErrors`: an expected error fills a run's log with tracebacks, its own sentence at the end.

Smaller ones stand where they apply: heartbeats and log handlers in `flows/embedded`, images in `tasks/artifacts`, tags
in `flows/deployed`.
"""

import logging
from functools import cache

from rloop_core.errors import RLoopError, cause_of
from rloop_core.printable import printable_line


class OneLineErrors(logging.Filter):
    """Makes one ERROR line of the traceback that Prefect logs for an RLoopError, once for all flows that it ends."""

    def __init__(self) -> None:
        super().__init__()
        self._said: RLoopError | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record; False for an error that is in the log already."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        cause = cause_of(error) if error else None
        if cause is None:
            return True
        record.msg, record.args, record.exc_info = printable_line(str(cause), 1000), (), None
        said, self._said = self._said, cause
        return said is not cause


@cache
def log_errors_in_one_line() -> None:
    """Apply `OneLineErrors` to the logs of flow and task runs."""
    one_line = OneLineErrors()
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(one_line)
