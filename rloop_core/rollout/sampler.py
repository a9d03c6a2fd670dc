"""Completions from a policy with transformers' `generate`, in batches of like lengths, with a seed for every batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rloop_core.rollout.cache import roomy_cache
from rloop_core.rollout.engine import (
    Completion,
    Drawn,
    SamplingSettings,
    batch_seed,
    completions_of,
    plan_batches,
)
from rloop_core.rollout.policy import eos_token_ids
from rloop_core.rollout.prompts import EncodedProblem
from rloop_core.rollout.samples import DrawnLogProbs

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

_STRETCH = 8
"""Tokens drawn before sequences that have ended may leave the batch; a quarter of the drawn ones where that is more."""
_WORTH_LEAVING = 0.125
"""Share of ended sequences from which on they do; moving the rest costs a copy of the cache."""


class TransformersSampler:
    """Draws completions from a loaded policy. Each batch has a seed of its own, so any batch can be redrawn alone.

    A prompt is read once for all its samples, and sequences that have ended leave the batch, which is what makes it
    faster than `generate` on each problem; `generate` still draws every token.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._eos = eos_token_ids(model, tokenizer)

    def sample(
        self, problems: Sequence[EncodedProblem], settings: SamplingSettings, batches: Collection[int] | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Batch after batch, in the order of `plan_batches`; see `RolloutEngine`."""
        for index, pairs in enumerate(plan_batches(problems, settings)):
            if batches is not None and index not in batches:
                continue
            prompts = [problems[which].prompt_ids for which, _ in pairs]
            drawn = self._draw_batch(prompts, settings, batch_seed(settings, index))
            yield index, completions_of(problems, pairs, drawn)

    def _draw_batch(self, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seed: int) -> list[Drawn]:
        import torch

        torch.manual_seed(seed)
        with torch.no_grad():
            rows, log_probs = self._draw(prompts, settings)
        texts = self._tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [
            Drawn(row, text, bool(row) and row[-1] in self._eos, log_prob)
            for row, text, log_prob in zip(rows, texts, log_probs, strict=True)
        ]

    def close(self) -> None:
        """Nothing runs beside this process."""

    def draw(self, prompts: Sequence[Sequence[int]], settings: SamplingSettings) -> list[list[int]]:
        """One completion a prompt, as token ids up to and with the first eos; torch's random state decides.

        Args:
            prompts: Token ids; equal ones are read once.
            settings: How to draw; at most `batch` sequences at a time.
        """
        import torch

        with torch.no_grad():
            parts = [
                self._draw(prompts[start : start + settings.batch], settings)[0]
                for start in range(0, len(prompts), settings.batch)
            ]
        return [row for part in parts for row in part]

    def _draw(
        self, prompts: Sequence[Sequence[int]], settings: SamplingSettings
    ) -> tuple[list[list[int]], list[float]]:
        """The completions, and the log-probability of each as it was drawn."""
        import torch

        inputs = self._tokenizer.pad(
            [{"input_ids": list(ids)} for ids in prompts], padding_side="left", return_tensors="pt"
        )
        ids, mask = (inputs[name].to(self._model.device) for name in ("input_ids", "attention_mask"))
        width = ids.shape[1]
        cache = self._read(ids, mask)
        completions: list[list[int]] = [[] for _ in prompts]
        noted: list[list[float]] = [[] for _ in prompts]
        watch = DrawnLogProbs(settings.temperature, settings.top_p)
        places = list(range(len(prompts)))  # which completion each row of the batch belongs to
        while places:
            drawn = ids.shape[1] - width
            ids = self._model.generate(  # type: ignore[operator]
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                generation_config=self._settings(min(max(_STRETCH, drawn // 4), settings.max_tokens - drawn)),
                logits_processor=[watch],
            )
            rows = [self._cut(row) for row in ids[:, width:].tolist()]
            ended = [row[-1] in self._eos or len(row) >= settings.max_tokens for row in rows]
            for place, row, log_probs in zip(places, rows, watch.take(ids), strict=True):
                completions[place] = row
                noted[place] += log_probs[: len(row) - len(noted[place])]
            if all(ended):
                break
            mask = torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1)
            if sum(ended) >= _WORTH_LEAVING * len(ended):
                left = [row for row, over in enumerate(ended) if not over]
                keep = torch.tensor(left, device=ids.device)
                ids, mask, places = ids[keep], mask[keep], [places[row] for row in left]
                cache.batch_select_indices(keep)
        return completions, [sum(log_probs) for log_probs in noted]

    def _read(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        """The cache of all prompt tokens but the last, each distinct prompt read once; rows as in the batch."""
        cache = roomy_cache(self._model)
        distinct, row_of = ids.unique(dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
        if ids.shape[1] == 1 or len(distinct) == len(ids):
            return cache
        first = [row_of.tolist().index(place) for place in range(len(distinct))]
        read = mask[first, :-1]
        self._model(
            input_ids=ids[first, :-1],
            attention_mask=read,
            position_ids=(read.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_select_indices(row_of)
        return cache

    def _settings(self, tokens: int) -> GenerationConfig:
        """Temperature and nucleus are `DrawnLogProbs`'s."""
        from transformers import GenerationConfig

        return GenerationConfig(
            max_new_tokens=tokens,
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            repetition_penalty=1.0,  # else the model's own generation_config.json would set it
            eos_token_id=self._eos,
            pad_token_id=self._tokenizer.pad_token_id,
            bos_token_id=self._tokenizer.bos_token_id,
            disable_compile=True,
        )

    def _cut(self, row: list[int]) -> list[int]:
        """The completion up to and with its first eos."""
        end = next((place for place, token in enumerate(row) if token in self._eos), len(row))
        return row[: end + 1]
