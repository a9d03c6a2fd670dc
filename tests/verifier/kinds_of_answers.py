"""Kinds of answers with words, names and relations: units, money, options, inequalities, times, approximations."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from math import isqrt

from tests.verifier.kinds import Drawn, no_square, two, written


def letters_like_units(draw: random.Random) -> Drawn:
    """Letters without a space and without `\\text` are variables: the gold 2nm is not 2."""
    a, b = draw.randint(2, 20), draw.randint(2, 9)
    front = draw.choice([str(a), f"\\frac{{{a}}}{{{b * a + 1}}}", "\\pi ", f"{a}\\pi "])
    letters = draw.choice(["nm", "mi", "ft", "hr", "abcs", "pqrs", "xyzs", "bcms", "mg"])
    turned = "".join(draw.sample(letters, len(letters)))
    return draw.choice([
        Drawn(front + letters, [front + turned, front + letters[::-1]], [front.strip()]),
        Drawn(f"n+{a}km", [f"{a}mk+n", f"n+{a}mk"], [f"n+{a}", str(a), f"{a}km"]),
        Drawn(f"{a}{letters}", [f"{letters[::-1]}\\cdot {a}"], [str(a), f"{a + 1}{letters}"]),
    ])  # fmt: skip


def words_that_change_the_value(draw: random.Random) -> Drawn:
    a = draw.randint(4, 30)
    scale, size = draw.choice([("dozen", 12), ("hundred", 100), ("thousand", 1000), ("million", 10**6)])
    words = [f"{a} \\text{{ {word}}}" for word in (
        "thirds", "fourths", "halves", "tenths", "hundredths", "thousandths", "squared", "cubed", "factorial", "dozen",
        "million", "and a half", "choose 2", "to the fourth",
    )]  # fmt: skip
    words += [f"\\text{{{word} }} {a}" for word in ("half of", "minus", "not", "at least", "root", "twice", "under")]
    return draw.choice([
        Drawn(str(a), [f"{a} \\text{{ apples}}", f"{a} \\text{{ ways}}"], words),
        Drawn(f"{a} \\text{{ {scale}}}", [str(a * size)], [str(a), f"{a + 1} \\text{{ {scale}}}", str(a * size + 1)]),
    ])  # fmt: skip


def rates_and_money(draw: random.Random) -> Drawn:
    a, big = draw.randint(2, 60), draw.choice(["million", "billion"])
    zeros = {"million": "000000", "billion": "000000000"}[big]
    thing = draw.choice(["km", "miles", "m"])
    return draw.choice([
        Drawn(f"\\${a} \\text{{ per hour}}", [f"\\${24 * a} \\text{{ per day}}", f"\\${a}/\\text{{hour}}"],
              [f"\\${a} \\text{{ per day}}", f"\\${a}/\\text{{day}}", f"\\${a} \\text{{ per week}}"]),
        Drawn(f"{a} \\text{{ {thing} per hour}}", [f"{24 * a} \\text{{ {thing} per day}}"],
              [f"{a} \\text{{ {thing} per day}}", f"{a} \\text{{ {thing} per minute}}"]),
        Drawn(f"\\${a}", [f"{a} \\text{{ dollars}}", f"{100 * a} \\text{{ cents}}", str(a), f"{a} USD"],
              [f"{a} \\text{{ cents}}", f"{a} \\text{{ euros}}", f"\\${a} \\text{{ {big}}}"]),
        Drawn(f"{a} \\text{{ {big} dollars}}", [f"{a}{zeros}", f"\\${a} \\text{{ {big}}}"], [f"\\${a}", f"{a}00"]),
    ])  # fmt: skip


def several_options(draw: random.Random) -> Drawn:
    a, b = draw.sample("ABCDE", 2)
    k = draw.randint(2, 60)
    return Drawn(
        a,
        [f"({a})", f"\\text{{({a})}}", f"\\textbf{{({a})}}\\ {k}", f"\\mathrm{{({a})}}", f"({a}) {k}",
         f"\\boldsymbol{{{a}}}"],
        [f"\\text{{({a}) or ({b})}}", f"\\text{{({a}), ({b})}}", f"\\text{{({a})/({b})}}", f"{a}, {b}", f"{a}{b}",
         f"\\text{{({a}) and ({b})}}", f"\\text{{({a}) is wrong, ({b})}}", f"\\text{{({b})}}", f"({b}) {k}",
         f"\\text{{({a})}}, \\text{{({b})}}", f"\\text{{not ({a})}}",
         f"\\text{{({a})}} \\text{{ or }} \\text{{({b})}}"],
    )  # fmt: skip


def and_or_of_inequalities(draw: random.Random) -> Drawn:
    a, b = two(draw, -20, 20)
    return draw.choice([
        Drawn(f"{a}<x<{b}", [f"x>{a} \\text{{ and }} x<{b}", f"x<{b} \\text{{ and }} x>{a}", f"({a},{b})"],
              [f"x>{a} \\text{{ or }} x<{b}", f"x<{a} \\text{{ or }} x>{b}", f"x>{a}"]),
        Drawn(f"({a},{b})", [f"x>{a} \\text{{ and }} x<{b}"], [f"x>{a} \\text{{ or }} x<{b}"]),
        Drawn(f"(-\\infty,{a})\\cup({b},\\infty)", [f"x<{a} \\text{{ or }} x>{b}", f"x>{b} \\text{{ or }} x<{a}"],
              [f"x<{a} \\text{{ and }} x>{b}", f"x>{a} \\text{{ and }} x<{b}", f"x<{a}",
               f"x>{a} \\text{{ or }} x<{b}"]),
    ])  # fmt: skip


def angle_names(draw: random.Random) -> Drawn:
    a, b, c, d = draw.sample("ABCDFGKLMPQRST", 4)
    return draw.choice([
        Drawn(f"\\angle {a}{b}{c}", [f"\\angle {c}{b}{a}"],
              [f"\\angle {b}{a}{c}", f"\\angle {a}{c}{b}", f"\\angle {c}{a}{b}", f"\\angle {a}{b}{d}"]),
        Drawn(f"\\angle {a}{b}{c} = \\angle {d}{b}{c}", [f"\\angle {a}{b}{c}=\\angle {d}{b}{c}"],
              [f"\\angle {b}{a}{c} = \\angle {d}{b}{c}"]),
    ])  # fmt: skip


def clock_times_and_dates(draw: random.Random) -> Drawn:
    hour, minute = draw.randint(1, 12), draw.randint(10, 59)
    month, day = two(draw, 1, 12)
    year, name = draw.randint(1900, 2030), draw.choice(["March", "July", "October"])
    time, date = f"{hour}:{minute}", f"{year}-{month:02}-{day:02}"
    ratio = Fraction(hour, minute)
    return draw.choice([
        Drawn(time, [f"\\text{{{time}}}", f"${time}$"],
              [written(ratio), f"{hour}/{minute}", str(hour), f"{hour}{minute}", f"{hour % 12 + 1}:{minute}"]),
        Drawn(f"{time} \\text{{ p.m.}}", [f"{time} \\text{{ PM}}", f"\\text{{{time} p.m.}}"],
              [f"{time} \\text{{ a.m.}}"]),
        Drawn(date, [f"\\text{{{date}}}"],
              [str(year - month - day), f"{year}-{day:02}-{month:02}", f"{year}-{month:02}-{day + 1:02}", str(year)]),
        Drawn(f"\\text{{{name} {day}}}", [f"{name} {day}"], [f"\\text{{{name} {day + 1}}}", f"\\text{{May {day}}}"]),
    ])  # fmt: skip


def ratios(draw: random.Random) -> Drawn:
    """Minutes of a clock have two digits, so a second term of one digit makes a ratio."""
    a, b = draw.choice([(1, 2), (1, 3), (1, 4), (2, 3), (3, 4), (2, 1), (3, 1), (4, 1), (3, 2), (4, 3)])
    c = draw.randint(5, 9)
    return draw.choice([
        Drawn(f"{a}:{b}", [f"{2 * a}:{2 * b}", f"{a} : {b}", f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}"],
              [f"{b}:{a}", f"{a}:{b + 1}", f"\\frac{{{b}}}{{{a}}}"]),
        Drawn(f"{a}:{b}:{c}", [f"{a} : {b} : {c}", f"{2 * a}:{2 * b}:{2 * c}"],
              [f"{a * a}:{b * b}:{c * c}", f"{b}:{a}:{c}", f"{a}:{b}", f"{a}:{b}:{c + 1}"]),
    ])  # fmt: skip


def numerals_with_a_base(draw: random.Random) -> Drawn:
    """An answer may leave out the gold's base, but a base is no decoration of a gold without one."""
    base = draw.randint(5, 9)
    digits = "".join(str(draw.randrange(1, base)) for _ in range(draw.randint(2, 4)))
    return draw.choice([
        Drawn(f"{digits}_{base}", [f"{digits}_{{{base}}}", f"{digits}_{{({base})}}", digits],
              [f"{digits}_{{{base + 1}}}", f"{digits}1_{base}", f"{digits}{base}"]),
        Drawn(digits, [digits, f"{digits}_{{10}}", f"{digits}_{{\\text{{ten}}}}"],
              [f"{digits}_{base}", f"{digits}{base}"]),
    ])  # fmt: skip


