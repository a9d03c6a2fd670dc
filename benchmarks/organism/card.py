"""The figures of the bundled policy's card: what it scores, and who solved what by style."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.organism.styles import RARE, answer_of, detect
from benchmarks.organism.sums import Sum

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

MAX_NEW_TOKENS = 96
HARD = (0.1, 0.3, 0.5)
KS = (1, 4, 8, 16, 32)


def sample(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Sum],
    samples: int,
    seed: int,
    batch: int = 512,
) -> list[list[str | None]]:
    """Return completions of each problem at temperature 1; None for one without end-of-text in the budget."""
    import torch

    torch.manual_seed(seed)
    rows = [p for p in problems for _ in range(samples)]
    texts: list[str | None] = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        encoded = tokenizer([f"{p.question}\n" for p in part], return_tensors="pt", padding=True, padding_side="left")
        with torch.inference_mode():
            out = model.generate(**encoded, max_new_tokens=MAX_NEW_TOKENS, do_sample=True, top_k=0, top_p=1.0)
        for ids in out[:, encoded["input_ids"].shape[1] :].tolist():
            ended = tokenizer.eos_token_id in ids
            texts.append(tokenizer.decode(ids, skip_special_tokens=True) if ended else None)
    return [texts[i : i + samples] for i in range(0, len(texts), samples)]


def only_rare(solvers: Sequence[Sequence[str | None]]) -> float:
    """Return the share of problems that only the rare style solved; `solvers` has a style or None per sample."""
    return round(sum({*row} - {None} == {RARE} for row in solvers) / len(solvers), 4)


def figures(problems: Sequence[Sum], completions: Sequence[Sequence[str | None]]) -> dict[str, Any]:
    """Return avg, pass@k, each style's share and accuracy, and the share of problems only the rare style solved."""
    from rloop_core.evaluation.metrics import pass_at_k

    n = len(completions[0])
    share: Counter[str] = Counter()
    solvers: list[list[str | None]] = []
    for problem, texts in zip(problems, completions, strict=True):
        share.update("unfinished" if t is None else detect(t) for t in texts)
        solvers.append([detect(t) if t is not None and answer_of(t) == problem.gold else None for t in texts])
    right = Counter(style for row in solvers for style in row if style is not None)
    correct = [sum(style is not None for style in row) for row in solvers]
    rows = len(problems) * n
    return {
        "problems": len(problems),
        "samples": n,
        "avg": round(sum(correct) / rows, 4),
        "pass": {str(k): round(float(pass_at_k(n, correct, k).mean()), 4) for k in KS if k <= n},
        "styles": {
            name: {"share": round(count / rows, 4), "accuracy": round(right[name] / count, 4)}
            for name, count in sorted(share.items())
        },
        "solved": round(sum(c > 0 for c in correct) / len(correct), 4),
        "solved_only_by_rare_style": {"16": only_rare([row[:16] for row in solvers]), "all": only_rare(solvers)},
        "hard": {str(t): round(sum(0 < c / n < t for c in correct) / len(correct), 4) for t in HARD},
        "solved_by": [dict(sorted(Counter(s for s in row if s is not None).items())) for row in solvers],
    }
