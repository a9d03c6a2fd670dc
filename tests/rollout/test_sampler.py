"""The sampler draws what `generate` would, for any mixture of prompts, whatever leaves the batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig

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


SMALL = {
    **{"vocab_size": len(TOKENIZER), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256},
    **{"eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id, "bos_token_id": None},
}
RECURRENT: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "jamba": {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    "qwen3_next": {
        **{"layer_types": ["linear_attention", "full_attention"], "num_experts": 2, "num_experts_per_tok": 1},
        **{"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2},
        **{"linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    },
}
"""Models with layers of attention and recurrent ones."""


def recurrent(kind: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**SMALL, **RECURRENT[kind])).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)  # far from ties
    return model


GENERATION: dict[str, Any] = {
    **dict.fromkeys(("do_sample", "use_cache"), False),
    **dict.fromkeys(("typical_p", "epsilon_cutoff", "eta_cutoff", "top_p", "top_h", "min_p"), 0.5),
    **dict.fromkeys(("bos_token_id", "pad_token_id", "forced_bos_token_id", "forced_eos_token_id"), 7),
    "suppress_tokens": [*range(20)],
    "begin_suppress_tokens": [*range(20)],
    "bad_words_ids": [[5], [6, 7]],
    "force_words_ids": [[5], [6, 7]],
    **dict.fromkeys(("min_length", "min_new_tokens"), 40),
    **dict.fromkeys(("num_beams", "num_return_sequences", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 2),
    **dict.fromkeys(("length_penalty", "repetition_penalty", "encoder_repetition_penalty", "diversity_penalty"), 3.0),
    "temperature": 3.0,
    "guidance_scale": 3.0,
    "max_time": 1e-9,
    "stop_strings": ["1", "2"],
    "cache_implementation": "static",
    "cache_config": {"nbits": 4},
    "sequence_bias": [[[5], 50.0]],
    "exponential_decay_length_penalty": [1, 5.0],
    "watermarking_config": {"bias": 50.0},
    "num_assistant_tokens_schedule": "heuristic",
    "speculation_type": "mtp",
    "compile_config": {"mode": "default"},
    "dola_layers": "high",
    "constraints": ["x"],
    "transformers_version": "0.1",
}
"""A value for each field of GenerationConfig that would change samples, or at least is no default; 1 for all others."""


def hostile_files() -> Iterator[tuple[str, dict[str, Any]]]:
    for field in sorted(vars(GenerationConfig()).keys() - {"eos_token_id"}):
        yield "generation_config.json", {field: GENERATION.get(field, 1)}
    yield "generation_config.json", GENERATION
    old = {field: value for field, value in GENERATION.items() if field != "compile_config"}
    yield "config.json", old  # where old models have such fields
    for field, value in (("use_cache", False), ("return_dict", False), ("output_attentions", True), ("min_p", 0.5)):
        yield "config.json", {field: value}


def test_a_model_s_own_generation_settings_change_no_sample(tmp_path: Path) -> None:
    """transformers would fill every setting that `generate` is not given from the model's files."""
    problems, source = encoded(small_config())[:2], bundled_policy_path()
    shutil.copytree(source, tmp_path / "model")

    def sampled(name: str, fields: dict[str, Any]) -> list[tuple[list[int], float]]:
        original = json.loads((source / name).read_text())
        (tmp_path / "model" / name).write_text(json.dumps(original | fields))
        if name == "config.json":  # whose settings count where there is no other file
            (tmp_path / "model" / "generation_config.json").unlink(missing_ok=True)
        model = load_model(tmp_path / "model", dtype="float32", device="cpu")
        completions = _sample(TransformersSampler(model, TOKENIZER), problems, samples=3, max_tokens=8)
        shutil.copyfile(source / name, tmp_path / "model" / name)
        return [(completion.token_ids, completion.logprob_sum) for completion in completions]

    expected = sampled("generation_config.json", {})
    assert sampled("config.json", {}) == expected
    bent = {}
    for name, fields in hostile_files():
        try:
            if (seen := sampled(name, fields)) != expected:
                bent[f"{name}: {fields}"] = str(seen)
        except Exception as error:
            bent[f"{name}: {fields}"] = repr(error)
    assert not bent


def test_sampling_waits_for_no_other_rank_under_zero3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks sample unequally often. transformers would have each wait for the other in every decoding step."""
    problems = encoded(small_config())[:2]
    monkeypatch.setattr("transformers.generation.utils.is_deepspeed_zero3_enabled", lambda: True)
    monkeypatch.setattr("torch.distributed.is_available", lambda: True)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *_: 2)
    assert len(_sample(TransformersSampler(bundled(), TOKENIZER), problems)) == 4


@pytest.mark.parametrize(
    ("make", "tokens"), [(bundled, 48), (sliding, 48), *((partial(recurrent, kind), 12) for kind in RECURRENT)]
)
def test_the_likeliest_completion_is_that_of_generate_alone(make, tokens) -> None:
    model, problems = make(), encoded(small_config())[: 9 if tokens > 12 else 4]
    assert len({len(problem.prompt_ids) for problem in problems}) > 1
    sampler = TransformersSampler(model, TOKENIZER)
    completions = _sample(sampler, problems, temperature=1e-5, max_tokens=tokens)
    assert len(completions) == 2 * len(problems)
    for problem in problems:
        ids = torch.tensor([list(problem.prompt_ids)])
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
        expected = alone[0, ids.shape[1] :].tolist()
        for completion in completions:
            if completion.problem == problem:
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
