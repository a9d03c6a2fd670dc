"""The bundled policies: tiny Qwen2-architecture models that behave like policies worth training.

*Model organisms*: pretrained on sums and differences worked in several styles of different reliability, so that they
solve some problems often and some rarely. RLoop's effects (sharpening, overfitting, forgetting, the value of rollouts
from hard problems) can be watched on them within minutes and without a GPU. `python -m benchmarks.organism --out DIR`
makes one again, from a seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

POLICIES = {"bundled": "demo", "bundled:study": "study"}
"""What `policy.path` calls a shipped policy, and its folder here: that of `make demo` and that of `make study`."""


def bundled_policy_path(name: str = "bundled") -> Path:
    """Directory of a shipped policy: config, safetensors, tokenizer, card.

    Raises FileNotFoundError if the package was installed without its data.
    """
    path = Path(__file__).parent / POLICIES[name]
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path}: the bundled policy is missing from this installation")
    return path


def bundled_card(name: str = "bundled") -> dict[str, Any]:
    """A shipped policy's `card.json`: recipe, problem sets, measured figures, digests."""
    card: dict[str, Any] = json.loads((bundled_policy_path(name) / "card.json").read_text(encoding="utf-8"))
    return card
