"""The bundled policy: a tiny Qwen2-architecture model that behaves like a policy worth training.

A *model organism*: it was pretrained on sums and differences worked in several styles of different
reliability, so that it solves some problems often, some rarely and some only by a rare style. RLoop's
effects (sharpening, forgetting, the value of rollouts from hard problems) can be watched on it within
minutes and without a GPU. `python -m rloop_core.organism --out DIR` makes it again, from a seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

POLICY_NAME = "policy"


def bundled_policy_path() -> Path:
    """Directory of the shipped policy: config, safetensors, tokenizer, card.

    Raises FileNotFoundError if the package was installed without its data.
    """
    path = Path(__file__).parent / POLICY_NAME
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path}: the bundled policy is missing from this installation")
    return path


def bundled_card() -> dict[str, Any]:
    """The shipped policy's `card.json`: recipe, problem sets, measured figures, digests."""
    card: dict[str, Any] = json.loads((bundled_policy_path() / "card.json").read_text(encoding="utf-8"))
    return card
