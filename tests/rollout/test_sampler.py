"""The sampler draws what `generate` would, for any mixture of prompts, whatever leaves the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rloop_core.policies import bundled_policy_path
from rloop_core.rollout.engine import SamplingSettings
from rloop_core.rollout.policy import load_model, load_tokenizer
from rloop_core.rollout.prompts import EncodedProblem
from rloop_core.rollout.sampler import TransformersSampler
from tests.conftest import encoded, small_config

pytestmark = pytest.mark.process

TOKENIZER = load_tokenizer(bundled_policy_path())


def settings(**changes: Any) -> SamplingSettings:
    usual = {"samples": 2, "temperature": 1.0, "top_p": 1.0, "max_tokens": 48, "batch": 6, "seed": 3}
    return SamplingSettings(**{**usual, **changes})


def bundled() -> Any:
    return load_model(bundled_policy_path(), dtype="float32", device="cpu").eval()


def sliding() -> Any:
    """Random weights, and attention that sees six tokens: layers that the roomy cache must leave alone."""
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


@pytest.mark.parametrize("make", [bundled, sliding])
def test_the_likeliest_completion_is_that_of_generate_alone(make) -> None:
    model, problems = make(), encoded(small_config())[:9]
    assert len({len(one.prompt_ids) for one in problems}) > 1
    sampler = TransformersSampler(model, TOKENIZER)
    drawn = [one for _, batch in sampler.sample(problems, settings(temperature=1e-5)) for one in batch]
    assert len(drawn) == 18
    for one in drawn:
        ids = torch.tensor([list(one.problem.prompt_ids)])
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=48)
        expected = alone[0, ids.shape[1] :].tolist()
        assert one.token_ids == expected
        assert one.finished == (expected[-1] == TOKENIZER.eos_token_id)


def test_tokens_come_with_the_model_s_own_probabilities() -> None:
    model, problem = bundled(), encoded(small_config())[0]
    sampler = TransformersSampler(model, TOKENIZER)
    count = 4000
    batches = sampler.sample([problem], settings(samples=count, batch=count, max_tokens=2, temperature=0.9))
    drawn = [tuple(one.token_ids) for _, batch in batches for one in batch]
    with torch.inference_mode():
        logits = model(torch.tensor([list(problem.prompt_ids)])).logits[0, -1]
        first = torch.softmax(logits / 0.9, 0)
        common = int(first.argmax())
        logits = model(torch.tensor([[*problem.prompt_ids, common]])).logits[0, -1]
        second = torch.softmax(logits / 0.9, 0)
    after = [ids[1] for ids in drawn if ids[0] == common]
    for seen, chances in (([ids[0] for ids in drawn], first), (after, second)):
        share = torch.bincount(torch.tensor(seen), minlength=len(chances)) / len(seen)
        spread = (chances * (1 - chances) / len(seen)).sqrt()
        assert ((share - chances).abs() <= 5 * spread + 1e-3).all()


def test_single_tokens_and_equal_budgets() -> None:
    model = bundled()
    sampler = TransformersSampler(model, TOKENIZER)
    short = EncodedProblem(problem_id="p", prompt="x", gold="1", prompt_ids=(5,))
    drawn = [one for _, batch in sampler.sample([short], settings(samples=5, max_tokens=9)) for one in batch]
    assert len(drawn) == 5
    assert all(1 <= len(one.token_ids) <= 9 for one in drawn)
    assert all(one.finished or len(one.token_ids) == 9 for one in drawn)
