"""Start a run from one command, with an embedded Prefect API unless one is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flows.embedded import CONSOLE_LEVEL, early_server, prefect_api
from rloop_core.config import Config
from rloop_core.errors import RESUMES, RLoopError, StageError, cause_of

if TYPE_CHECKING:
    from rloop_core.runtime.events import OnRunEvent


def run_locally(config: Config, listener: OnRunEvent) -> None:
    """Run or resume the flow of the config's arm, `rloop` or `vanilla-rl`, in this process.

    Raises:
        RLoopError: The error of the first stage that failed.
    """
    with early_server() as server:
        from rloop_core.stages.process import start_fork_server
        from tasks.session import open_run, watched_by

        # The flows share this session. It is opened here to report errors in the input before Prefect is loaded.
        with watched_by(listener), open_run(config) as run:
            if run.runner.remaining():  # or finished stages would be replaced: refused before Prefect is loaded
                run.runner.check()
                start_fork_server()
            with prefect_api(server):
                _run_flow(config)


def _run_flow(config: Config) -> None:
    from flows.rloop import rloop
    from flows.server_errors import DELETED, was_deleted
    from flows.vanilla_rl import vanilla_rl

    try:
        (vanilla_rl if config.arm == "vanilla-rl" else rloop)(config)
    except RLoopError:
        raise
    except Exception as error:
        cause = cause_of(error)
        if cause is not None:
            raise cause from error
        if was_deleted(error):
            raise StageError(DELETED, field="prefect", fix=RESUMES) from error
        what, fix = f"{type(error).__name__}: {error}", f"for the traceback, set {CONSOLE_LEVEL}=ERROR"
        raise StageError(what, field="prefect", fix=fix) from error
