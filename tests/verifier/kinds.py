"""Kinds of answers that graders get wrong, each with pairs of its own whose truth is known by construction.

A kind draws a text, the texts that a careful human accepts for it, and the texts that she refuses: the mistakes of
graders, such as a sum in place of a product. Where opinions differ, a docstring says which one is meant. Values are
computed here with integers and fractions, never by the verifier. This file has the kinds of formulas.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import factorial, isqrt
from typing import NamedTuple

from tests.verifier.random_pairs import Pair


class Drawn(NamedTuple):
    """A text, texts that are equal to it, and texts that are not."""

    text: str
    equal: list[str]
    unequal: list[str]


def pairs_of(kind: Callable[[random.Random], Drawn], seed: int, count: int, *, one_way: bool = False) -> Iterator[Pair]:
    """Yield `count` equal and as many unequal pairs of a kind; the text is either side of the pair, or the gold."""
    draw = random.Random(f"{seed} {kind.__name__}")
    for at in range(2 * count):
        drawn, equal = kind(draw), at % 2 == 0
        pair = [draw.choice(drawn.equal if equal else drawn.unequal), drawn.text]
        if not one_way:
            draw.shuffle(pair)
        yield Pair(pair[0], pair[1], equal, kind.__name__)


def written(value: Fraction | int) -> str:
    """Write a number as an integer or as `\\frac`."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def two(draw: random.Random, low: int, high: int) -> tuple[int, int]:
    """Return two different numbers, the smaller first."""
    one, other = sorted(draw.sample(range(low, high + 1), 2))
    return one, other


def _constant(draw: random.Random) -> int:
    """Return a positive integer of any size up to ten million."""
    return draw.randint(1, 9) * 10 ** draw.randint(0, 6) + draw.randint(0, 9)


def _letters(draw: random.Random, count: int) -> list[str]:
    """Return different letters that are no constants and no usual names of functions."""
    return draw.sample("abcmnpqrstuvwxyz", count)


def no_square(draw: random.Random, low: int) -> int:
    """Return a number below 100 whose root is irrational."""
    return draw.choice([n for n in range(low, 100) if isqrt(n) ** 2 != n])


def numbers_before_brackets(draw: random.Random) -> Drawn:
    a, b, c = (draw.randint(2, 30) for _ in range(3))
    small, p, q = draw.randint(2, 4), draw.randint(1, 9), draw.randint(2, 9)
    half, part = Fraction(2 * b + 1, 2), Fraction(p, q)
    text, value, mistakes = draw.choice([
        (f"{a}({b})", a * b, [a + b, int(f"{a}{b}")]),
        (f"{a}\\left({b}\\right)", a * b, [a + b]),
        (f"({a})({b})", a * b, [a + b]),
        (f"({-a})({b})", -a * b, [b - a, a * b]),
        (f"{a}({b})({c})", a * b * c, [a + b + c, a * b + c]),
        (f"\\frac{{{a}({b})}}{{{c}}}", Fraction(a * b, c), [Fraction(a + b, c)]),
        (f"\\frac{{{a}({a + 1})}}{{2}}", Fraction(a * (a + 1), 2), [Fraction(2 * a + 1, 2)]),
        (f"{a}({b})+{c}", a * b + c, [a + b + c, a * (b + c)]),
        (f"{c}-{a}({b})", c - a * b, [c - a - b, c - a + b]),
        (f"2^{{{small}({p})}}", 2 ** (small * p), [2 ** (small + p)]),
        (f"{a}({b}.5)", a * half, [a + half]),
        (f"{a}(10^{small})", a * 10**small, [a + 10**small]),
        (f"{a}({p}!)", a * factorial(p), [a + factorial(p)]),
        (f"{a}\\left({written(part)}\\right)", a * part, [a + part]),
        (f"{a}({p}/{q})", a * part, [a + part]),
    ])  # fmt: skip
    # A hundredfold may be a percentage, so only other numbers count as mistakes.
    wrong = [other for other in [*mistakes, value + 1] if value not in (other, 100 * other, Fraction(other) / 100)]
    return Drawn(text, [written(value)], list(map(written, wrong)))


