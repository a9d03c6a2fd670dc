"""A device without room: another process holds all of a GPU's memory but a little; on a CPU a limit does its part."""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
from collections.abc import Iterator
from multiprocessing.connection import Connection

from rloop_core.runtime.lifetime import die_with_parent

_MORE_ON_CPU = 96 * 2**20


@contextlib.contextmanager
def all_but(device: str, left: int) -> Iterator[None]:
    """Leave so many bytes of the GPU while the block runs.

    On a CPU the fork server, which stages start from, may instead take no more than a little address space beyond what
    it has: a stage has its libraries, and no room for its tensors. One stage must have run before, so that it has them.
    """
    if device == "cpu":
        with _little_space():
            yield
        return
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(left, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        mine.recv()
        yield
    finally:
        mine.close()
        process.join(30)


def _hold(left: int, pipe: Connection) -> None:
    import torch

    die_with_parent()
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - left), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    pipe.send(held.numel())
    with contextlib.suppress(EOFError):
        pipe.recv()


@contextlib.contextmanager
def _little_space() -> Iterator[None]:
    import psutil

    server = next(one for one in psutil.Process().children() if any("forkserver" in part for part in one.cmdline()))
    before = server.rlimit(resource.RLIMIT_AS)
    server.rlimit(resource.RLIMIT_AS, (server.memory_info().vms + _MORE_ON_CPU, before[1]))
    try:
        yield
    finally:
        server.rlimit(resource.RLIMIT_AS, before)
