"""The sampler draws what `generate` would, for any mixture of prompts, whatever leaves the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rloop_core.policies import bundled_policy_path
from rloop_core.rollout.engine import Completion, SamplingSettings
from rloop_core.rollout.policy import load_model, load_tokenizer
from rloop_core.rollout.prompts import EncodedProblem
from rloop_core.rollout.sampler import TransformersSampler
from tests.conftest import encoded, small_config

pytestmark = pytest.mark.process

TOKENIZER = load_tokenizer(bundled_policy_path())


def _sample(sampler: TransformersSampler, problems: list[EncodedProblem], **changes: Any) -> list[Completion]:
    usual = {"samples": 2, "temperature": 1.0, "top_p": 1.0, "max_tokens": 48, "batch": 6, "seed": 3}
    settings = SamplingSettings(**{**usual, **changes})
    return [completion for _, batch in sampler.sample(problems, settings) for completion in batch]


def bundled() -> Any:
    return load_model(bundled_policy_path(), dtype="float32", device="cpu").eval()


def sliding() -> Any:
    """Random weights, and attention that sees six tokens: layers that the preallocated cache must leave alone."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=6,
        initializer_range=0.5,  # far from ties, which rounding would decide
        eos_token_id=TOKENIZER.eos_token_id,
        pad_token_id=TOKENIZER.pad_token_id,
    )
    return MistralForCausalLM(config).eval()


def test_sampling_waits_for_no_other_rank_under_zero3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks sample unequally often. transformers would have each wait for the other in every decoding step."""
    problems = encoded(small_config())[:2]
    monkeypatch.setattr("transformers.generation.utils.is_deepspeed_zero3_enabled", lambda: True)
    monkeypatch.setattr("torch.distributed.is_available", lambda: True)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *_: 2)
    assert len(_sample(TransformersSampler(bundled(), TOKENIZER), problems)) == 4


@pytest.mark.parametrize("make", [bundled, sliding])
def test_the_likeliest_completion_is_that_of_generate_alone(make) -> None:
    model, problems = make(), encoded(small_config())[:9]
    assert len({len(problem.prompt_ids) for problem in problems}) > 1
    sampler = TransformersSampler(model, TOKENIZER)
    completions = _sample(sampler, problems, temperature=1e-5)
    assert len(completions) == 18
    for completion in completions:
        ids = torch.tensor([list(completion.problem.prompt_ids)])
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=48)
        expected = alone[0, ids.shape[1] :].tolist()
        assert completion.token_ids == expected
        assert completion.finished == (expected[-1] == TOKENIZER.eos_token_id)


def test_tokens_come_with_the_model_s_own_probabilities() -> None:
    model, problem = bundled(), encoded(small_config())[0]
    sampler = TransformersSampler(model, TOKENIZER)
    count = 4000
    completions = _sample(sampler, [problem], samples=count, batch=count, max_tokens=2, temperature=0.9)
    sampled = [completion.token_ids for completion in completions]
    with torch.inference_mode():
        logits = model(torch.tensor([list(problem.prompt_ids)])).logits[0, -1]
        first = torch.softmax(logits / 0.9, 0)
        common = int(first.argmax())
        logits = model(torch.tensor([[*problem.prompt_ids, common]])).logits[0, -1]
        second = torch.softmax(logits / 0.9, 0)
    after = [ids[1] for ids in sampled if ids[0] == common]
    for seen, chances in (([ids[0] for ids in sampled], first), (after, second)):
        share = torch.bincount(torch.tensor(seen), minlength=len(chances)) / len(seen)
        spread = (chances * (1 - chances) / len(seen)).sqrt()
        assert ((share - chances).abs() <= 5 * spread + 1e-3).all()


def test_single_tokens_and_equal_budgets() -> None:
    model = bundled()
    sampler = TransformersSampler(model, TOKENIZER)
    short = EncodedProblem(problem_id="p", prompt="x", gold="1", prompt_ids=(5,))
    completions = _sample(sampler, [short], samples=5, max_tokens=9)
    lengths = [len(completion.token_ids) for completion in completions]
    assert len(lengths) == 5 and all(1 <= length <= 9 for length in lengths)
    assert all(completion.finished or len(completion.token_ids) == 9 for completion in completions)
