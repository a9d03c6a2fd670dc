"""Confine this process, then become a program: `python -I -S sandbox.py SETTINGS`, where SETTINGS is JSON.

On Linux, where the system allows namespaces, the program sees Python, the system's libraries and its own empty folder,
no network and no other process. Everywhere it is limited in processor time, memory, processes and file sizes. Only the
standard library is imported: this file is run by path.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

_NEW_USER, _NEW_PROCESSES = 0x10000000, 0x20000000
_NEW_MOUNTS, _NEW_IPC, _NEW_NETWORK = 0x00020000, 0x08000000, 0x40000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE, _NO_SUID, _NO_DEVICES = 1, 32, 4096, 16384, 1 << 18, 2, 4
_PDEATHSIG, _NO_NEW_PRIVILEGES = 1, 38
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_FIRST_USER, _USERS = 200_000, 100_000
"""User ids that no account has, one for each program, so that limits on processes count one program alone."""
NOT_STARTED = 101
"""Exit status of a program that was not started, for instance since confinement is refused here."""


def main(settings: dict[str, Any]) -> None:
    """Confine and limit this process, and run `settings["command"]` in `settings["folder"]`, which holds its files."""
    folder, root = settings["folder"], settings["root"]
    libc = ctypes.CDLL(None, use_errno=True)
    owner = _FIRST_USER + os.getpid() % _USERS if os.geteuid() == 0 else None
    if owner is not None:
        for path in (folder, *(str(each) for each in Path(folder).iterdir())):
            os.chown(path, owner, owner)
    if settings["confine"]:
        try:
            _enter_namespaces(libc, alone=owner is None)
            _await_child(libc, os.fork())
            _change_root(libc, root, folder, settings["readable"])
        except OSError:
            os._exit(NOT_STARTED)
    os.chdir(folder)
    if owner is not None:
        os.setgroups([])
        os.setgid(owner)
        os.setuid(owner)
    if sys.platform == "linux":
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for name, most in settings["limits"].items():
        limit = getattr(resource, name)
        hard = resource.getrlimit(limit)[1]
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some
            resource.setrlimit(limit, (most, most) if hard == resource.RLIM_INFINITY else (min(most, hard),) * 2)
    environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
    with contextlib.suppress(OSError):
        os.execve(settings["command"][0], settings["command"], environment)  # noqa: S606
    os._exit(NOT_STARTED)


def _enter_namespaces(libc: ctypes.CDLL, *, alone: bool) -> None:
    """Leave the system's network, processes and mounts; a user who is not root needs a user namespace for that."""
    user, group = os.geteuid(), os.getegid()
    kinds = _NEW_PROCESSES | _NEW_MOUNTS | _NEW_IPC | _NEW_NETWORK
    _check(libc.unshare(kinds | (_NEW_USER if alone else 0)))
    if alone:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _await_child(libc: ctypes.CDLL, child: int) -> None:
    """In the parent wait for the child and end as it did; the child, the first of its processes, goes on."""
    if not child:
        libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        return
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        os._exit(128 + os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _change_root(libc: ctypes.CDLL, root: str, folder: str, readable: list[str]) -> None:
    """Make `root` the file system: what Python needs, read-only, and the program's folder."""
    _mount(libc, None, "/", None, _RECURSIVE | _PRIVATE)
    _mount(libc, "tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, "size=1m,mode=755")
    for path in map(Path, (*_SYSTEM, *_DEVICES, *readable, folder)):
        target = Path(root + str(path))
        if not path.exists() or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
            continue
        if path.is_dir():
            target.mkdir()
        else:
            target.touch()
        _mount(libc, str(path), str(target), None, _BIND | _RECURSIVE)
        if str(path) not in (folder, *_DEVICES):
            with contextlib.suppress(OSError):  # some flags of a mount cannot be changed in a user namespace
                _mount(libc, None, str(target), None, _BIND | _REMOUNT | _READ_ONLY | _NO_SUID)
    os.chroot(root)


def _mount(
    libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "refused")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
