"""Memory of the device and of the host while something runs, looked at from outside of the processes that take it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Self

from benchmarks.gpu.machine import gpu

GIB, MIB = 2**30, 2**20
TOLERANCE = 64 * MIB
"""What may be left in use: the driver counts in pages of 2 MiB, and keeps a little for whoever it has just served."""
_EVERY_SECONDS = 0.1


def host_bytes() -> int:
    """Resident memory of every process below this one; what two of them share counts twice."""
    import psutil

    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def device_bytes(device: str) -> int:
    """Memory in use: the GPU's by whomever; on a CPU that of the processes below this one."""
    if device == "cpu":
        return host_bytes()
    found = gpu()
    if found is None:
        raise RuntimeError("the driver does not say how much memory is in use: neither NVML nor nvidia-smi answers")
    return found.used


def settled_bytes(device: str, below: int, patience: float = 10.0) -> int:
    """Memory in use, given some seconds to fall below a mark: a driver frees it a moment after its process ended."""
    deadline = time.monotonic() + patience
    while (used := device_bytes(device)) > below and time.monotonic() < deadline:
        time.sleep(_EVERY_SECONDS)
    return used


class Watch:
    """Peaks while its block runs, from samples ten times a second.

    Attributes:
        before: Bytes of the device in use when the block began.
        device_peak: Most bytes of the device in use.
        host_peak: Most resident bytes of processes below this one.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory watch", daemon=True)
        self.before = self.device_peak = device_bytes(device)
        self.host_peak = 0

    @property
    def taken(self) -> int:
        """Most bytes of the device that came on top of what was in use before."""
        return self.device_peak - self.before

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            host = host_bytes()
            self.host_peak = max(self.host_peak, host)
            self.device_peak = max(self.device_peak, host if self._device == "cpu" else device_bytes(self._device))