def approximations(draw: random.Random) -> Drawn:
    """An exact value with its approximation is the exact value; two different integers are no value at all."""
    n = no_square(draw, 2)
    a = draw.randint(2, 60)
    places = f"{isqrt(n * 10**4) // 100}.{isqrt(n * 10**4) % 100:02}"
    third = Fraction(draw.choice([1, 2, 4, 5, 7, 8]), 9)
    return draw.choice([
        Drawn(f"{a}", [f"{a}"], [f"{a} \\approx {a + 1}", f"{a + 1}\\approx {a}"]),
        Drawn(f"\\sqrt{{{n}}}", [f"\\sqrt{{{n}}}\\approx {places}"], [f"\\sqrt{{{n + 1}}}\\approx {places}", places]),
        Drawn(written(third), [f"{written(third)} \\approx {float(third):.3f}"],
              [f"{written(1 - third)}\\approx 0.5"]),
    ])  # fmt: skip


def values_of_expressions(draw: random.Random) -> Drawn:
    """`m+n = 293` states a value. `2x = 10` is an equation to be solved, and 10 is not its solution."""
    part, value = two(draw, 2, 400)
    name, turned = draw.choice([
        ("m+n", "n+m"), ("a+b+c", "c+a+b"), ("p+q", "q+p"), ("|z|", "|z|"), ("|AB|", "|BA|"), ("P(A|B)", "P(A|B)"),
        ("\\frac{a}{b}", "a/b"), ("\\text{Area}", "\\text{Area}"), ("Area", "Area"), ("\\lim_{x\\to 0} f(x)",) * 2,
    ])  # fmt: skip
    return draw.choice([
        Drawn(f"{name} = {value}", [str(value), f"{turned} = {value}", f"{name} = {part}+{value - part} = {value}"],
              [str(value + 1), f"{name} = {value + 1}", f"{name} = {part}+{value - part} = {value + 1}"]),
        Drawn(f"2x = {2 * value}", [f"x = {value}"], [str(2 * value), f"x = {2 * value}"]),
        Drawn(f"m+n = {value}", [f"n+m = {value}"], [f"m-n = {value}", f"mn = {value}"]),
    ])  # fmt: skip


