"""The machine under test and the memory in use on it, asked from outside of the processes that take it."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import threading
import time
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from rloop_core.plan.estimate import DEVICES, Device
from rloop_core.stages.identity import versions

ROOT = Path(__file__).parents[2]
GIB, MIB = 2**30, 2**20
TOLERANCE = 64 * MIB
"""Memory that may stay in use: the driver counts in pages of 2 MiB, and keeps a little for its last client."""
_SHOWN = ("python", "torch", "transformers", "trl", "accelerate", "vllm", "deepspeed", "peft")
_SAMPLE_SECONDS = 0.25


class Gpu(NamedTuple):
    """A GPU as its driver describes it; memory in bytes, of all processes together."""

    name: str
    driver: str
    used: int
    total: int


def gpu() -> Gpu | None:
    """Return the first GPU that CUDA programs see here, or None.

    Asks nvidia-smi: a program that asks CUDA takes memory of the device.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if visible in ("", "-1"):
        return None
    query = "--query-gpu=name,driver_version,memory.used,memory.total"
    command = ["nvidia-smi", f"--id={visible}", query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    name, driver, used, total = (cell.strip() for cell in answer.split(","))
    return Gpu(name, driver, int(used) * MIB, int(total) * MIB)


def has_vllm() -> bool:
    """Return True if vLLM is installed."""
    return find_spec("vllm") is not None


def planned_device(device: str) -> Device | None:
    """Return what `rloop plan` knows of this device; None if it does not know it."""
    found = gpu() if device == "cuda" else None
    name = found.name.lower().replace(" ", "") if found else ""
    return next((known for kind, known in DEVICES.items() if kind in name), None)


def heading(device: str, small: bool) -> str:
    """Return device, driver, date, commit and versions in a line."""
    found = gpu() if device == "cuda" else None
    machine = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    if found:
        machine = f"{found.name} of {found.total / GIB:.1f} GiB, driver {found.driver}, {machine}"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # a copied tree may lack its history
        commit = "unknown"
    libraries = ", ".join(f"{name} {number}" for name, number in versions().items() if name in _SHOWN)
    return f"{machine}{', small' if small else ''}; {date.today()}, commit {commit}; {libraries}"


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
        raise RuntimeError("nvidia-smi does not answer: the GPU's memory in use is unknown")
    return found.used


def settled_bytes(device: str, below: int, patience: float = 10.0) -> int:
    """Return the memory in use, after waiting some seconds for it to fall: a driver frees it after its process ends."""
    deadline = time.monotonic() + patience
    while (used := device_bytes(device)) > below and time.monotonic() < deadline:
        time.sleep(_SAMPLE_SECONDS)
    return used


class PeakMemory:
    """Samples memory while its block runs: `before` and `device_peak` of the device, `host_peak` of descendants."""

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