def letters_in_brackets(draw: random.Random) -> Drawn:
    x, (y, z), a, b = draw.choice("nx"), draw.sample("abcmpqrstuvwyz", 2), draw.randint(3, 20), draw.randint(3, 20)
    return draw.choice([
        Drawn(f"{x}({a})", [f"{a}{x}"], [f"{x}+{a}", x]),
        Drawn(f"\\pi({a})", [f"{a}\\pi"], [f"{a}+\\pi"]),
        Drawn(f"{a}({b}){x}", [f"{a * b}{x}"], [f"{a + b}{x}", f"{a}+{b}{x}"]),
        Drawn(f"{x}({y})({z})", [f"{x}{y}{z}", f"{z}{y}{x}"], [f"{x}+{y}+{z}", f"{x}({y}+{z})"]),
        Drawn(f"\\sqrt{{{a}({b})}}", [f"\\sqrt{{{a * b}}}"], [f"\\sqrt{{{a + b}}}"]),
        Drawn(f"{a}\\frac{{{x}}}{{{y}}}", [f"\\frac{{{a}{x}}}{{{y}}}"], [f"{a}+\\frac{{{x}}}{{{y}}}"]),
        Drawn(f"{a}\\frac{{{x}+{b}}}{{{z}}}", [f"\\frac{{{a}{x}+{a * b}}}{{{z}}}"], [f"{a}+\\frac{{{x}+{b}}}{{{z}}}"]),
        Drawn(f"{x}\\frac{{{y}}}{{{a}}}", [f"\\frac{{{x}{y}}}{{{a}}}"], [f"{x}+\\frac{{{y}}}{{{a}}}"]),
    ])  # fmt: skip


def cycles_of_permutations(draw: random.Random) -> Drawn:
    """Disjoint cycles commute. A cycle that begins elsewhere is not asked for: most graders compare the notation."""
    a, b, c, d = draw.sample(range(1, 10), 4)
    space = draw.choice(["\\ ", " "])

    def cycle(*members: int) -> str:
        return "(" + space.join(map(str, members)) + ")"

    return draw.choice([
        Drawn(cycle(a, b) + cycle(c, d), [cycle(c, d) + cycle(a, b)],
              [cycle(a, c) + cycle(b, d), cycle(a, b), str(a * b * c * d), str(a + b + c + d)]),
        Drawn(cycle(a, b, c), [cycle(a, b, c).replace(space, "\\,")],
              [cycle(a, c, b), cycle(a, b), str(a + b + c), str(a * b * c), f"({a}{b}{c})"]),
        Drawn(cycle(a, b), [cycle(a, b).replace(space, "\\;")], [str(a + b), str(a * b), f"{a}{b}", cycle(a, c)]),
    ])  # fmt: skip


def numbers_side_by_side(draw: random.Random) -> Drawn:
    """Two numbers with a space between them are no product, no sum, and no longer number."""
    a, b = two(draw, 2, 60)
    space = draw.choice(["\\quad ", "\\qquad ", "\\text{ }", "\\ \\ "])
    return Drawn(f"{a}{space}{b}", [f"{a}{space} {b}"], [str(a * b), str(a + b), f"{a}{b}", str(a), str(b)])


