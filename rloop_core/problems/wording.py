"""The words of a problem, equal for texts that differ only in typography, instructions or the form of the request.

Removed are typography (Unicode forms, case, LaTeX delimiters, fonts and spacing, thousands separators, drawings in
code), wrappers (instructions about steps and the place of the answer) and boilerplate (the form of the answer).
Numbers, operators and brackets stay: they distinguish two sums.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rloop_core.problems.templates import render
from rloop_core.problems.types import written_out

_LONGEST = 20_000
"""Characters that are read: more than any real problem has; a limit for the run time of the patterns."""

_DRAWINGS = re.compile(
    r"\[asy\].{0,5000}?\[/asy\]|\\begin\{(asy|tikzpicture)\}.{0,5000}?\\end\{\1\}|!\[[^\]]*\]\([^)]*\)|\\includegraphics\S*"
    r"|https?://\S+",
    re.DOTALL,
)
_LAYOUT = re.compile(
    r"\\(?:text\w*|math(?:rm|bf|it|cal|bb|sf|frak)|operatorname|boldsymbol|emph|[mh]box|displaystyle|limits|left|right"
    r"|bigg?|begin|end|q?quad|hspace|hfill|hline|item|underline|tag|label)(?![a-z])\*?|\\[,;:!> \\]|~|&"
)
_FORMULA = re.compile(
    r"\$\$.{1,1000}?\$\$|(?<!\\)\\\(.{1,1000}?\\\)|(?<!\\)\\\[.{1,1000}?\\\]"
    # Dollar amounts are not formulas: a formula has no space inside its dollars, and no digit follows.
    r"|(?<!\\)\$(?=\S)[^$]{1,1000}?(?<=[^\s\\])\$(?!\d)",
    re.DOTALL,
)
_APART = re.compile(r"(?<![\\a-z])([a-z]) +(?=[a-z](?![a-z]))")
_FIRST = r"\1"
_FRACTION = re.compile(r"(\\[dtc]?frac)(\d)(?=\d)")
_GROUPING = re.compile(r"(?<=\d)(?:,|\{,\}|\\[,!]|,\\!)(?=\d{3}(?!\d))")
_HYPHEN = re.compile(r"(?<=[a-z]{2})-(?=[a-z]{2})")
_SIGNS = {
    "<=": ("\\leqslant", "\\leq", "\\le", "≤"),
    ">=": ("\\geqslant", "\\geq", "\\ge", "≥"),
    "!=": ("\\neq", "\\ne", "≠"),
    "<": ("\\lt",),
    ">": ("\\gt",),
    "*": ("\\times", "\\cdot", "\\ast", "\N{MULTIPLICATION SIGN}", "\N{MIDDLE DOT}", "\N{DOT OPERATOR}"),
    "/": ("\\div", "\N{DIVISION SIGN}", "\N{FRACTION SLASH}"),
    "-": ("\N{MINUS SIGN}", "\N{HYPHEN}", "\N{EN DASH}"),
    "|": ("\\lvert", "\\rvert", "\\vert", "\\mid"),
    "'": ("\N{RIGHT SINGLE QUOTATION MARK}", "\N{PRIME}", "\\prime"),
    " ": ("\\ldots", "\\cdots", "\\dots", "\\vdots", "...", "\N{EM DASH}"),
    " frac ": ("\\dfrac", "\\tfrac", "\\cfrac"),
    " binom ": ("\\dbinom", "\\tbinom"),
    " degrees ": ("^{\\circ}", "^\\circ", "\\circ", "°"),
    " sqrt ": ("√",),
    " floor ": ("\\lfloor", "\\rfloor", "⌊", "⌋"),
    " ceil ": ("\\lceil", "\\rceil", "⌈", "⌉"),
}
_SIGN_OF = {form: sign for sign, forms in _SIGNS.items() for form in forms}
_SIGN = re.compile(
    "|".join(re.escape(form) + ("(?![a-z])" if form[-1].isalpha() else "") for form in sorted(_SIGN_OF, key=len)[::-1])
)
_TOKEN = re.compile(
    r"[^\W\d_]+(?:'[a-z]+)?|\d+(?:\.\d+)?|\.\d+|<=|>=|!=|[-+*/=<>^!%:()\[\]|]|[.?;](?=[\s$)\]]|$)|\n\s*\n"
)
_STOPS = frozenset(".?;\n")
_BRACKETS = frozenset("()[]|")

# The patterns below match tokens separated by one space; `.` is every end of a sentence.
_LETTER = r"(?:[a-z]|alpha|beta|pi) "
_LETTERS = rf"{_LETTER}(?:(?:and )?{_LETTER})*"
_SUM = rf"(?:\d+ )?{_LETTER}(?:[-+*] (?:\d+ )?{_LETTER})+"
_ASK = (
    r"(?:please )?(?:find|compute|determine|calculate|evaluate|what is|give|provide|enter|submit) (?:the )?"
    rf"(?:value |sum |remainder )?(?:of |when )?{_SUM}(?:is divided by \d+ )?(?:\. )*"
)
_KIND = (
    r"(?:(?:relatively|mutually|pairwise|prime|coprime|positive|nonnegative|negative|non|natural|whole|real|integers?"
    r"|numbers?|and|is|are|an?|not|divisible|by|the|squares?|of|any|squarefree|square|free|gcd|in|lowest|simplest|terms"
    rf"|reduced|form|fraction|as|small|possible|[()=1]|{_LETTER.strip()}) )"
)
_CLAUSE = rf"(?:where|with|for|in which|and) {_LETTERS}(?:are|is|being) {_KIND}+|where gcd {_KIND}+"
_FORM = (
    r"(?:that |which )?(?:(?:can|may) be (?:uniquely )?(?:written|expressed|represented) (?:uniquely )?|is )"
    r"(?:as|in) (?:the |simplest |lowest |a )*(?:form |terms |fraction |format )?(?:of )?"
)
_ANSWER = r"(?:your |the |all |each |any )*(?:final |numerical |exact |correct )*(?:answers?|solutions) "
_WORD = r"[^ .]+ "
_BOILERPLATE = re.compile(
    "|".join(
        rf"(?<= )(?:{pattern})"
        for pattern in (
            # AIME: "can be written as m/n, where m and n are relatively prime. Find m+n."
            rf"(?:{_FORM}(?:{_WORD}){{1,25}}?)?(?:{_CLAUSE}|for {_KIND}+)(?:\. )*{_ASK}",
            rf"{_FORM}(?:{_WORD}){{1,25}}?(?:{_CLAUSE})",
            rf"{_ASK}(?:{_CLAUSE})",
            rf"(?:and )?(?:{_CLAUSE})(?=\. |$)",
            rf"(?:given (?:that )?)?the (?:original |final )?answer (?:is|should be|will be|can be|in) (?:{_WORD})*"
            rf"(?:\. )*(?:{_ASK})?",
            rf"(?:please )?(?:express|enter|format|give|write|round|provide|leave|report|submit|input|put|box) "
            rf"{_ANSWER}(?:{_WORD})*",
        )
    )
)
_REQUEST = re.compile(r"^ (?:what is|what's|find|compute|calculate|evaluate|determine) (?:the (?:exact )?value of )?")
_KNOWN_WRAPPERS = (
    "Solve the following math problem efficiently and clearly.",
    "Solve the following problem.",
    "Let's think step by step and output the final answer within \\boxed{}.",
    "Let's think step by step.",
    "Please think step by step.",
    "Please reason step by step.",
    "The following is a math problem.",
    "State the final answer to the following arithmetic problem:",
    "Question:",
    "Problem:",
    "Answer:",
)


def words(text: str) -> tuple[str, ...]:
    """Return the words, numbers, operators and brackets of a problem, without wrappers and boilerplate.

    A text of nothing else keeps its tokens, so that no two problems are equal because both are empty.
    """
    tokens = list(_tokens(text))
    line = _WRAPPER.sub(" ", f" {' '.join(tokens)} ")
    kept = _BOILERPLATE.sub("", line)
    for rest in (_REQUEST.sub(" ", kept), kept, line):
        if finished := _finished(rest):
            return finished
    return tuple(token for token in tokens if token not in _STOPS)


def _finished(line: str) -> tuple[str, ...]:
    """Return the tokens without ends of sentences, and without a trailing `=` or `:`."""
    tokens = [token for token in line.split() if token not in _STOPS]
    while tokens and tokens[-1] in ("=", ":"):
        tokens.pop()
    return tuple(tokens)


def without_brackets(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Remove brackets: they distinguish formulas, but in prose copies may differ in them."""
    return tuple(token for token in tokens if token not in _BRACKETS)


