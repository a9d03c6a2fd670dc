"""Which piece of a completion is its answer."""

from __future__ import annotations

import time

import pytest

from rloop_core.verifier.extract import cut_at_marker, extract


@pytest.mark.parametrize(
    ("completion", "answer", "boxes"),
    [
        ("so \\boxed{12}.", "12", 1),
        ("first \\boxed{3}, no: \\boxed{4}", "4", 2),
        ("\\boxed {12}", "12", 1),
        ("\\boxed{\n 12 \n}", "12", 1),
        ("\\boxed{\\boxed{12}}", "\\boxed{12}", 1),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", 1),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}", 1),
        ("\\boxed{a \\\\ b}", "a \\\\ b", 1),
        ("\\fbox{12}", "12", 1),
        ("we get $\\boxed 7$ here", "7", 1),
        ("put it in \\boxed form: \\boxed{7}", "7", 1),
        ("{ unclosed \\boxed{7}", "7", 1),
        ("} stray \\boxed{7}", "7", 1),
    ],
)
def test_last_balanced_box(completion: str, answer: str, boxes: int) -> None:
    assert extract(completion) == (answer, boxes)


@pytest.mark.parametrize(
    "completion",
    [
        "\\boxed{1",
        "\\boxed{3} and then \\boxed{4",
        "\\boxed{\\frac{1}{2}",
        "\\boxed{3} so \\boxed",
        "\\boxed{}",
        "\\boxed{ }",
    ],
)
def test_an_unclosed_or_empty_last_box_is_no_answer(completion: str) -> None:
    assert extract(completion)[0] is None


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("3 + 4 = 7\nAnswer: 7", "7"),
        ("answer : 7\nfor 3 + 4 is 7", "7"),
        ("**Answer:** 7", "7"),
        ("**Final Answer**: 7", "7"),
        ("Answer:\n\n7", "7"),
        ("Answer: 6\nI err.\nAnswer: 7", "7"),
        ("Answer:7", "7"),
        ("the answer is 7", None),
        ("7", None),
        ("", None),
    ],
)
def test_answer_line_when_there_is_no_box(completion: str, answer: str | None) -> None:
    assert extract(completion) == (answer, 0)


def test_a_box_takes_precedence_over_an_answer_line() -> None:
    assert extract("Answer: 6 \\boxed{7}") == ("7", 1)


@pytest.mark.parametrize(
    "marker", ["<|im_end|>", "<|endoftext|>", "</s>", "<end_of_turn>", "<|end▁of▁sentence|>", "[INST]"]
)
def test_text_after_a_chat_marker_is_not_the_answer(marker: str) -> None:
    assert cut_at_marker(f"so 6 {marker} tail") == "so 6 "
    assert extract(f"I guess \\boxed{{6}} {marker} user: \\boxed{{7}}") == ("6", 1)
    assert extract(f"I give up {marker} \\boxed{{7}}") == (None, 0)


def test_comparison_signs_are_no_markers() -> None:
    assert extract("if 2 < x and y > |x| then \\boxed{7}") == ("7", 1)


@pytest.mark.parametrize(
    "hostile",
    [
        "{" * 3_000_000,
        "\\boxed{" * 400_000,
        "\\boxed{" + "{" * 3_000_000 + "7" + "}" * 3_000_000 + "}",
        "\\boxed{" + "9" * 3_000_000 + "}",
        "<" * 3_000_000,
        "answer: " * 300_000,
        "\\" * 3_000_000,
    ],
    ids=["braces", "boxes", "deep", "digits", "angles", "answers", "backslashes"],
)
def test_reading_is_linear(hostile: str) -> None:
    started = time.perf_counter()
    extract(hostile)
    assert time.perf_counter() - started < 5