def superscript_letters(draw: random.Random) -> Drawn:
    (x, y), k = _letters(draw, 2), draw.randint(1, 9)
    up, mark = draw.choice("TCHNS"), draw.choice(["*", "\\ast", "\\dagger", "\\top"])
    base, turned = draw.choice([(f"{k}+{x}", f"{x}+{k}"), (f"{x}+{y}", f"{y}+{x}")])
    return draw.choice([
        Drawn(f"({base})^{up}", [f"({turned})^{{{up}}}"], [base, f"({base})^{up.lower()}", f"({base})^2"]),
        Drawn(f"{y}({base})^{{{up}}}", [f"({turned})^{up}{y}"], [f"{y}({base})", f"{y}+({base})^{up}"]),
        Drawn(f"({base})^{{{up}+1}}", [f"({base})({base})^{up}"], [f"({base})^{{{up}}}", base]),
        Drawn(f"{x}^{up}", [f"{x}^{{{up}}}"], [x, f"{x}{up}", f"{x}_{up}"]),
        Drawn(f"{k}{x}^{{{mark}}}", [f"{k} {x}^{{{mark}}}"], [f"{k}{x}", f"{k}{x}^2"]),
    ])  # fmt: skip


def absolute_values(draw: random.Random) -> Drawn:
    x, c, k = *_letters(draw, 1), _constant(draw), draw.randint(2, 9)
    return draw.choice([
        Drawn(f"|{x}-{c}|", [f"|{c}-{x}|", f"\\sqrt{{({x}-{c})^2}}"], [f"{x}-{c}", f"{c}-{x}", f"|{x}|-{c}"]),
        Drawn(f"|{x}+{c}|", [f"\\left|-{x}-{c}\\right|"], [f"{x}+{c}", f"|{x}|+{c}", f"-{x}-{c}"]),
        Drawn(f"|{x}-{c}|+|{x}+{c}|", [f"|{c}+{x}|+|{c}-{x}|"], [str(2 * c), f"2{x}", f"-2{x}", f"2|{x}|"]),
        Drawn(f"|{k}{x}-{c}|", [f"|{c}-{k}{x}|"], [f"{k}{x}-{c}", f"{c}-{k}{x}", f"{k}|{x}-{c}|"]),
        Drawn(f"\\sqrt{{({x}-{c})^2}}", [f"|{c}-{x}|"], [f"{x}-{c}", f"{c}-{x}"]),
    ])  # fmt: skip


def minima_and_maxima(draw: random.Random) -> Drawn:
    x, c = *_letters(draw, 1), _constant(draw) * draw.choice([-1, 1])
    least = draw.random() < 0.5
    name, other, sign = ("\\min", "\\max", "-") if least else ("\\max", "\\min", "+")
    return Drawn(
        f"{name}({x},{c})",
        [f"{name}({c},{x})", f"{name}\\left({c}, {x}\\right)", f"\\frac{{{x}+({c}){sign}|{x}-({c})|}}{{2}}"],
        [x, str(c), f"{other}({x},{c})", f"{name}({x},{c + 1})", f"{x}+{c}" if c > 0 else f"{x}{c}"],
    )


def floors_and_ceilings(draw: random.Random) -> Drawn:
    """The variable n stands for an integer, x for a real number."""
    c, k = _constant(draw), draw.randint(2, 30)
    return draw.choice([
        Drawn("\\lfloor x\\rfloor", ["\\left\\lfloor x \\right\\rfloor", "-\\lceil -x\\rceil"],
              ["x", "\\lceil x\\rceil", "\\lceil x\\rceil-1", "x-1", "2x-\\lfloor x\\rfloor"]),
        Drawn(f"\\lfloor x+{c}\\rfloor", [f"\\lfloor x\\rfloor+{c}"], [f"x+{c}", f"\\lfloor x\\rfloor+{c + 1}"]),
        Drawn(f"\\lfloor \\frac{{x}}{{{c + 1}}}\\rfloor", [f"-\\lceil -\\frac{{x}}{{{c + 1}}}\\rceil"],
              ["0", f"\\frac{{x}}{{{c + 1}}}", "-1", "1"]),
        Drawn(f"\\lfloor \\frac{{n}}{{{k}}}\\rfloor", [f"\\lceil \\frac{{n+1}}{{{k}}}\\rceil-1"],
              [f"\\lceil \\frac{{n}}{{{k}}}\\rceil-1", f"\\lceil \\frac{{n}}{{{k}}}\\rceil", f"\\frac{{n}}{{{k}}}"]),
        Drawn(f"\\lfloor {k}x\\rfloor", [f"-\\lceil -{k}x\\rceil"], [f"{k}\\lfloor x\\rfloor", f"{k}x"]),
        Drawn("\\lceil x\\rceil", ["-\\lfloor -x\\rfloor"], ["x", "\\lfloor x\\rfloor+1", "x+1"]),
        Drawn("\\sin(\\pi x)+\\lfloor x\\rfloor", ["\\lfloor x\\rfloor+\\sin(\\pi x)"], ["\\lfloor x\\rfloor"]),
    ])  # fmt: skip


