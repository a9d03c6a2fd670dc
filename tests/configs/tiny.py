"""Policies of a known architecture, cut in size: random weights that were taught only to box a digit and to end."""

from __future__ import annotations

import json
from pathlib import Path

from rloop_core.organism.tokenizer import build_tokenizer
from rloop_core.plan.models import KNOWN
from rloop_core.problems.templates import render

CONTEXT = 4096


def problem_file(path: Path, first: int, count: int) -> Path:
    """Sums whose answers are 0, 1 or 2."""
    rows = [{"problem": f"What is {first + i + i % 3} - {first + i}?", "answer": str(i % 3)} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tiny_policy(folder: Path, like: str, template: str, problems: Path) -> Path:
    """Save a policy with the architecture of a known model (kind, tying, head groups), cut in size."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    known = KNOWN[like]
    prompts = [render(json.loads(line)["problem"], template) for line in problems.read_text().splitlines()]
    answers = [f"\\boxed{{{digit}}}" for digit in range(3)]
    tokenizer = build_tokenizer(prompts + answers * 20, max_length=CONTEXT)
    torch.manual_seed(0)
    groups = known["num_attention_heads"] // known["num_key_value_heads"]
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=8 * groups,
            num_hidden_layers=2,
            num_attention_heads=groups,
            num_key_value_heads=1,
            intermediate_size=64,
            max_position_embeddings=known["max_position_embeddings"],
            tie_word_embeddings=known["tie_word_embeddings"],
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    _teach(model, [tokenizer(prompt)["input_ids"] for prompt in prompts], [tokenizer(a)["input_ids"] for a in answers])
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _teach(model: object, prompts: list[list[int]], answers: list[list[int]]) -> None:
    """A few updates towards any of the answers, and its end, after every prompt."""
    import torch

    eos = model.config.eos_token_id  # type: ignore[attr-defined]
    rows = [(prompt, [*answer, eos]) for prompt in prompts[:4] for answer in answers]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), width), eos)
    labels = torch.full((len(rows), width), -100)
    for row, (prompt, answer) in enumerate(rows):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)  # type: ignore[attr-defined]
    for _ in range(60):
        loss = model(input_ids=ids, labels=labels).loss  # type: ignore[operator]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
