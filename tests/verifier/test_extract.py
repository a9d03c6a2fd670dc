"""Extract the answer of a completion."""

from __future__ import annotations

import pytest

from rloop_core.verifier import Policies
from rloop_core.verifier.read.extract import cut_at_marker, extract

BOXED = [
    ("so \\boxed{12}.", "12", 1), ("first \\boxed{3}, no: \\boxed{4}", "4", 2), ("\\boxed {12}", "12", 1),
    ("\\boxed{\n 12 \n}", "12", 1), ("\\boxed{\\boxed{12}}", "\\boxed{12}", 1),
    ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", 1), ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}", 1),
    ("\\boxed{a \\\\ b}", "a \\\\ b", 1), ("\\fbox{12}", "12", 1), ("$\\framebox{12}$", "12", 1),
    ("\\framebox{6} no: \\boxed{12}", "12", 2), ("we get $\\boxed 7$ here", "7", 1),
    ("put it in \\boxed form: \\boxed{7}", "7", 1), ("{ unclosed \\boxed{7}", "7", 1), ("} stray \\boxed{7}", "7", 1),
    ("so \\boxed 7.", "7", 1), ("so \\boxed7", "7", 1), ("so \\boxed x", "x", 1),
    ("so \\boxed\\frac{1}{2}$", "\\frac{1}{2}", 1), ("so \\(\\boxed 7\\)", "7", 1),
    ("\\boxed{3} so \\boxed 7 it is", "7", 2), ("\\boxed 3 so \\boxed{7}", "7", 2), ("\\\\boxed{7}", "7", 1),
    ("\\\\\\boxed{\\{7\\}}", "\\{7\\}", 1), ("\\boxed\u200b{7}", "7", 1), ("\\text{so \\boxed{7}}", "7", 1),
    ("```\nprint(7)\n\\boxed{7}\n```", "7", 1), ("\\verb|\\boxed{7}|", "7", 1), ("\\boxed{6}\n\\fbox{7}", "7", 2),
    ("Answer: \\boxed{7}", "7", 1), ("\\boxedanswer{6} \\boxed{7}", "7", 1), ("Answer: 6 \\boxed{7}", "7", 1),
    ("if 2 < x and y > |x| then \\boxed{7}", "7", 1),
]  # fmt: skip
UNCLOSED = [
    "\\boxed{1", "\\boxed{3} and then \\boxed{4", "\\boxed{\\frac{1}{2}", "\\boxed{3} so \\boxed", "\\boxed{}",
    "\\boxed{ }",
]  # fmt: skip
ANSWER_LINES = [
    ("3 + 4 = 7\nAnswer: 7", "7"), ("answer : 7\nfor 3 + 4 is 7", "7"), ("**Answer:** 7", "7"),
    ("**Final Answer**: 7", "7"), ("Answer:\n\n7", "7"), ("Answer: 6\nI err.\nAnswer: 7", "7"), ("Answer:7", "7"),
    ("Answer: 6\nAnswer: 7", "7"), ("Answer: 6, answer: 7", "7"), ("Answer:\nAnswer: 7", "7"), ("ANSWER: 7", "7"),
    ("Answer\uff1a7", "7"), ("Answer (in cm): 7", "7"), ("Answers: 1, 2", "1, 2"), ("\\textbf{Answer:} 7", "7"),
    ("\\textbf{Answer: 7}", "7"), ("Answer: \\frac{1}{2}", "\\frac{1}{2}"), ("Answer: 7\r\nas said", "7"),
    ("Answer: 7\rAs said", "7"), ("Answer: 3.5", "3.5"), ("Answer: 7. This holds since 3 + 4 = 7.", "7"),
    ("Answer: 7 apples because of that", "7 apples"), ("Answer: $7$, since it fits", "$7$"),
    ("Final Answer: The final answer is $7$. I hope it is correct.", "$7$"),
    ("Answer: Therefore, the answer is 7", "7"), ("Answer:\n```\n7\n```", "7"), ("Answer:\n\\[\n7\n\\]", "7"),
    ("Answer:\n$$\n\\frac{1}{2}\n$$", "\\frac{1}{2}"), ("so 3 + 4\n#### 7", "7"), ("#### 1,234", "1,234"),
    ("#### 6\nAnswer: 7", "7"), ("#### Step 7", None), ("#### 7 steps", None), ("Answer:", None), ("Answer: **", None),
    ("the answer is 7", None), ("7", None), ("", None),
]  # fmt: skip
THOUGHTS = [
    ("<|channel|>analysis<|message|>\\boxed{3}?<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{4}", "4", 1),
    ("<|channel|>final<|message|>Answer: 4<|return|><|start|>user<|message|>\\boxed{3}", "4", 0),
    ("<|channel|>final<|message|>\\boxed{4}<|start|>user<|channel|>final<|message|>\\boxed{3}", "4", 1),
    ("<think>\\boxed{3}</think> so \\boxed{4}", "4", 1), ("<think>\\boxed{3}</think> Answer: 4", "4", 0),
    ("<think>\\boxed{3}</think> It is three.", "3", 1), ("<think>\\boxed{3}</think> so \\boxed{4", None, 1),
    ("<think>it is \\boxed{3}", "3", 1), ("<think>a</think>\\boxed{3}<think>b</think> done", "3", 1),
]  # fmt: skip