def functions_with_their_domain(draw: random.Random) -> Drawn:
    f, k = draw.choice("fgP"), draw.randint(2, 30)
    domain = draw.choice([
        "for all real } x", "for all } x", "for all real numbers } x", "for any } x", "for every real number } x",
        "for all } x \\in \\mathbb{R}",
    ])  # fmt: skip
    constant = draw.choice(["for any constant } c", "for any real constant } c", "where } c \\text{ is a constant}"])
    return draw.choice([
        Drawn(f"{f}(x)={k}x", [f"{f}(x)={k}x \\text{{ {domain}", f"{f}(x) = {k}x, \\text{{ {domain}"],
              [f"{f}(x)={k + 1}x \\text{{ {domain}", f"{f}(x)={k}x, {f}(x)=-x", f"{f}(x)={k} \\text{{ {domain}"]),
        Drawn(f"{f}(x)=cx", [f"{f}(x)=cx \\text{{ {constant}"], [f"{f}(x)=cx^2 \\text{{ {constant}", f"{f}(x)=c"]),
    ])  # fmt: skip


def letters_in_another_order(draw: random.Random) -> Drawn:
    """Letters that are no word are a product, which commutes."""
    letters = draw.sample("bcfkmnpqrstvwxz", draw.randint(4, 6))
    number = draw.choice(["", str(draw.randint(2, 20))])
    one, turned = number + "".join(letters), number + "".join(letters[::-1])
    return Drawn(one, [turned, number + "".join(sorted(letters))], [one[:-1] + "y", one[:-1], turned + "y"])


KINDS_OF_ANSWERS: tuple[Callable[[random.Random], Drawn], ...] = (
    letters_like_units, words_that_change_the_value, rates_and_money, several_options, and_or_of_inequalities,
    angle_names, clock_times_and_dates, ratios, numerals_with_a_base, approximations, values_of_expressions,
    functions_with_their_domain, letters_in_another_order,
)  # fmt: skip
ONE_WAY = {letters_like_units, several_options, clock_times_and_dates, numerals_with_a_base, approximations}
"""Kinds whose text is always the gold: the other way round, a grader may be lenient or strict with good reason."""
