"""Processes forked from one that has imported everything: a run starts in milliseconds, its fork server too.

Everything else about them is as in a run started by hand: the flow has a fork server, which forks a supervisor for each
stage, which forks the stage. Only the fork server comes from `fork` where the library would execute a new interpreter.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import util
from pathlib import Path
from types import ModuleType

CRASHED = 99
"""Exit code of a process whose work raised what nobody expected."""
_ALWAYS = (
    "rloop_core.stages.harvest",
    "rloop_core.stages.filter",
    "rloop_core.stages.garbage",
    "rloop_core.stages.preflight",
    "rloop_core.cli.interrupt",
    "rloop_core.training.explore",
    "rloop_core.training.checkpoints",
    "rloop_core.training.metrics_log",
    "rloop_core.training.rollouts",
    "rloop_core.training.groups",
    "aiobotocore.session",
    "numpy",
    "pandas",
    "polars",
    "psutil",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "s3fs",
    "safetensors.numpy",
)
_FOR_REAL_STAGES = (
    "rloop_core.stages.preload",
    "rloop_core.stages.explore",
    "rloop_core.stages.rft",
    "rloop_core.stages.evaluate",
    "rloop_core.training.trainer",
    "rloop_core.training.callbacks",
    "reasoning_gym",
    "trl.rewards",
)
_spawn = util.spawnv_passfds


def import_everything(real_stages: bool) -> None:
    """Import what a run and its stages import, and have the S3 client's tables read once."""
    for name in _ALWAYS + (_FOR_REAL_STAGES if real_stages else ()):
        import_module(name)
    sys.modules.setdefault("rloop_core.stages.preload", ModuleType("rloop_core.stages.preload"))
    from botocore import loaders

    read: dict[str, object] = {}
    load = loaders.JSONFileLoader.load_file

    def load_once(self: loaders.JSONFileLoader, path: str) -> object:
        if path not in read:
            read[path] = load(self, path)
        return read[path]

    loaders.JSONFileLoader.load_file = load_once
    loader = loaders.Loader()
    for service, name in (("s3", "service-2"), ("s3", "endpoint-rule-set-1"), ("s3", "paginators-1")):
        loader.load_service_model(service, name)
    for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
        loader.load_data(name)
    gc.collect()
    gc.freeze()


def fork(work: Callable[[], int], log: Path | None = None, keep: Sequence[int] = ()) -> int:
    """The process id of a child that does some work and exits with what it returns.

    Args:
        work: What it does.
        log: Takes its stdout and stderr; without one they stay as they are.
        keep: Descriptors that it inherits beside 0, 1 and 2.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = CRASHED
    try:
        close_but(keep)
        if log is not None:
            with open(log, "ab", buffering=0) as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def close_but(keep: Sequence[int]) -> None:
    """Close every descriptor but 0, 1, 2 and those named, as executing a program would."""
    last = 2
    for descriptor in [*sorted(keep), 1 << 16]:
        os.closerange(last + 1, descriptor)
        last = descriptor


def _serve(code: str) -> int:
    """A fork server for as long as its starter lives, without the starter's handlers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    with suppress(SystemExit):
        exec(code, {})  # what the library would have had a new interpreter execute
    return 0


def fork_the_fork_server() -> None:
    """From now on, in this process and below, `multiprocessing`'s fork server is a fork of whoever starts it."""

    def spawn(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        code = arguments[-1]
        if "forkserver import main" not in code:
            return int(_spawn(path, arguments, descriptors))
        return fork(lambda: _serve(code), keep=descriptors)

    util.spawnv_passfds = spawn  # type: ignore[assignment]
