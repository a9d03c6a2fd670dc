"""Makes the policy from its seed: corpus, tokenizer, training, measurement; the card is written last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.organism.cards import model_card
from benchmarks.organism.corpus import encode, first_seed, tokenizer_texts, worked_sums
from benchmarks.organism.kinds import ORGANISMS, Organism
from benchmarks.organism.measure import figures, sample
from benchmarks.organism.pretrain import Recipe, build_model, pretrain
from benchmarks.organism.styles import RARE
from benchmarks.organism.sums import TASK, SumSet, texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM


Progress = Callable[[str, int], Callable[[int], None]]
"""Given a title and a total, begins a bar and returns what advances it."""


def make_policy(organism: Organism, recipe: Recipe, samples: int, out: Path, progress: Progress) -> dict[str, Any]:
    """Trains, measures and writes the policy into `out`; returns its card.

    `samples` completions of every held-out and harder problem are drawn for the card. One thread, so that the
    same seed gives the same weights on the same kind of machine.
    """
    import torch

    torch.set_num_threads(1)
    excluded = texts(organism.sets)
    tokenizer = build_tokenizer_for(organism, recipe, excluded)
    advance = progress("corpus", 1)
    items = encode(list(worked_sums(recipe.seed, organism.shape, organism.lessons(recipe), excluded)), tokenizer)
    advance(1)
    model = build_model(recipe, tokenizer)
    advance = progress("pretraining", recipe.steps)
    loss = pretrain(model, items, recipe, lambda step, value: advance(1))
    measured = {s.name: _measure(model, tokenizer, s, samples, recipe.seed, progress) for s in organism.measured}
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    card = _card(organism, recipe, model.num_parameters(), loss, measured, out)
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors writes 0600: unreadable to other users of an installed package
    (out / "README.md").write_text(model_card(card), encoding="utf-8")
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return card


def build_tokenizer_for(organism: Organism, recipe: Recipe, excluded: frozenset[str]) -> PreTrainedTokenizerBase:
    """The tokenizer a recipe's seed gives."""
    from benchmarks.organism.tokenizer import build_tokenizer

    return build_tokenizer(tokenizer_texts(recipe.seed, organism.shape, excluded), recipe.context)


def _measure(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    chosen: SumSet,
    samples: int,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    problems = chosen.problems()
    advance = progress(f"measuring {chosen.name}", len(problems) * samples)
    return figures(problems, sample(model, tokenizer, problems, samples, seed, advance))


def _card(
    organism: Organism, recipe: Recipe, parameters: int, loss: float, measured: dict[str, Any], out: Path
) -> dict[str, Any]:
    from importlib.metadata import version

    weights = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    return {
        "what": "rloop's bundled policy: a model organism, not a product",
        "kind": next(name for name, one in ORGANISMS.items() if one is organism),
        "architecture": "qwen2",
        "parameters": parameters,
        "seed": recipe.seed,
        "recipe": asdict(recipe),
        "final_loss": round(loss, 4),
        "corpus": {
            "task": TASK,
            "params": organism.shape,
            "seed": first_seed(recipe.seed),
            "lessons": [
                {"size": size, "styles": [asdict(s) for s in styles]} for size, styles in organism.lessons(recipe)
            ],
        },
        "mixture": [asdict(s) for s in organism.mixture],
        **({"rare_style": RARE} if RARE in {s.name for s in organism.mixture} else {}),
        "template": "plain",
        "problem_sets": {s.name: s.as_source() for s in organism.sets},
        "disjoint": len(texts(organism.sets)) == sum(s.size for s in organism.sets),
        "figures": measured,
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers", "reasoning-gym")},
        "files": {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in weights},
    }
