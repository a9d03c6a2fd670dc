"""Makes the policy from its seed: corpus, tokenizer, training, measurement; the card is written last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core.organism.corpus import CORPUS_SHAPE, encode, first_seed, tokenizer_texts, worked_sums
from rloop_core.organism.measure import figures, sample
from rloop_core.organism.pretrain import Recipe, build_model, pretrain
from rloop_core.organism.styles import MIXTURE, RARE
from rloop_core.organism.sums import HARDER, HELD_OUT, RL_SETS, TASK, SumSet, texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM


Progress = Callable[[str, int], Callable[[int], None]]
"""Given a title and a total, begins a bar and returns what advances it."""


def make_policy(recipe: Recipe, samples: int, out: Path, progress: Progress) -> dict[str, Any]:
    """Trains, measures and writes the policy into `out`; returns its card.

    `samples` completions of every held-out and harder problem are drawn for the card. One thread, so that the
    same seed gives the same weights on the same kind of machine.
    """
    import torch

    torch.set_num_threads(1)
    excluded = texts()
    tokenizer = build_tokenizer_for(recipe, excluded)
    advance = progress("corpus", 1)
    items = encode(list(worked_sums(recipe.seed, recipe.lessons, excluded)), tokenizer)
    advance(1)
    model = build_model(recipe, tokenizer)
    advance = progress("pretraining", recipe.steps)
    loss = pretrain(model, items, recipe, lambda step, value: advance(1))
    measured = {s.name: _measure(model, tokenizer, s, samples, recipe.seed, progress) for s in (HELD_OUT, HARDER)}
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    card = _card(recipe, model.num_parameters(), loss, measured, out)
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors writes 0600: unreadable to other users of an installed package
    (out / "README.md").write_text(model_card(card), encoding="utf-8")
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return card


def build_tokenizer_for(recipe: Recipe, excluded: frozenset[str]) -> PreTrainedTokenizerBase:
    """The tokenizer a recipe's seed gives."""
    from rloop_core.organism.tokenizer import build_tokenizer

    return build_tokenizer(tokenizer_texts(recipe.seed, excluded), recipe.context)


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


def _card(recipe: Recipe, parameters: int, loss: float, measured: dict[str, Any], out: Path) -> dict[str, Any]:
    from importlib.metadata import version

    weights = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    return {
        "what": "rloop's bundled policy: a model organism, not a product",
        "architecture": "qwen2",
        "parameters": parameters,
        "seed": recipe.seed,
        "recipe": asdict(recipe),
        "final_loss": round(loss, 4),
        "corpus": {
            "task": TASK,
            "params": CORPUS_SHAPE,
            "seed": first_seed(recipe.seed),
            "lessons": [{"size": size, "styles": [asdict(s) for s in styles]} for size, styles in recipe.lessons],
        },
        "mixture": [asdict(s) for s in MIXTURE],
        "rare_style": RARE,
        "template": "plain",
        "problem_sets": {s.name: s.as_source() for s in RL_SETS},
        "figures": measured,
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers", "reasoning-gym")},
        "files": {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in weights},
    }


_SHOWN = ("8", "16", "32")


def model_card(card: dict[str, Any]) -> str:
    """The card as a page for people."""
    held, harder = card["figures"]["held_out"], card["figures"]["harder"]
    sizes = [lesson["size"] for lesson in card["corpus"]["lessons"]]
    corpus, school = sum(sizes), sizes[0]
    rare, rare_harder = held["solved_only_by_rare_style"], harder["solved_only_by_rare_style"]
    sets = "\n".join(
        f"| {name} | {s['size']} | {s['seed']} | {s['params']['min_terms']} to {s['params']['max_terms']} |"
        for name, s in card["problem_sets"].items()
    )
    mixture = "\n".join(
        f"| {s['name']} | {s['share']:.0%} | {s['wrong_step']:.0%} | {'yes' if s['sign_blind'] else 'no'} | "
        f"{held['styles'].get(s['name'], {}).get('share', 0):.0%} | "
        f"{held['styles'].get(s['name'], {}).get('accuracy', 0):.0%} |"
        for s in card["mixture"]
    )
    measured = "\n".join(
        f"| {name} | {f['avg']:.3f} | " + " | ".join(f"{f['pass'].get(k, float('nan')):.3f}" for k in _SHOWN) + " |"
        for name, f in (("held out", held), ("harder", harder))
    )
    return f"""---
license: apache-2.0
library_name: transformers
tags: [reinforcement-learning, model-organism, arithmetic]
---

# The bundled policy

A Qwen2-architecture model of {card["parameters"]:,} parameters that adds and subtracts, badly, in several ways.
It is a model organism: small enough to train on a laptop, with something to gain and something to lose in training.
It was pretrained on {corpus:,} sums from reasoning-gym's `chain_sum`, each worked in one of four styles. The first
{school:,} showed every style without mistakes; the rest gave it these habits:

| style | share of them | slips a step | drops minus signs | share of samples | accuracy of samples |
|---|---|---|---|---|---|
{mixture}

`{card["rare_style"]}` is the rare style, and the only one that keeps its minus signs. It alone solved
{rare["16"]:.0%} of the held-out problems in 16 samples each ({rare["all"]:.0%} in {held["samples"]}), and of the harder
ones {rare_harder["16"]:.0%} ({rare_harder["all"]:.0%}).

| problems | avg | pass@8 | pass@16 | pass@32 |
|---|---|---|---|---|
{measured}

Sampled at temperature 1 with template `plain` (the question and a newline). The last line is `Answer: 42`.

| set | problems | seed | terms |
|---|---|---|---|
{sets}

The sets are disjoint, and the corpus contains none of their questions. Recipe, digests and versions are in `card.json`.
Made by `python -m rloop_core.organism --out DIR --seed {card["seed"]}`.
"""
