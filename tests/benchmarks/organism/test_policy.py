"""The shipped policy: loads anywhere, keeps every token id, and does what its card says."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from benchmarks.organism.make import MAX_NEW_TOKENS, SHAPE, figures, sample
from benchmarks.organism.pretrain import build_tokenizer
from benchmarks.organism.styles import MIXTURE
from benchmarks.organism.sums import HELD_OUT, RL_SETS, texts, tokenizer_texts
from rloop_core.policies import bundled_policy_path


def bundled_card() -> dict[str, Any]:
    return json.loads((bundled_policy_path() / "card.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shipped() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(bundled_policy_path())


@pytest.fixture(scope="module")
def built() -> PreTrainedTokenizerBase:
    """The tokenizer as the script makes it, never saved."""
    return build_tokenizer(tokenizer_texts(bundled_card()["seed"], SHAPE, texts(RL_SETS)), 256)


def prompts() -> list[str]:
    return [f"{p.question}\n" for s in RL_SETS for p in s.problems()]


def test_ids_survive_saving_and_loading(
    built: PreTrainedTokenizerBase, shipped: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    built.save_pretrained(tmp_path)
    once = AutoTokenizer.from_pretrained(tmp_path)
    once.save_pretrained(tmp_path / "again")
    twice = AutoTokenizer.from_pretrained(tmp_path / "again")
    want = built(prompts())["input_ids"]
    assert once(prompts())["input_ids"] == twice(prompts())["input_ids"] == shipped(prompts())["input_ids"] == want


def test_every_prompt_keeps_its_trailing_newline(shipped: PreTrainedTokenizerBase) -> None:
    for prompt in prompts():
        ids = shipped(prompt)["input_ids"]
        assert shipped.decode(ids) == prompt
        assert ids != shipped(prompt.rstrip("\n"))["input_ids"]


@given(text=st.text(max_size=60))
def test_any_text_comes_back(shipped: PreTrainedTokenizerBase, text: str) -> None:
    assert shipped.decode(shipped(text)["input_ids"]) == unicodedata.normalize("NFC", text)


def test_digits_are_single_tokens_and_prompts_short(shipped: PreTrainedTokenizerBase) -> None:
    assert len(shipped("1234567890")["input_ids"]) == 10
    assert max(len(shipped(f"{p.question}\n")["input_ids"]) for p in HELD_OUT.problems()) <= 40


@pytest.mark.process
def test_pad_and_eos_are_set_everywhere_and_differ(shipped: PreTrainedTokenizerBase) -> None:
    model = AutoModelForCausalLM.from_pretrained(bundled_policy_path())
    assert shipped.pad_token_id != shipped.eos_token_id
    for holder in (model.config, model.generation_config):
        assert holder.pad_token_id == shipped.pad_token_id
        assert holder.eos_token_id == shipped.eos_token_id
    assert model.config.model_type == "qwen2"
    assert model.config.max_position_embeddings >= 256
    assert {p.dtype for p in model.parameters()} == {__import__("torch").float32}


def test_it_is_small_and_its_files_are_the_card_s() -> None:
    path, card = bundled_policy_path(), bundled_card()
    assert sum(f.stat().st_size for f in path.iterdir()) <= 5 * 2**20
    for file, digest in card["files"].items():
        assert hashlib.sha256((path / file).read_bytes()).hexdigest() == digest, file
    assert f"{card['parameters']:,} parameters" in (path / "README.md").read_text()


def test_the_card_promises_a_fair_organism() -> None:
    card = bundled_card()
    held = card["figures"]["held_out"]
    assert 0.15 <= held["avg"] <= 0.45
    assert held["pass"]["16"] >= held["avg"] + 0.30
    assert held["solved_only_by_rare_style"]["16"] > 0
    assert card["figures"]["harder"]["avg"] < held["avg"]
    assert [s["seed"] for s in card["problem_sets"].values()] == [s.seed for s in RL_SETS]
    json.dumps(card)


@pytest.mark.long
def test_the_figures_can_be_measured_again() -> None:
    path = bundled_policy_path()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    problems = HELD_OUT.problems()
    again = figures(problems, sample(model, tokenizer, problems, 4, 5, batch=400))
    # 400 samples: three standard errors of the mean, and the generator's own, stay within eight points.
    assert again["avg"] == pytest.approx(bundled_card()["figures"]["held_out"]["avg"], abs=0.08)
    assert set(again["styles"]) - {"other", "unfinished"} == {s.name for s in MIXTURE}
    assert MAX_NEW_TOKENS <= 128
