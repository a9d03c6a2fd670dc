"""The policy that ships with rloop, and how it is made from its seed: corpus, tokenizer, training, measurement."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.organism.card import figures, sample
from benchmarks.organism.pretrain import Recipe, build_model, build_tokenizer, pretrain
from benchmarks.organism.styles import MIXTURE, RARE, SCHOOL, Style
from benchmarks.organism.sums import (
    RL_SETS,
    TASK,
    Lesson,
    SumSet,
    encode,
    first_seed,
    texts,
    tokenizer_texts,
    worked_sums,
)

_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_VERSIONS = ("torch", "transformers", "tokenizers", "reasoning-gym")


@dataclass(frozen=True)
class Organism:
    """A policy that can be made again."""

    shape: dict[str, Any]
    """Parameters of `chain_sum` for the corpus."""
    mixture: Sequence[Style]
    """The styles of its habits."""
    sets: Sequence[SumSet]
    """Problems that its corpus leaves out; it is measured on those called held_out and harder."""
    recipe: Recipe

    def lessons(self, recipe: Recipe) -> list[Lesson]:
        """Return the corpus in order: the share `school` teaches every style, the rest the habits of the mixture."""
        total, school = recipe.steps * recipe.batch, round(recipe.steps * recipe.school) * recipe.batch
        return [(school, SCHOOL), (total - school, self.mixture)]


DEMO = Organism(
    shape={"min_terms": 2, "max_terms": 7, "min_digits": 1, "max_digits": 1},
    mixture=MIXTURE,
    sets=RL_SETS,
    recipe=Recipe(school=0.65),
)
"""Can gain much from a rare style: `make demo` and `make study`."""


def make_policy(
    organism: Organism, recipe: Recipe, samples: int, out: Path, log: Callable[[str], None]
) -> dict[str, Any]:
    """Train, measure and write the policy into `out`, its card last; return the card.

    Uses one thread, so that the same seed gives the same weights on the same kind of machine. The card has the figures
    of so many samples of every held-out and harder problem. `log` is called with a line on each phase.
    """
    import torch

    torch.set_num_threads(1)
    excluded = texts(organism.sets)
    tokenizer = build_tokenizer(tokenizer_texts(recipe.seed, organism.shape, excluded), recipe.context)
    items = encode(list(worked_sums(recipe.seed, organism.shape, organism.lessons(recipe), excluded)), tokenizer)
    log(f"corpus: {len(items):,} sums")
    model = build_model(recipe, tokenizer)

    def on_step(step: int, loss: float) -> None:
        if step % 100 == 0 or step == recipe.steps:
            log(f"pretraining: step {step} of {recipe.steps}, loss {loss:.4f}")

    loss = pretrain(model, items, recipe, on_step)
    measured = {}
    for chosen in organism.sets:
        if chosen.name in ("held_out", "harder"):
            log(f"measuring on {chosen.name}: {chosen.size} problems, {samples} samples each")
            problems = chosen.problems()
            measured[chosen.name] = figures(problems, sample(model, tokenizer, problems, samples, recipe.seed))
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    card = _card(organism, recipe, model.num_parameters(), loss, measured, out)
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors writes 0600: unreadable to other users of an installed package
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return card


def _card(
    organism: Organism, recipe: Recipe, parameters: int, loss: float, measured: dict[str, Any], out: Path
) -> dict[str, Any]:
    lessons = [
        {"size": size, "styles": [asdict(style) for style in styles]} for size, styles in organism.lessons(recipe)
    ]
    return {
        "what": "rloop's bundled policy: a model organism, not a product",
        "architecture": "qwen2",
        "parameters": parameters,
        "seed": recipe.seed,
        "recipe": asdict(recipe),
        "final_loss": round(loss, 4),
        "corpus": {"task": TASK, "params": organism.shape, "seed": first_seed(recipe.seed), "lessons": lessons},
        "mixture": [asdict(style) for style in organism.mixture],
        "rare_style": RARE,
        "template": "plain",
        "problem_sets": {chosen.name: chosen.as_source() for chosen in organism.sets},
        "disjoint": len(texts(organism.sets)) == sum(chosen.size for chosen in organism.sets),
        "figures": measured,
        "versions": {name: version(name) for name in _VERSIONS},
        "files": {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in _FILES},
    }
