"""The first machine's part: find the others, tell them what to compute, and end everywhere what ends anywhere."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import RESUMES, ConfigError, RLoopError, StageCrashed, StageError, error_from_data
from rloop_core.machines.beats import BEAT_SECONDS, Beating, Watching
from rloop_core.machines.post import COMMAND, LAUNCH, NODE, post_folder, releases
from rloop_core.stages.job import Share, StageJob, StageOutcome
from rloop_core.stages.ranks import is_lost_peer, prepare

Event = dict[str, Any]
_PAUSE = 0.2
_TELL_SECONDS = 60.0


def check_machines(
    config: Config, tell: Callable[[str], None] = lambda line: None, should_stop: Callable[[], bool] = lambda: False
) -> None:
    """Wait until the other machines of a run are there, as long as placement says.

    Raises:
        ConfigError: Some are not; it says how to start them.
    """
    placement = config.placement
    if placement.machines == 1 or {"explore", "rft"} <= set(placement.pools):
        return
    assert placement.scratch
    _Others(post_folder(placement.scratch, config.name), config.model_dump(mode="json")).gather(tell, should_stop)


def run_on_machines(
    launch: Callable[..., StageOutcome],
    job: StageJob,
    tell: Callable[[Event], None],
    *,
    should_stop: Callable[[], bool],
    **limits: Any,
) -> StageOutcome:
    """Compute a stage on several machines, this one among them.

    Args:
        launch: Runs this machine's share: `run_in_process`.
        job: The whole stage.
        tell: Called with each progress event.
        should_stop: Asked several times a second; True ends it on all machines.
        **limits: For `launch`.

    Raises:
        RLoopError: Whatever ended it first, naming the machine.
    """
    placement = job.config["placement"]
    others = _Others(post_folder(placement["scratch"], job.run), job.config)
    names = others.gather(lambda line: tell({"kind": "note", "note": line}), should_stop)
    for left in Path(job.work).glob("outcome-*.json"):
        left.unlink(missing_ok=True)
    launched = uuid.uuid4().hex
    endpoint = _endpoint(placement.get("machines_address"))
    order = str(prepare(job))
    try:
        with Beating(others.folder / LAUNCH, id=launched, job=order, nodes=names, endpoint=endpoint):
            mine = replace(job, share=Share(0, len(names) + 1, endpoint))
            others.begin(launched, names)
            return launch(mine, tell, should_stop=lambda: should_stop() or others.trouble() is not None, **limits)
    except RLoopError as error:
        if should_stop():
            raise
        raise others.cause(error) from error


class _Others:
    """The nodes of a run, as the first machine sees them.

    Args:
        folder: The run's post.
        config: Its config as plain data.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        placement = config["placement"]
        self.folder = folder
        self._wanted = int(placement["machines"]) - 1
        self._silence = float(placement["machines_silence_seconds"])
        self._patience = 60 * float(placement["machines_patience_minutes"])
        self._run = config["name"]
        self._watch = Watching(folder)
        self._launched = ""
        self._names: list[str] = []
        self._trouble: RLoopError | None = None

    def gather(self, tell: Callable[[str], None], should_stop: Callable[[], bool]) -> list[str]:
        """Names of as many nodes as are needed, all of them free.

        Raises:
            ConfigError: They are not there, or have other releases.
            StageError: The run was told to stop.
        """
        began = told = time.monotonic()
        while True:
            self._watch.look()
            free = [name for name in self._living() if not self._said(name).get("busy")]
            if len(free) >= self._wanted:
                break
            now = time.monotonic()
            if should_stop():
                raise StageError("was told to stop while it waited for machines", field=self._run, fix=RESUMES)
            # A node that is there shows itself within a beat or two.
            if now - began > max(self._patience, 3 * BEAT_SECONDS):
                raise self._missing()
            if now - told > _TELL_SECONDS:
                told = now
                tell(f"waits for machines: {self._who()}")
            time.sleep(_PAUSE)
        for name in free[: self._wanted]:
            self._check_releases(name)
        return free[: self._wanted]

    def begin(self, launched: str, names: list[str]) -> None:
        """From now on, `trouble` and `cause` are about this launch."""
        self._launched, self._names, self._trouble = launched, names, None

    def trouble(self) -> RLoopError | None:
        """What a node reported of the launch, or that it is silent; None while all is well.

        Once it was in trouble it stays so: a node that is heard of again, late, was given up already.
        """
        if self._trouble is None:
            self._watch.look()
            self._trouble = next(iter(self._troubles()), None)
        return self._trouble

    def cause(self, mine: RLoopError) -> RLoopError:
        """Of what ended the launch on each machine, what ended it first; waits until every one reported or is silent.

        A rank that only lost another is not the cause, nor is what was ended because another machine asked for it.
        """
        deadline = time.monotonic() + self._silence + 5
        while time.monotonic() < deadline:
            self._watch.look()
            if all(self._is_through(name) for name in self._names):
                break
            time.sleep(_PAUSE)
        here = f"machine 0 ({socket.gethostname()})"
        first = [self._trouble] if self._trouble else []
        return min([*first, _placed(mine, here), *self._troubles()], key=_rank_of)

    def _troubles(self) -> list[RLoopError]:
        each = [self._trouble_of(number, name) for number, name in enumerate(self._names, start=1)]
        return [error for error in each if error]

    def _is_through(self, name: str) -> bool:
        return self._said(name).get("through") == self._launched or self._watch.silent_seconds(name) > self._silence

    def _trouble_of(self, number: int, name: str) -> RLoopError | None:
        said = self._watch.content(name)
        where = f"machine {number} ({_host(name)})"
        if said is None:
            return StageCrashed(f"{where} left: its `{COMMAND}` was ended", field=self._run, fix=RESUMES)
        if said.get("through") == self._launched and said.get("error"):
            return _placed(error_from_data(said["error"], self._run, "see the stage's log"), where)
        if (silent := self._watch.silent_seconds(name)) > self._silence:
            what = f"{where} is gone: no sign of life for {silent:.0f} s (placement.machines_silence_seconds)"
            return StageCrashed(what, field=self._run, fix=f"start `{COMMAND}` there again; {RESUMES}")
        return None

    def _living(self) -> list[str]:
        return [name for name in self._watch.names(NODE) if self._watch.lives(name, self._silence)]

    def _said(self, name: str) -> dict[str, Any]:
        return self._watch.content(name) or {}

    def _who(self) -> str:
        living = self._living()
        hosts = ", ".join([f"{socket.gethostname()} (this one)", *map(_host, living)])
        busy = sum(bool(self._said(name).get("busy")) for name in living)
        ending = f", {busy} of them busy ending an earlier attempt" if busy else ""
        return f"{len(living) + 1} of {self._wanted + 1} are there: {hosts}{ending}"

    def _missing(self) -> ConfigError:
        fix = (
            f"start `{COMMAND}` with the same options on {max(1, self._wanted - len(self._living()))} more, whose "
            f"{self.folder.parent.parent} is this machine's, or set placement.machines to how many there are"
        )
        return ConfigError(f"{self._who()}", field="placement.machines", fix=fix)

    def _check_releases(self, name: str) -> None:
        mine, theirs = releases(), self._said(name).get("releases", {})
        for package in sorted(mine.keys() | theirs.keys()):
            if mine.get(package) != theirs.get(package):
                what = f"{_host(name)} has {package} {theirs.get(package)}, this machine {mine.get(package)}"
                raise ConfigError(what, field="placement.machines", fix="install the same release on all machines")


def _placed(error: RLoopError, where: str) -> RLoopError:
    return type(error)(f"{where}: {error.what}", field=error.field, fix=error.fix)


def _rank_of(error: RLoopError) -> int:
    """Own errors first, then what crashed by itself, then silence, and last who lost another or was told to stop."""
    if is_lost_peer(error) or "told to stop" in error.what:
        return 3
    if " is gone: no sign" in error.what:
        return 2
    return 1 if isinstance(error, StageCrashed) else 0


def _host(name: str) -> str:
    return name.removeprefix(NODE).removesuffix(".json").rpartition("-")[0]


def _endpoint(given: str | None) -> str:
    """`address:port` at which the others reach this machine."""
    address, _, port = (given or "").partition(":")
    address = address or _own_address()
    if port:
        return f"{address}:{port}"
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{address}:{free.getsockname()[1]}"


def _own_address() -> str:
    """This machine's address on its default route; no packet is sent to find it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"
