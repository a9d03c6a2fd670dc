"""One stage of a run, on a worker of another pool than the run's own; the run starts it, as `placement.pools` says."""

import threading
import time
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled

from flows.orphaned import outlives_worker
from rloop_core.cli.words import step_in_words
from rloop_core.config.placement import StageName
from rloop_core.stages.carry_out import NoLongerWanted, carry_out
from rloop_core.stages.errand import Errand, place_of
from rloop_core.store import Store
from tasks.credentials import take_credentials
from tasks.slots import run_in_turn
from tasks.stage_log import StageLog

_LINE_SECONDS = 10.0
_TICK_SECONDS = 2.0


def _name() -> str:
    """`explore-000`, as the task of the run that waits for it is called."""
    given = flow_run.parameters
    return f"{given['stage']}-{place_of(int(given['iteration']))}"


@flow(name="rloop-stage", flow_run_name=_name, persist_result=False)
def rloop_stage(store: str, run: str, stage: StageName, iteration: int, errand: str) -> Any:
    """Compute a stage for a run that waits for it; not to be started by hand.

    Args:
        store: The run's object store.
        run: The run's name.
        stage: The stage.
        iteration: Its iteration; -1 for the evaluation of theta_0.
        errand: Which of the run's requests this is.
    """
    take_credentials()
    try:
        with outlives_worker(), _Log() as log:
            manifest = carry_out(Errand(Store(store), run, stage, iteration, errand), log.on_event, run_in_turn)
    except NoLongerWanted as error:
        return _cancelled(str(error))
    return {"stage": stage, "iteration": iteration, "digest": manifest.digest}


def _cancelled(message: str) -> State:
    return Cancelled(message=message)


class _Log:
    """Shows in the flow run's log what a stage prints, and its progress every ten seconds at most."""

    def __init__(self) -> None:
        self._logger = get_run_logger()
        self._printed = StageLog(lambda level, line: self._logger.log(level, "log: %s", line))
        self._spoke = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="stage-log", daemon=True)

    def __enter__(self) -> "_Log":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop.set()
        self._thread.join()
        self._printed.close()

    def on_event(self, event: dict[str, Any]) -> None:
        """Take one event of the stage."""
        now = time.monotonic()
        kind = event.get("kind")
        if kind == "log":
            self._printed.follow(Path(event["path"]))
        elif kind == "note":
            self._logger.info("%s", event.get("note"))
        elif kind == "step" and now - self._spoke > _LINE_SECONDS:
            self._spoke = now
            words = step_in_words(event.get("metrics") or {})
            self._logger.info("%s of %s %s", event.get("done"), event.get("total"), words)

    def _keep_up(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            self._printed.tick()
