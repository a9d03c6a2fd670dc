"""Start a run from one command, with an embedded Prefect API unless one is configured."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from flows.embedded import CONSOLE_LEVEL, check_home, prefect_api
from rloop_core.config import Config
from rloop_core.errors import RESUMES, RLoopError, StageError, cause_of

if TYPE_CHECKING:
    from rloop_core.runtime.events import OnRunEvent


def run_locally(config: Config, listener: OnRunEvent) -> None:
    """Run or resume the flow of the config's arm, `rloop` or `vanilla-rl`, in this process.

    Raises:
        RLoopError: The error of the first stage that failed.
    """
    from rloop_core.stages.process import start_fork_server
    from tasks.session import open_run, watched_by

    # The flows share this session. It is opened here to report errors in the input before Prefect is loaded.
    with watched_by(listener), open_run(config) as run:
        if run.runner.remaining():  # or finished stages would be replaced: refused before Prefect is loaded
            from rloop_core.stages.preflight import check_light

            check_light(config, run.runner.store, run.runner.inputs)
            start_fork_server()
        with prefect_api():
            _run_flow(config)


def _run_flow(config: Config) -> None:
    from prefect.utilities import engine

    from tasks.prefect_workarounds import without_server
    from tasks.session import has_ui

    if config.arm == "vanilla-rl":
        from flows.vanilla_rl import vanilla_rl as flow
    else:
        from flows.rloop import rloop as flow

    # Prefect replaces the handler of SIGTERM while a flow runs. Its own would report the end to a server that may be
    # gone, for minutes; the command's ends it within seconds.
    if callable(handler := signal.getsignal(signal.SIGTERM)):
        engine._prefect_sigterm_handler = handler  # type: ignore[assignment]
    try:
        flow(config)
    except RLoopError:
        raise
    except Exception as error:
        if cause := cause_of(error):
            raise cause from error
        if lost := without_server(error):
            if not has_ui():
                check_home()
            raise StageError(lost, field="prefect", fix=RESUMES) from error
        what, fix = f"{type(error).__name__}: {error}", f"for the traceback, set {CONSOLE_LEVEL}=ERROR"
        raise StageError(what, field="prefect", fix=fix) from error
