"""Rules for equal answers where notation is ambiguous: a field each, its default first."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Policies(BaseModel):
    """The verifier's choices. They change verdicts, so they are part of every fingerprint that depends on one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    boxes: Literal["last", "agreeing", "single"] = "last"
    """Several boxed answers: `last` decides, `agreeing` refuses boxes that differ, `single` refuses more than one."""
    text_after: Literal["allow", "refuse"] = "allow"
    """Words after the final answer: `allow` ignores them, `refuse` makes such a completion wrong."""
    units: Literal["compare", "ignore", "require"] = "compare"
    """`compare` where both sides have one (5000 m is 5 km, 5 m is not) and drop a unit on one side; `ignore` all; or
    `require` the gold's."""
    percent: Literal["either", "strict"] = "either"
    """50% equals `either` 50 or 0.5 where the other side has no percent sign; `strict` takes it for 0.5 alone."""
    intervals: Literal["strict", "lenient"] = "strict"
    """`strict` distinguishes (1, 2] from [1, 2], and x > 3 from x >= 3; `lenient` does not."""
    lists: Literal["unordered", "ordered"] = "unordered"
    """The order of answers listed without brackets, such as the solutions 1, 2. Each counts as often as it is listed.
    Sets in braces never have an order, and their duplicates are merged."""
    tuples: Literal["ordered", "unordered"] = "ordered"
    """The order of the entries of tuples: (1, 2) differs from (2, 1) if `ordered`. Intervals are always ordered."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Greatest relative difference from the gold where one side is written as a decimal (0.333, 3.1e8); 0 is exact:
    0.333 is not 1/3. Integers and fractions are always exact."""
    mixed_numbers: Literal["sum", "product"] = "sum"
    """1\\frac{1}{2} is a `sum`, 3/2, or a `product`, 1/2. Before an improper fraction it is always a product."""
    equations: Literal["value", "whole"] = "value"
    """`value`: x = 5 equals 5 when one side alone is an equation in one name; `whole` compares equations with equations
    only. Two equations are equal when one is a multiple of the other: x = 5 and 2x = 10, not y = 5."""
    arithmetic: Literal["evaluate", "refuse"] = "evaluate"
    """An answer left as arithmetic where the gold is a plain number, 4 + 3 or 10! for it: `evaluate`, or `refuse` as
    wrong, since a policy could copy the question out. Fractions of numbers, percentages and roots are finished."""
    thousands: Literal["comma", "point", "none"] = "comma"
    """1,000.5 (`comma`), 1.000,5 (`point`; lists then need `;` or a space), or `none`: a comma always separates list
    entries. In brackets, (1,234) is a pair."""


DEFAULT = Policies()
"""The default policies of a verifier."""