def roman_constants(draw: random.Random) -> Drawn:
    a, b, k = draw.randint(2, 9), draw.randint(2, 9), draw.randint(2, 5)
    roman = draw.choice(["\\mathrm{i}", "\\text{i}"])
    return draw.choice([
        Drawn(f"{a}+{b}{roman}", [f"{a}+{b}i", f"{b}i+{a}"], [str(a + b), str(a), f"{a}-{b}i", f"{a}+{b}"]),
        Drawn(f"{b}{roman}", [f"{b}i", f"i\\cdot {b}"], [str(b), f"-{b}i", f"{b + 1}i"]),
        Drawn(f"{a}\\mathrm{{e}}^{{{k}}}", [f"{a}e^{k}", f"e^{{{k}}}\\cdot {a}"], [str(a), f"{a}e", f"{a * k}"]),
        Drawn(f"{a}\\mathrm{{e}}", [f"{a}e"], [str(a), f"{a}e^2", f"{a}\\mathrm{{e}}^2"]),
        Drawn(f"{a}-\\mathrm{{e}}", [f"-e+{a}"], [str(a), f"{a}+e"]),
    ])  # fmt: skip


def arguments_of_functions(draw: random.Random) -> Drawn:
    f, a, b, c, k = draw.choice(["sin", "cos", "tan"]), *(draw.randint(2, 9) for _ in range(4))
    p = draw.choice([3, 5, 6, 7])
    return draw.choice([
        Drawn(f"\\{f}{{x}}/x", [f"\\frac{{\\{f} x}}{{x}}"], [f"\\{f} 1", f"\\{f}(x/x)"]),
        Drawn(f"\\ln{{{a}}}/{b}", [f"\\frac{{\\ln {a}}}{{{b}}}"],
              [f"\\ln\\frac{{{a}}}{{{b}}}" if a ** (b - 1) != b**b else f"\\ln {b + a * a}"]),
        Drawn(f"\\log_{a}{{{a**2}}}/(x+{c})", [f"\\frac{{2}}{{x+{c}}}"], [f"\\log_{a}\\frac{{{a**2}}}{{x+{c}}}"]),
        Drawn(f"{a}\\{f} x\\cdot {b}", [f"{a * b}\\{f} x"], [f"{a}\\{f}({b}x)", f"{a}\\{f} x+{b}"]),
        Drawn(f"\\log_2 {p}\\cdot\\log_{p} {2**k}", [str(k), f"\\log_2 {2**k}"],
              [f"\\log_2({p}\\log_{p} {2**k})", str(k + 1)]),
        Drawn(f"\\{f} x+{a}", [f"{a}+\\{f}(x)"], [f"\\{f}(x+{a})", f"\\{f} {a}+x"]),
        Drawn(f"\\{f}^2 x", [f"(\\{f} x)^2"], [f"\\{f}(x^2)", f"\\{f}(\\{f} x)"]),
        Drawn(f"\\{f} {a}x", [f"\\{f}({a}x)"], [f"x\\{f} {a}", f"{a}\\{f} x"]),
        Drawn(f"(\\ln x)^{a}", [f"\\ln^{a} x"], [f"\\ln(x^{a})", f"{a}\\ln x"]),
    ])  # fmt: skip


