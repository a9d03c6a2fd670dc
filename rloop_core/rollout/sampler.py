"""Completions from a policy with transformers' `generate`, in batches of like lengths, with a seed for every batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rloop_core.rollout.policy import eos_token_ids
from rloop_core.rollout.prompts import EncodedProblem
from rloop_core.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class SamplingSettings:
    """How completions are drawn.

    Args:
        samples: Completions a problem.
        temperature: Softmax temperature.
        top_p: Nucleus mass.
        max_tokens: Completion budget, in tokens.
        batch: Sequences generated together.
        seed: Seed of the whole draw.
    """

    samples: int
    temperature: float
    top_p: float
    max_tokens: int
    batch: int
    seed: int


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    Args:
        problem: Its problem.
        sample: Index among the problem's samples.
        token_ids: Sampled ids, the ending eos included.
        text: Decoded without special tokens.
        finished: Whether it ended by itself.
    """

    problem: EncodedProblem
    sample: int
    token_ids: list[int]
    text: str
    finished: bool


def plan_batches(problems: Sequence[EncodedProblem], settings: SamplingSettings) -> list[list[tuple[int, int]]]:
    """(problem index, sample) pairs in batches; prompts of like length go together, to waste little on padding."""
    order = sorted(range(len(problems)), key=lambda index: (len(problems[index].prompt_ids), index))
    pairs = [(index, sample) for index in order for sample in range(settings.samples)]
    return [pairs[start : start + settings.batch] for start in range(0, len(pairs), settings.batch)]


class TransformersSampler:
    """Draws completions from a loaded policy. Each batch has a seed of its own, so any batch can be redrawn alone."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._eos = eos_token_ids(model, tokenizer)

    def sample(
        self, problems: Sequence[EncodedProblem], settings: SamplingSettings, skip_batches: int = 0
    ) -> Iterator[list[Completion]]:
        """Completions batch by batch, in the order of `plan_batches`; the first `skip_batches` are not drawn."""
        for index, pairs in enumerate(plan_batches(problems, settings)):
            if index >= skip_batches:
                yield self._draw(problems, pairs, settings, index)

    def _draw(
        self, problems: Sequence[EncodedProblem], pairs: list[tuple[int, int]], settings: SamplingSettings, index: int
    ) -> list[Completion]:
        import torch
        from transformers import GenerationConfig

        prompts = [{"input_ids": list(problems[which].prompt_ids)} for which, _ in pairs]
        inputs = self._tokenizer.pad(prompts, padding_side="left", return_tensors="pt").to(self._model.device)
        torch.manual_seed(derive_seed(settings.seed, "batch", index))
        config = GenerationConfig(
            max_new_tokens=settings.max_tokens,
            do_sample=True,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=0,
            eos_token_id=self._eos,
            pad_token_id=self._tokenizer.pad_token_id,
            bos_token_id=self._tokenizer.bos_token_id,
            disable_compile=True,
        )
        with torch.inference_mode():
            output = self._model.generate(**inputs, generation_config=config)  # type: ignore[operator]
        rows = [self._cut(row) for row in output[:, inputs["input_ids"].shape[1] :].tolist()]
        texts = self._tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [
            Completion(problems[which], sample, row, text, bool(row) and row[-1] in self._eos)
            for (which, sample), row, text in zip(pairs, rows, texts, strict=True)
        ]

    def _cut(self, row: list[int]) -> list[int]:
        """The completion up to and with its first eos."""
        end = next((place for place, token in enumerate(row) if token in self._eos), len(row))
        return row[: end + 1]
