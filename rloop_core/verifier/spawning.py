"""Worker processes from a fork server of our own: safe from threads, quick to replace, gone when the caller is gone.

`spawn` costs an import of the engine for every worker that is killed, and both `spawn` and the shared fork server run
the caller's `__main__` again, which breaks scripts without a main guard. This context keeps one clean, single-threaded
server per caller process that has the engine imported, and forks workers from it in milliseconds.

A worker asks the kernel for SIGKILL at its server's death. That is safe here and would not be in the caller: the signal
is tied to the parent *thread*, and the server has only one, while a pool's workers would start from passing threads.
"""

from __future__ import annotations

import io
import os
import resource
import signal
from multiprocessing import context, forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.process import BaseProcess
from typing import Any

from rloop_core.lifelines import die_with_parent

_servers: dict[int, forkserver.ForkServer] = {}


def _server() -> forkserver.ForkServer:
    """This process's fork server; a forked child of the caller gets one of its own."""
    pid = os.getpid()
    if pid not in _servers:
        server = forkserver.ForkServer()
        server.set_forkserver_preload(["rloop_core.verifier.preload"])
        _servers[pid] = server
    return _servers[pid]


class _Popen(popen_forkserver.Popen):
    def _launch(self, process_obj: BaseProcess) -> None:
        """As the standard one, but from our own server and without the caller's `__main__`."""
        preparation = spawn.get_preparation_data(process_obj.name)
        preparation.pop("init_main_from_name", None)
        preparation.pop("init_main_from_path", None)
        buffer = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, writer = _server().connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        kept = os.dup(writer)  # its end of file tells the child that the caller is gone
        self.finalizer = util.Finalize(
            self,
            util.close_fds,  # type: ignore[attr-defined]
            (kept, self.sentinel),
        )
        with open(writer, "wb", closefd=True) as pipe:
            pipe.write(buffer.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class _Process(context.ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802 (the name that multiprocessing calls)
        return _Popen(process_obj)


class VerifierContext(context.ForkServerContext):
    """A multiprocessing context whose processes come from this process's own fork server."""

    Process = _Process


def prepare_worker(memory_mb: int) -> None:
    """In a fresh worker: die with the parent, take at most memory_mb MiB of address space, be silent, be warm."""
    inherited = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if inherited is not None:
        os.close(inherited)  # while workers hold it the server believes that the caller lives
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would wait for the C code that hangs
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    from rloop_core.verifier.engine import warm_up

    warm_up()
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