def primes_and_inverse_functions(draw: random.Random) -> Drawn:
    f, (a, b), k = draw.choice("fgh"), two(draw, 2, 9), draw.randint(2, 9)
    return draw.choice([
        Drawn(f"{f}'(x)={k}x", [f"{f}^{{\\prime}}(x) = {k}x", f"{k}x = {f}'(x)"],
              [f"y={k}x", f"{f}(x)={k}x", f"{f}''(x)={k}x", f"{f}'(x)={k + 1}x"]),
        Drawn(f"{f}'({a})", [f"{f}^\\prime({a})"], [f"{f}({a})", f"{f}''({a})", f"{f}'({b})"]),
        Drawn(f"{f}^{{-1}}({a})", [f"{f}^{{-1}}\\left({a}\\right)"],
              [f"\\frac{{1}}{{{f}({a})}}", f"{f}({a})", f"{f}^{{-1}}({b})", f"({f}({a}))^{{-1}}"]),
        Drawn(f"{f}^{{-1}}({a})={b}", [f"{b}={f}^{{-1}}({a})", str(b)], [f"{f}({a})={b}", f"{f}^{{-1}}({b})={a}"]),
        Drawn("x'", ["x^\\prime", "x^{\\prime}"], ["x", "x''", "x^2"]),
    ])  # fmt: skip


def unicode_roots(draw: random.Random) -> Drawn:
    n = no_square(draw, 10)
    k, first, last = draw.randint(2, 9), n // 10, n % 10
    return draw.choice([
        Drawn(f"\\sqrt{{{n}}}", [f"\u221a{n}", f"\u221a({n})", f"\u221a{{{n}}}"],
              ["0", f"\\sqrt{{{first}}}\\cdot {last}", str(n), f"\u221a{n + 1}"]),
        Drawn(f"{k}\\sqrt{{{n}}}", [f"{k}\u221a{n}", f"{k} \u221a({n})"], [str(k), f"{k}\u221a{first}", f"\u221a{n}"]),
        Drawn(f"\\frac{{\\sqrt{{{n}}}}}{{{k}}}", [f"\u221a{n}/{k}", f"(\u221a{n})/{k}"],
              [f"\u221a({n}/{k})", f"\u221a{n}"]),
        Drawn(f"\\sqrt{{x+{k}}}", [f"\u221a(x+{k})"], [f"\u221ax+{k}", f"x+{k}"]),
    ])  # fmt: skip


def products_of_roots(draw: random.Random) -> Drawn:
    (x, y), k = _letters(draw, 2), draw.randint(2, 30)
    return draw.choice([
        Drawn(f"\\sqrt{{{x}}}\\sqrt{{{y}}}", [f"\\sqrt{{{x}{y}}}"], [f"\\sqrt{{{x}+{y}}}", f"-\\sqrt{{{x}{y}}}"]),
        Drawn(f"\\sqrt{{{x}}}\\sqrt{{{x}+{k}}}", [f"\\sqrt{{{x}({x}+{k})}}", f"\\sqrt{{{x}^2+{k}{x}}}"],
              [f"\\sqrt{{{x}({x}+{k + 1})}}", f"-\\sqrt{{{x}({x}+{k})}}", x]),
        Drawn(f"\\sqrt{{{k}}}\\sqrt{{{x}}}", [f"\\sqrt{{{k}{x}}}"], [f"\\sqrt{{{k}+{x}}}", f"{k}\\sqrt{{{x}}}"]),
        Drawn(f"\\frac{{\\sqrt{{{x}}}}}{{\\sqrt{{{y}}}}}", [f"\\sqrt{{\\frac{{{x}}}{{{y}}}}}"], [f"\\sqrt{{{x}{y}}}"]),
        Drawn(f"\\sqrt{{{k}{x}{y}}}", [f"\\sqrt{{{k}{x}}}\\sqrt{{{y}}}"], [f"\\sqrt{{{k}{x}}}+\\sqrt{{{y}}}"]),
    ])  # fmt: skip


