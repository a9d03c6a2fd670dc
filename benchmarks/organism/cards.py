"""The model card of a bundled policy: README.md from card.json."""

from __future__ import annotations

from typing import Any

_SHOWN = ("8", "16", "32")
_NUMBERS = {3: "three", 4: "four"}


def model_card(card: dict[str, Any]) -> str:
    """Return the card as Markdown."""
    held, harder = card["figures"]["held_out"], card["figures"]["harder"]
    sizes = [lesson["size"] for lesson in card["corpus"]["lessons"]]
    corpus, school, styles = sum(sizes), sizes[0], len(card["mixture"])
    taught = f"The first\n{school:,} showed every style without mistakes; the rest gave" if school else "They\ngave"
    disjoint = "The sets are disjoint, and the corpus" if card["disjoint"] else "The corpus"
    habits = f"each worked in one of {_NUMBERS[styles]} styles. {taught} it these habits:"
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
It was pretrained on {corpus:,} sums from reasoning-gym's `chain_sum`, {habits}

| style | share of them | slips a step | drops minus signs | share of samples | accuracy of samples |
|---|---|---|---|---|---|
{mixture}

{_rare(card)}| problems | avg | pass@8 | pass@16 | pass@32 |
|---|---|---|---|---|
{measured}

Sampled at temperature 1 with template `plain` (the question and a newline). The last line is `Answer: 42`.

| set | problems | seed | terms |
|---|---|---|---|
{sets}

{disjoint} contains none of their questions. Recipe, digests and versions are in `card.json`.
Made by `python -m benchmarks.organism --out DIR --kind {card["kind"]} --seed {card["seed"]}`.
"""


def _rare(card: dict[str, Any]) -> str:
    """Return a paragraph on the rare style, or nothing without one."""
    if "rare_style" not in card:
        return ""
    held, harder = card["figures"]["held_out"], card["figures"]["harder"]
    rare, rare_harder = held["solved_only_by_rare_style"], harder["solved_only_by_rare_style"]
    return f"""`{card["rare_style"]}` is the rare style, and the only one that keeps its minus signs. It alone solved
{rare["16"]:.0%} of the held-out problems in 16 samples each ({rare["all"]:.0%} in {held["samples"]}), and of the harder
ones {rare_harder["16"]:.0%} ({rare_harder["all"]:.0%}).

"""
