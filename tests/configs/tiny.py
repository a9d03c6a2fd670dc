"""Policies of a known architecture, cut in size: random weights that were taught only to box a digit and to end."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.policy import Recipe, make_policy, problem_file

__all__ = ["problem_file", "tiny_policy"]


def tiny_policy(folder: Path, like: str, template: str, problems: Path) -> Path:
    """Save a policy with the architecture of a known model (kind, tying, head groups), cut in size."""
    return make_policy(folder, Recipe(like, head_dim=8), template, problems, "cpu")
