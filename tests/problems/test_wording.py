"""Two texts of one problem have the same words; two problems do not."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rloop_core.problems import render
from rloop_core.problems.wording import words
from tests.verifier.growth import grows_linearly

SEA = "A boat sails $120$ km in 3 hours. How far does it sail in $\\frac{5}{2}$ hours?"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("$x^{4}+a x^{3}-b x^{2}=0$", "\\[x^4 + ax^3 - bx^2 = 0\\]"),
        ("triangle $A B C$ has $A B=13$", "triangle \\(ABC\\) has $AB = 13$"),
        ("$\\dfrac{1}{2} \\leq x \\le \\left(3\\cdot 4\\right)$", "$\\frac12 \\leqslant x ≤ (3 \\times 4)$"),
        ("$1{,}000{,}000$ or 2\\,500 people", "1,000,000 or $2,500$ people"),
        ("$x^{10}$ and 3^2", "x\u00b9\u2070 and 3\u00b2"),
        ("an angle of $45^\\circ$ \N{MINUS SIGN} or $45^{\\circ}$", "an angle of 45° - or 45°"),
        ("A three-digit number.", "a THREE digit  number"),
        ("What is $3+4$?", "Compute $3 + 4$."),
        ("Find the value of $2(3+4)$.", "2(3+4) ="),
        ("$\\text{Area}$ of [asy] draw((0,0)--(1,1)); [/asy] the square", "Area of the square"),
        ("State the final answer to the following arithmetic problem: 3 + 4 =", "3 + 4"),
    ],
)
def test_typography_wrappers_and_requests_do_not_matter(one: str, other: str) -> None:
    assert words(one) == words(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 + 4 - 2 =", "3 - 4 + 2 ="),
        ("2(3+4)", "(2*3)+4"),
        ("Calculate 5 - 3.", "Calculate 5 - 3.5."),
        ("What is $5!$?", "What is 5?"),
        ("He paid $5 and $10.", "He paid $5 and $11."),
        ("If $x+y=5$ find $x-y$.", "If $x+y=5$ find $x+y$."),
        ("Compute 7\u00b2 + 1.", "Compute 72 + 1."),
        ("Add 1\u00bd.", "Add 11/2."),
        ("Write 101\u2082 in base ten.", "Write 1012 in base ten."),
    ],
)
def test_numbers_operators_and_brackets_tell_problems_apart(one: str, other: str) -> None:
    assert words(one) != words(other)


@pytest.mark.parametrize(
    "boilerplate",
    [
        "Express your answer as a common fraction.",
        "Enter your answer in interval notation.",
        "Please give your final answer as a decimal, rounded to two places.",
        "Round your answer to the nearest tenth.",
        "The original answer is in the form $\\frac{m}{n}$, where gcd(m, n) = 1. Please find the value of $m + n$.",
        "Please format your answer as $n \\times 10^x$, where $n$ is to 2 decimal places.",
        "Please reason step by step, and put your final answer within \\boxed{}.",
        "Let's think step by step and output the final answer within \\boxed{}.",
    ],
)
def test_a_sentence_on_the_answers_form_is_removed(boilerplate: str) -> None:
    assert words(f"{SEA} {boilerplate}") == words(SEA)
    assert words(boilerplate), "alone it keeps its words: no two problems are equal by being empty"


@pytest.mark.parametrize(
    "ending",
    [
        "can be written as $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$.",
        "can be expressed in the form $\\frac{p}{q}$, where $p$ and $q$ are coprime. What is $p+q$?",
        "can be expressed as $a\\sqrt{b}$, where $a$ and $b$ are positive integers and $b$ is not divisible by the "
        "square of any prime. Compute $100a + b$.",
        "can be written as $\\frac{a}{b}$ for relatively prime positive integers $a$ and $b$. Compute $100a+b$.",
    ],
)
def test_the_answer_form_of_competitions_is_removed(ending: str) -> None:
    story = "A fair die is rolled four times. The probability that no two rolls in a row agree"
    assert words(f"{story} {ending}") == words(story)


def test_conditions_on_unknowns_stay() -> None:
    text = "If $x$ and $y$ are positive integers such that $xy = 12$ and $x + y = 7$, find $x - y$."
    assert "integers" in words(text)
    assert words(text)[-3:] == ("x", "-", "y")


@pytest.mark.parametrize("template", ["boxed", "answer-line", "plain"])
@given(text=st.text(st.sampled_from(string.ascii_letters + string.digits + " .,$+-=(){}\\"), max_size=200))
def test_no_template_changes_a_problems_words(template: str, text: str) -> None:
    told = f"In a garden {text} stand trees"  # so that the template does not complete a half-open formula
    if "$" not in text and "\\" not in text:
        assert words(render(told, template)) == words(told)


@given(st.text(max_size=400))
def test_any_text_has_words_that_do_not_depend_on_case_or_space(text: str) -> None:
    assert words(text) == words(text)
    assert words(f"  {text} \t ") == words(text)


@pytest.mark.parametrize(
    "part", ["\\(", "$", "[asy]", "the answer is ", "where a ", "can be written as ", "$$", "a b "]
)
def test_the_cost_of_reading_grows_with_the_text(part: str) -> None:
    assert grows_linearly(words, lambda size: part * (size // len(part)), 80_000)
