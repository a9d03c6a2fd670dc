"""The machine under test and the memory in use on it, asked from outside of the processes that take it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
import threading
import time
from datetime import date
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from rloop_core.plan.hours import DEVICES
from rloop_core.stages.identity import versions

ROOT = Path(__file__).parents[2]
GIB, MIB = 2**30, 2**20
TOLERANCE = 64 * MIB
"""Memory that may stay in use: the driver counts in pages of 2 MiB, and keeps a little for its last client."""
_SHOWN = ("python", "torch", "transformers", "trl", "accelerate", "vllm", "deepspeed", "peft")
_SAMPLE_SECONDS = 0.1


class Gpu(NamedTuple):
    """A GPU as its driver describes it; memory in bytes, of all processes together."""

    name: str
    driver: str
    used: int
    total: int


def gpu() -> Gpu | None:
    """Return the first GPU that CUDA programs see here, or None.

    Asks NVML: a program that asks CUDA takes memory of the device.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    library = None if visible in ("", "-1") else _nvml()
    if library is None:
        return None
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    name, driver = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    if visible.isdigit():
        error = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(visible)), ctypes.byref(handle))
    else:
        error = library.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(handle))
    error = error or library.nvmlDeviceGetMemoryInfo(handle, memory)
    error = error or library.nvmlDeviceGetName(handle, name, ctypes.c_uint(96))
    error = error or library.nvmlSystemGetDriverVersion(driver, ctypes.c_uint(96))
    total, _, used = memory
    return None if error else Gpu(name.value.decode(), driver.value.decode(), used, total)


@lru_cache(maxsize=1)
def _nvml() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None


def has_vllm() -> bool:
    """Return True if vLLM is installed."""
    return find_spec("vllm") is not None


def planned_device(device: str) -> str | None:
    """Return this device's name in `rloop plan --gpu`; None if the plan does not know it."""
    found = gpu() if device == "cuda" else None
    name = found.name.lower().replace(" ", "") if found else ""
    return next((kind for kind in DEVICES if kind in name), None) if name else None


def machine_facts(device: str, small: bool) -> dict[str, Any]:
    """Return device, driver, versions, date and commit, for the table's heading."""
    found = gpu() if device == "cuda" else None
    installed = versions()
    return {
        "device": found.name if found else f"CPU ({os.cpu_count()} cores, {platform.machine()})",
        "driver": found.driver if found else None,
        "memory_gib": round(found.total / GIB, 1) if found else None,
        "cores": os.cpu_count(),
        "small": small,
        "date": date.today().isoformat(),
        "commit": _commit(),
        "versions": {name: installed[name] for name in _SHOWN if name in installed},
    }


def _commit() -> str:
    """Return the commit under test, with `+` where files differ; a copied tree may lack its history."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def host_bytes() -> int:
    """Return the resident memory of every descendant of this process; shared pages count for each."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def device_bytes(device: str) -> int:
    """Return the GPU's memory in use by all processes; on a CPU that of this process's descendants."""
    if device == "cpu":
        return host_bytes()
    found = gpu()
    if found is None:
        raise RuntimeError("NVML does not answer: the GPU's memory in use is unknown; install the driver's libraries")
    return found.used


def settled_bytes(device: str, below: int, patience: float = 10.0) -> int:
    """Return the memory in use, after waiting some seconds for it to fall: a driver frees it after its process ends."""
    deadline = time.monotonic() + patience
    while (used := device_bytes(device)) > below and time.monotonic() < deadline:
        time.sleep(_SAMPLE_SECONDS)
    return used


class PeakMemory:
    """Samples memory ten times a second while its block runs.

    Attributes:
        before: Bytes of the device in use when the block began.
        device_peak: Most bytes of the device in use.
        host_peak: Most resident bytes of descendants of this process.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak memory", daemon=True)
        self.before = self.device_peak = device_bytes(device)
        self.host_peak = 0

    @property
    def taken(self) -> int:
        """Most bytes of the device on top of what was in use before."""
        return self.device_peak - self.before

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            host = host_bytes()
            self.host_peak = max(self.host_peak, host)
            self.device_peak = max(self.device_peak, host if self._device == "cpu" else device_bytes(self._device))
