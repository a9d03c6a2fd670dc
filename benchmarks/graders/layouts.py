"""Where an answer stands in a completion: one layout to compare values, many to test how an answer is found."""

from __future__ import annotations

import re
from dataclasses import dataclass

PROSE = "We follow the definitions and simplify each side until both agree."
BOX = PROSE + "\nSo the result is $\\boxed{A}$."
AFTERTHOUGHT = (
    "Let us look at it once more. The first step used only the definition, the second one rearranged the terms, "
    "and the third one collected them. None of these steps loses a case, since each of them can be undone. The bound "
    "that was used on the way is attained as well, so nothing can be improved. This completes the argument and the "
    "problem is done."
)


@dataclass(frozen=True)
class Layout:
    """A completion with places for the right answer (A) and a wrong one (W).

    `right` says whether it is correct; None where it is a matter of convention whether it answers at all.
    """

    name: str
    text: str
    right: bool | None


LAYOUTS = [
    Layout("display", PROSE + "\n\\[\n\\boxed{A}\n\\]", True),
    Layout("box_with_space", PROSE + "\nSo it is $\\boxed {A}$.", True),
    Layout("fbox", PROSE + "\nSo it is $\\fbox{A}$.", True),
    Layout("framebox", PROSE + "\nSo it is $\\framebox{A}$.", True),
    Layout("nested_box", PROSE + "\nSo it is $\\boxed{\\boxed{A}}$.", True),
    Layout("box_in_equation", PROSE + "\n$$x = \\boxed{A}$$", True),
    Layout("equation_in_box", PROSE + "\n$$\\boxed{x = A}$$", True),
    Layout("answer_line", PROSE + "\n\nAnswer: A", True),
    Layout("answer_line_dollars", PROSE + "\n\nAnswer: $A$", True),
    Layout("answer_line_bold", PROSE + "\n\n**Answer:** A", True),
    Layout("answer_line_stop", PROSE + "\n\nAnswer: A.", True),
    Layout("answer_line_box", PROSE + "\n\nAnswer: $\\boxed{A}$", True),
    Layout("answer_next_line", PROSE + "\n\n### Final Answer:\n\nA", True),
    Layout("answer_then_text", PROSE + "\n\nAnswer: A\n\n" + AFTERTHOUGHT, True),
    Layout("box_then_text", PROSE + "\nSo it is $\\boxed{A}$. " + AFTERTHOUGHT, True),
    Layout("minerva", PROSE + "\nFinal Answer: The final answer is $A$. I hope it is correct.", True),
    Layout("minerva_box", PROSE + "\nFinal Answer: The final answer is $\\boxed{A}$. I hope it is correct.", True),
    Layout("box_corrected", "We get $\\boxed{W}$. But a sign was lost. So the answer is $\\boxed{A}$.", True),
    Layout("box_spoiled", "We get $\\boxed{A}$. But a sign was lost. So the answer is $\\boxed{W}$.", False),
    Layout("line_then_box", "Answer: W\n\nThat forgets a case. With it we have $\\boxed{A}$.", True),
    Layout("box_then_line", "At first $\\boxed{W}$ comes out. That forgets a case.\n\nAnswer: A", None),
    Layout("prose_mentions_wrong", "One may think of W, but this fails. It is $\\boxed{A}$.", True),
    Layout("marker_after", PROSE + " $\\boxed{A}$<|im_end|>\n<|im_start|>user\nIs it $\\boxed{W}$?", True),
    Layout("marker_before", PROSE + " $\\boxed{W}$<|im_end|>\n<|im_start|>user\nNo, it is $\\boxed{A}$.", False),
    Layout("answer_after_marker", PROSE + "<|im_end|>\n<|im_start|>assistant\nAnswer: A", False),
    Layout("unclosed_box", PROSE + "\nSo the result is $\\boxed{A", False),
    Layout("closed_then_unclosed", PROSE + " At first $\\boxed{A}$. After a check it is $\\boxed{W", False),
    Layout("prose_only", PROSE + " The answer is A.", None),
    Layout("hashes", PROSE + "\n#### A", None),
    Layout("bold_only", PROSE + "\n\n**A**", None),
    Layout("empty_box", PROSE + " Since A occurs above, it is $\\boxed{}$.", False),
    Layout("placeholder", PROSE + " It might be A or W.\n\nAnswer: $Answer", False),
    Layout("refusal", "One of A and W. Answer: I cannot tell.", False),
    Layout("every_box", "It is one of $\\boxed{W}$, $\\boxed{A}$ and $\\boxed{987654321}$.", False),
]


def fill(text: str, right: str, wrong: str) -> str:
    """Fill the places of a layout; `A` and `W` are places only where no letter or digit is beside them."""
    places = {"A": right, "W": wrong}
    return re.sub(r"(?<![^\W_])[AW](?![^\W_])", lambda place: places[place.group()], text)
