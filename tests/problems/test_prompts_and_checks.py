"""Prompt templates, prompt lengths, and golds that must verify against themselves."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rloop_core.errors import ProblemsError
from rloop_core.problems import TEMPLATES, Problem, ProblemSet, answered_by_copying, problem_id, render, self_check
from rloop_core.verifier import Policies, Verifier, judge


def problems(*pairs: tuple[str, str]) -> ProblemSet:
    return ProblemSet("set", tuple(Problem(problem_id(text), text, gold, "set") for text, gold in pairs), {})


def character_tokenizer() -> PreTrainedTokenizerFast:
    letters = [chr(code) for code in range(32, 127)] + ["\n", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_plain_is_the_problem_and_a_newline() -> None:
    assert render("1+1=", "plain") == "1+1=\n"


def test_templates_hold_the_problem_and_ask_for_a_readable_answer() -> None:
    problem = "What is {x} + \\frac{1}{2}?"
    for template in ("boxed", "answer-line", "plain"):
        assert problem in render(problem, template)
        assert template in TEMPLATES
    assert "\\boxed{}" in render(problem, "boxed")
    assert "Answer: $Answer" in render(problem, "answer-line")
    assert judge("steps\nAnswer: 7", "7").verdict == judge("steps \\boxed{7}", "7").verdict == "correct"


def test_chat_uses_the_tokenizers_own_format() -> None:
    tokenizer = character_tokenizer()
    with pytest.raises(ProblemsError, match=r"has none \(fix: "):
        render("1+1?", "chat", tokenizer)
    with pytest.raises(ProblemsError, match="has none"):
        render("1+1?", "chat")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}[end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    prompt = render("1+1?", "chat", tokenizer)
    assert prompt.startswith("[user]1+1?\n")
    assert prompt.endswith("\\boxed{}.[end][assistant]")


def test_an_unknown_template_gets_a_suggestion() -> None:
    with pytest.raises(ProblemsError, match="did you mean boxed"):
        render("p", "boxd")


@pytest.mark.process
def test_self_check_names_golds_that_no_answer_could_match() -> None:
    fine = [
        ("a", "7"),
        ("b", "025"),
        ("c", "\\frac{1}{2}"),
        ("d", "x^2+1"),
        ("e", "\\{1,2\\}"),
        ("f", "\\text{Tuesday}"),
    ]
    bad = [("g", "\\frac{1}{2"), ("h", "x" * 3000), ("i", "}")]
    with Verifier() as verifier:
        assert [one.problem for one in self_check(problems(*fine, *bad), verifier)] == ["g", "h", "i"]


@pytest.mark.process
def test_problems_answered_by_copying_are_counted() -> None:
    sums = problems(("What is 4 + 3?", "7"), ("Compute (2 - 5) * 4 = ", "-12"), ("Tom has 3 apples and 4 pears.", "7"))
    with Verifier() as verifier:
        assert answered_by_copying(sums, verifier) == (2, 3)
    with Verifier(policies=Policies(arithmetic="refuse")) as verifier:
        assert answered_by_copying(sums, verifier) == (0, 3)
