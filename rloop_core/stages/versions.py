"""Versions of what computed an artifact, read from package metadata so that nothing heavy is imported."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "rloop",
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "peft",
    "datasets",
    "vllm",
    "deepspeed",
    "math-verify",
    "polars",
    "pyarrow",
    "numpy",
    "prefect",
    "reasoning-gym",
)


def versions() -> dict[str, str]:
    """Package name to version, for what is installed, and Python's own."""
    from rloop_core.verifier import VERIFIER_VERSION

    found = {"python": platform.python_version(), "verifier": VERIFIER_VERSION}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