def odd_roots(draw: random.Random) -> Drawn:
    """The odd root of a negative number is the real one."""
    k, power = draw.randint(2, 9), draw.choice([3, 5, 7])
    # t is the sum of the cube roots of p + sqrt(q) and p - sqrt(q), whose product is m.
    t, m = draw.randint(1, 5), draw.choice([-5, -3, -1])
    p = (t**3 - 3 * m * t) // 2
    q = p * p - m**3
    nested = "+".join(f"\\sqrt[3]{{{p}{sign}\\sqrt{{{q}}}}}" for sign in "+-")
    return draw.choice([
        Drawn(f"\\sqrt[{power}]{{-{k**power}}}", [str(-k)], [str(k), "-1", str(1 - k), f"{k}i"]),
        Drawn(nested, [str(t)], [str(-t), str(t + 1), f"2\\sqrt[3]{{{p}}}"]),
        Drawn(f"\\sqrt[3]{{-{k}}}", [f"-\\sqrt[3]{{{k}}}"], [f"\\sqrt[3]{{{k}}}", f"-\\sqrt{{{k}}}"]),
        Drawn(f"\\sqrt[{power}]{{x^{power}}}", ["x"], ["-x", "|x|"]),
        Drawn(f"-{k}", [f"-\\sqrt[4]{{{k**4}}}"], [f"\\sqrt[4]{{-{k**4}}}"]),
    ])  # fmt: skip


def _rows(rows: list[list[str]], kind: str) -> str:
    left, right = {
        "pmatrix": ("\\begin{pmatrix}", "\\end{pmatrix}"), "bmatrix": ("\\begin{bmatrix}", "\\end{bmatrix}"),
        "(": ("\\left(\\begin{array}{cc}", "\\end{array}\\right)"),
        "[": ("\\left[\\begin{array}{rr}", "\\end{array}\\right]"),
    }[kind]  # fmt: skip
    return " ".join([left, " \\\\ ".join(" & ".join(row) for row in rows), right])


def arrays_and_scaled_matrices(draw: random.Random) -> Drawn:
    a, b, c, d = draw.sample(range(-9, 10), 4)
    k = draw.randint(2, 7)
    matrix, others, array = [[a, b], [c, d]], [[[a, c], [b, d]], [[a, b], [c, d + 1]], [[a, b]]], draw.choice("([")

    def shown(matrix: list[list[int]], kind: str, over: int = 1) -> str:
        return _rows([[written(Fraction(value, over)) for value in row] for row in matrix], kind)

    plain = draw.choice(["pmatrix", "bmatrix"])
    return draw.choice([
        Drawn(shown(matrix, array), [shown(matrix, plain)], [shown(other, plain) for other in others]),
        Drawn(f"\\frac1{k}{shown(matrix, plain)}", [shown(matrix, "pmatrix", k)],
              [shown(matrix, "pmatrix"), shown(matrix, "pmatrix", k + 1), shown(others[0], "pmatrix", k)]),
        Drawn(f"\\frac{{1}}{{{k}}}{shown(matrix, array)}", [shown(matrix, "bmatrix", k)], [shown(matrix, array)]),
        Drawn(f"{k}{shown(matrix, plain)}", [shown([[k * v for v in row] for row in matrix], "pmatrix")],
              [shown(matrix, "pmatrix"), shown([[k + v for v in row] for row in matrix], "pmatrix")]),
    ])  # fmt: skip


KINDS_OF_FORMULAS: tuple[Callable[[random.Random], Drawn], ...] = (
    numbers_before_brackets, letters_in_brackets, cycles_of_permutations, numbers_side_by_side, superscript_letters,
    absolute_values, minima_and_maxima, floors_and_ceilings, roman_constants, arguments_of_functions,
    primes_and_inverse_functions, unicode_roots, products_of_roots, odd_roots, arrays_and_scaled_matrices,
)  # fmt: skip
