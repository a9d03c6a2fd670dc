"""The graders, their pinned packages, and one virtual environment for each."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".rloop" / "graders"
"""Environments, and the replies of earlier comparisons; ignored by git."""
_SYMPY = ("sympy==1.14.0", "mpmath==1.3.0")
_MATH_VERIFY = ("math-verify==0.9.0", "latex2sympy2_extended==1.11.0")


@dataclass(frozen=True)
class Grader:
    """A grader.

    Attributes:
        name: Name of its file in judges/ too.
        packages: Everything it needs, pinned; installed without dependencies, which would be gigabytes of ray, torch
            and datasets that grading does not use.
    """

    name: str
    packages: tuple[str, ...]

    @property
    def version(self) -> str:
        """The package it comes from, with its version."""
        return self.packages[0]

    def python(self) -> Path:
        """Return the interpreter of its environment, which is made if it is missing or has other packages."""
        folder = ROOT / self.name
        stamp = folder / "packages.txt"
        wanted = "\n".join(self.packages)
        if not stamp.exists() or stamp.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--no-compile", "--no-deps", *self.packages], check=True)
            stamp.write_text(wanted)
        return folder / "bin/python"


GRADERS = [
    Grader("math_dapo", ("verl==0.9.1",)),
    Grader(
        "prime_math",
        ("verl==0.9.1", *_SYMPY, "pylatexenc==2.10", "antlr4-python3-runtime==4.11.1", "numpy==2.4.6"),
    ),
    Grader(
        "minerva_math",
        ("lm-eval==0.4.13", *_MATH_VERIFY, *_SYMPY, "antlr4-python3-runtime==4.11.1"),
    ),
    Grader(
        "math_verify",
        (*_MATH_VERIFY, *_SYMPY, "antlr4-python3-runtime==4.13.2"),
    ),
]
