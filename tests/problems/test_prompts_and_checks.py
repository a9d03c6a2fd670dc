"""Prompt templates, prompt lengths, and golds that must verify against themselves."""

from __future__ import annotations

from datetime import datetime, tzinfo

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from rloop_core.config import PromptConfig
from rloop_core.errors import ProblemsError
from rloop_core.problems import TEMPLATES, Problem, ProblemSet, problem_id, render, self_check
from rloop_core.rollout.prompts import encode_problems
from rloop_core.verifier import Verifier, judge


def problems(*pairs: tuple[str, str]) -> ProblemSet:
    return ProblemSet("set", tuple(Problem(problem_id(text), text, gold, "set") for text, gold in pairs), {})


def character_tokenizer() -> PreTrainedTokenizerFast:
    letters = [chr(code) for code in range(32, 127)] + ["\n", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_templates_hold_the_problem_and_ask_for_a_readable_answer() -> None:
    problem = "What is {x} + \\frac{1}{2}?"
    for template in ("boxed", "answer-line", "plain"):
        assert problem in render(problem, template)
        assert template in TEMPLATES
    assert render(problem, "plain") == f"{problem}\n"
    assert "\\boxed{}" in render(problem, "boxed")
    assert "Answer: $Answer" in render(problem, "answer-line")
    assert judge("steps\nAnswer: 7", "7").verdict == judge("steps \\boxed{7}", "7").verdict == "correct"


def test_chat_uses_the_tokenizers_own_format() -> None:
    tokenizer = character_tokenizer()
    with pytest.raises(ProblemsError, match=r"has none \(fix: "):
        render("1+1?", "chat", tokenizer)
    with pytest.raises(ProblemsError, match="has none"):
        render("1+1?", "chat")
    with pytest.raises(ProblemsError, match="did you mean boxed"):
        render("p", "boxd")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}[end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    prompt = render("1+1?", "chat", tokenizer)
    assert prompt.startswith("[user]1+1?\n")
    assert prompt.endswith("\\boxed{}.[end][assistant]")


@pytest.mark.parametrize(
    ("added", "expected"),
    [("$A", "{}"), ("$A </s>", "{}"), ("<s> $A </s>", "<s>{}"), ("<s> $A </s> <sep>", "<s>{}"), ("<s> $A", "<s>{}")],
)
def test_a_prompt_does_not_end_with_what_the_tokenizer_appends(added: str, expected: str) -> None:
    """After an eos a policy has nothing to say (`add_eos_token`)."""
    tokenizer = character_tokenizer()
    special = ["<s>", "</s>", "<sep>"]
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "sep_token": "<sep>"})
    ids = list(zip(special, tokenizer.convert_tokens_to_ids(special), strict=True))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=added, special_tokens=ids)
    (plain,) = encode_problems(problems(("1+1=", "2")), PromptConfig(template="plain"), tokenizer)
    assert "".join(tokenizer.convert_ids_to_tokens(plain.prompt_ids)) == expected.format("1+1=\n")
    tokenizer.chat_template = "{{ messages[0]['content'] }}</s>"
    (chat,) = encode_problems(problems(("1+1=", "2")), PromptConfig(template="chat"), tokenizer)
    assert tokenizer.convert_ids_to_tokens(chat.prompt_ids)[-1] == "</s>", "a chat format may separate turns so"


def test_a_chat_format_that_names_the_date_gives_one_prompt_on_every_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of a run, or a run that is resumed, may be days apart."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "\n{% macro of(form) %}{% if strftime_now is defined %}{{ strftime_now(form) }}{% endif %}{% endmacro %}"
        "{{ of('%d %b %Y') }}, {{ strftime_now('%B %-d, %Y') }}, {{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}"
    )
    prompts = []
    for day in (1, 2):

        class Clock(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None, day: int = day) -> datetime:
                return datetime(2030, 1, day, tzinfo=tz)

        monkeypatch.setattr(chat_template_utils, "datetime", Clock)
        (prompt,) = encode_problems(problems(("1+1=", "2")), PromptConfig(template="chat"), tokenizer)
        prompts.append(prompt)
    assert prompts[0] == prompts[1]
    assert prompts[0].prompt == "\n26 Jul 2024, July 26, 2024, 2024-07-26 00:00:00.000000"


@pytest.mark.process
def test_self_check_names_golds_that_no_answer_could_match() -> None:
    fine = list(zip("abcdef", ("7", "025", "\\frac{1}{2}", "x^2+1", "\\{1,2\\}", "\\text{Tuesday}"), strict=True))
    bad = [("g", "\\frac{1}{2"), ("h", "x" * 3000), ("i", "}")]
    with Verifier() as verifier:
        assert [one.problem for one in self_check(problems(*fine, *bad), verifier)] == ["g", "h", "i"]