@pytest.mark.parametrize(("completion", "answer", "boxes"), [*BOXED, *THOUGHTS, *((*pair, 0) for pair in ANSWER_LINES)])
def test_the_last_balanced_box_or_else_answer_line_after_the_thoughts(
    completion: str, answer: str | None, boxes: int
) -> None:
    assert extract(completion)[:2] == (answer, boxes)


@pytest.mark.parametrize("completion", UNCLOSED)
def test_an_unclosed_or_empty_last_box_is_no_answer(completion: str) -> None:
    assert extract(completion)[0] is None


@pytest.mark.parametrize(
    "marker",
    [
        "<|im_end|>", "<|endoftext|>", "</s>", "<end_of_turn>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<|end▁of▁sentence|>", "[INST]",
    ],
)  # fmt: skip
def test_text_after_a_chat_marker_is_not_the_answer(marker: str) -> None:
    assert cut_at_marker(f"so 6 {marker} tail") == "so 6 "
    assert extract(f"I guess \\boxed{{6}} {marker} user: \\boxed{{7}}")[:2] == ("6", 1)
    assert extract(f"I give up {marker} \\boxed{{7}}")[:2] == (None, 0)


def test_a_marker_that_opens_the_turn_does_not_end_it() -> None:
    llama = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    for opening in ("<s>", "<|im_start|>assistant\n", llama, "<start_of_turn>model\n", "<\uff5cAssistant\uff5c>"):
        assert extract(f"{opening}so \\boxed{{6}}<|im_end|> \\boxed{{7}}")[:2] == ("6", 1)
    assert extract("<|im_start|>user\n\\boxed{7}").answer is None


@pytest.mark.parametrize(
    ("completion", "single"),
    [
        ("\\boxed{7}", None), ("\\boxed{\\boxed{7}}", None), ("\\boxed{7} and \\boxed{7}", "2 boxed answers"),
        ("\\boxed{6}, \\boxed{5}, \\boxed{7}", "3 boxed answers"),
    ],
)  # fmt: skip
def test_several_boxes(completion: str, single: str | None) -> None:
    assert extract(completion).refused is None
    assert extract(completion, Policies(boxes="single")).refused == single


@pytest.mark.parametrize(
    ("completion", "refused"),
    [
        ("so $\\boxed{7}$.", False), ("\\[ \\boxed{7} \\]\n", False),
        ("\\begin{align*} x &= \\boxed{7}. \\end{align*}", False), ("**\\boxed{7}** \u2713", False),
        ("<answer>\\boxed{7}</answer>", False), ("\\boxed{7}<|im_end|> and more", False),
        ("\\boxed{7} I hope it is correct.", True), ("\\boxed{7} cm", True), ("\\boxed{7} 8", True),
        ("\\boxed{7}\n\nSo \u0434\u0430", True), ("Answer: 7\n", False),
        ("Answer: 7\nThis holds since 3 + 4 = 7.", True), ("Answer: 7 because it is", True), ("#### 7", False),
    ],
)  # fmt: skip
def test_policy_on_words_after_the_answer(completion: str, refused: bool) -> None:
    strict = extract(completion, Policies(text_after="refuse"))
    assert strict.refused == ("words after the answer" if refused else None)
    assert strict.answer == extract(completion).answer == "7"
    assert extract(completion).refused is None
