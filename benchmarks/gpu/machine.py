"""What the figures were measured on, and what is used of its memory, asked without touching the device."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from datetime import date
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rloop_core.plan.hours import DEVICES
from rloop_core.stages.identity import versions

ROOT = Path(__file__).parents[2]
_SHOWN = ("python", "torch", "transformers", "trl", "accelerate", "vllm", "deepspeed", "peft")


class Gpu(NamedTuple):
    """A GPU as its driver describes it; memory in bytes, that of all processes together."""

    name: str
    driver: str
    used: int
    total: int


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def gpu() -> Gpu | None:
    """The first GPU that CUDA programs see here; None where there is none.

    It is asked through NVML, else `nvidia-smi`: a program that asked CUDA would itself take memory of the device.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if visible in ("", "-1"):
        return None
    return _by_nvml(visible) or _by_nvidia_smi(visible)


def has_vllm() -> bool:
    """Whether vLLM is installed."""
    return find_spec("vllm") is not None


def planned_device(device: str) -> str | None:
    """What `rloop plan --gpu` calls this device; None for one that it does not know."""
    found = gpu() if device == "cuda" else None
    name = found.name.lower().replace(" ", "") if found else ""
    return "cpu" if device == "cpu" else next((kind for kind in DEVICES if kind in name), None)


def machine_facts(device: str, small: bool) -> dict[str, Any]:
    """Device, driver, versions, date and commit, for the table's heading."""
    found = gpu() if device == "cuda" else None
    installed = versions()
    return {
        "device": found.name if found else f"CPU ({os.cpu_count()} cores, {platform.machine()})",
        "driver": found.driver if found else None,
        "memory_gib": round(found.total / 2**30, 1) if found else None,
        "cores": os.cpu_count(),
        "small": small,
        "date": date.today().isoformat(),
        "commit": _commit(),
        "versions": {name: installed[name] for name in _SHOWN if name in installed},
    }


def _by_nvml(visible: str) -> Gpu | None:
    library = _nvml()
    if library is None:
        return None
    handle, memory = ctypes.c_void_p(), _Memory()
    name, driver = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    if visible.isdigit():
        missed = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(visible)), ctypes.byref(handle))
    else:
        missed = library.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(handle))
    missed = missed or library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    missed = missed or library.nvmlDeviceGetName(handle, name, ctypes.c_uint(96))
    missed = missed or library.nvmlSystemGetDriverVersion(driver, ctypes.c_uint(96))
    return None if missed else Gpu(name.value.decode(), driver.value.decode(), memory.used, memory.total)


@lru_cache(maxsize=1)
def _nvml() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None


def _by_nvidia_smi(visible: str) -> Gpu | None:
    fields = "name,driver_version,memory.used,memory.total"
    command = ["nvidia-smi", f"--id={visible}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        name, driver, used, total = (part.strip() for part in done.stdout.splitlines()[0].rsplit(",", 3))
        return Gpu(name, driver, int(used) * 2**20, int(total) * 2**20)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _commit() -> str:
    """The commit under test, `+` where files differ from it; a copy of the tree may come without its history."""
    try:
        told = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
