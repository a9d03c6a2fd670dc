"""Start the flow from one command, with an embedded Prefect: no server to start, none left behind."""

from flows.embedded import prefect_api
from rloop_core.config import Config
from rloop_core.errors import RLoopError, StageError
from rloop_core.stages.process import warm_up
from rloop_core.store import Store, manifest_key
from tasks.session import Listener, watched_by


def run_locally(config: Config, listener: Listener) -> None:
    """Run or resume the flow `rloop` in this process.

    Raises:
        RLoopError: The first stage that failed, as it failed.
    """
    if not _looks_finished(config):
        warm_up()
    with prefect_api(), watched_by(listener):
        from flows.rloop import rloop

        try:
            rloop(config)
        except RLoopError:
            raise
        except Exception as error:
            cause = _first_cause(error)
            if cause is not None:
                raise cause from error
            raise StageError(f"{type(error).__name__}: {error}", field="prefect") from error


def _looks_finished(config: Config) -> bool:
    """Whether the last iteration's policy is there, so that there may be nothing to compute."""
    store = Store(config.placement.store)
    return store.exists(manifest_key(config.name, config.iterations - 1, "rft"))


def _first_cause(error: BaseException | None) -> RLoopError | None:
    while error is not None:
        if isinstance(error, RLoopError):
            return error
        error = error.__cause__ or error.__context__
    return None
