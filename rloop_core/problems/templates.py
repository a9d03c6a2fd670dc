"""Prompt templates: from a problem to a prompt.

| template | prompt |
|---|---|
| `boxed` | the problem, then "Please reason step by step, and put your final answer within \\boxed{}." (Qwen's) |
| `answer-line` | the problem between DAPO's two instructions, which ask for a last line `Answer: $Answer` |
| `chat` | the `boxed` prompt as one user message in the tokenizer's own chat format, ready for the assistant's turn |
| `plain` | the problem and one newline, nothing else; for base policies trained on such text |

Today is 26 July 2024 in a chat format that names the date.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from rloop_core.errors import ProblemsError

_BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem."
)
DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'
"""DAPO's data set has these two instructions around each problem; loading removes them."""

_TODAY = date(2024, 7, 26)
_CODES = {code: _TODAY.strftime(code) for code in map("%{}".format, "aAbBcdHIjmMpSUwWxXyYfzZ")} | {
    "%-d": "26",
    "%-m": "7",
}
_CLOCK = (
    "{%- macro strftime_now(format) %}{{ format"
    + "".join(f" | replace({code!r}, {text!r})" for code, text in _CODES.items())
    + " }}{% endmacro %}{{ '' }}"  # the empty text keeps a first line break of the template
)
"""Takes the place of the clock in chat formats, so that all stages of a run, and a resumed one, have equal prompts."""


def _chat(problem: str, tokenizer: Any) -> str:
    if getattr(tokenizer, "chat_template", None) is None:
        what = "the chat template needs a tokenizer that has a chat format, and this one has none"
        fix = "use template boxed, answer-line or plain, or an instruction-tuned model"
        raise ProblemsError(what, field="template", fix=fix)
    messages = [{"role": "user", "content": f"{problem}\n{_BOXED}"}]
    form = tokenizer.get_chat_template()
    form = _CLOCK + form if "strftime_now" in form else form
    return str(tokenizer.apply_chat_template(messages, chat_template=form, tokenize=False, add_generation_prompt=True))


_TEMPLATES: dict[str, Callable[[str, Any], str]] = {
    "boxed": lambda problem, tokenizer: f"{problem}\n{_BOXED}\n",
    "answer-line": lambda problem, tokenizer: f"{DAPO_BEFORE}\n\n{problem}\n\n{DAPO_AFTER}\n",
    "chat": _chat,
    "plain": lambda problem, tokenizer: f"{problem}\n",
}
TEMPLATES = tuple(_TEMPLATES)
"""Names of the templates."""


def render(problem: str, template: str, tokenizer: Any = None) -> str:
    """Make the prompt of a problem. Only `chat` uses the tokenizer.

    Raises:
        ProblemsError: `chat` with a tokenizer that has no chat format.
    """
    return _TEMPLATES[template](problem, tokenizer)
