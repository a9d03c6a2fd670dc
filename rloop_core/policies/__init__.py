"""The bundled policies: tiny Qwen2 models that behave like policies worth training.

They are *model organisms*, pretrained on sums and differences worked in several styles of different reliability, so
they solve some problems often and others rarely. They show sharpening, overfitting, forgetting, and the value of
rollouts from hard problems within minutes and without a GPU. `python -m benchmarks.organism --out DIR` makes one again
from a seed.
"""

from __future__ import annotations

from pathlib import Path

POLICIES = {"bundled": "demo", "bundled:study": "study"}
"""`policy.path` of each bundled policy and its folder here; `make demo` uses the first, `make study` the second."""


def bundled_policy_path(name: str = "bundled") -> Path:
    """Return the folder of a bundled policy: config, safetensors, tokenizer, card.

    Raises:
        FileNotFoundError: The package was installed without its data.
    """
    path = Path(__file__).parent / POLICIES[name]
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path}: the bundled policy is missing from this installation")
    return path