def _tokens(text: str) -> Iterator[str]:
    """Yield the tokens, with `.` for every end of a sentence."""
    plain = written_out(text[:_LONGEST]).casefold()[:_LONGEST]
    plain = _FRACTION.sub(r"\1 \2 ", _FORMULA.sub(_formula, _DRAWINGS.sub(" ", plain)))
    plain = _SIGN.sub(lambda match: _SIGN_OF[match[0]], _LAYOUT.sub(" ", _GROUPING.sub("", plain)))
    for token in _TOKEN.findall(_HYPHEN.sub(" ", plain)):
        yield "." if token in _STOPS or token.isspace() else token


def _formula(match: re.Match[str]) -> str:
    """Return a formula without its delimiters; `a b`, a product, becomes `ab`, as most texts write it."""
    inner = match[0].strip("$")
    inner = inner[2:-2] if inner.startswith(("\\(", "\\[")) else inner
    return f" {_APART.sub(_FIRST, inner)} "


def _phrase(text: str) -> str:
    """Return a pattern for a wrapper's words, with any ends of sentences between them."""
    return " (?:\\. )*".join(re.escape(word) for word in _tokens(text) if word not in _STOPS)


def _wrappers() -> Iterator[str]:
    for template in ("boxed", "answer-line"):
        yield from render("\n\n\0\n\n", template).split("\0")
    yield from _KNOWN_WRAPPERS


_WRAPPER = re.compile(f" (?:{'|'.join(_phrase(text) for text in _wrappers() if text.strip())}) (?:\\. )*")
