"""Rules for equal answers where notation is ambiguous: a field each, its default first."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Policies(BaseModel):
    """The verifier's choices. They change verdicts, so they are part of every fingerprint that depends on one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    boxes: Literal["last", "single"] = "last"
    """Several boxed answers: `last` decides, `single` refuses more than one."""
    text_after: Literal["allow", "refuse"] = "allow"
    """Words after the final answer: `allow` ignores them, `refuse` makes such a completion wrong."""
    units: Literal["compare", "ignore", "require"] = "compare"
    """`compare` where both sides have one (5000 m is 5 km, 5 m is not) and drop a unit on one side; `ignore` all; or
    `require` the gold's."""
    percent: Literal["either", "strict"] = "either"
    """50% equals `either` 50 or 0.5 where the other side has no percent sign; `strict` takes it for 0.5 alone."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Greatest relative difference from the gold where one side is written as a decimal (0.333, 3.1e8); 0 is exact:
    0.333 is not 1/3. Integers and fractions are always exact."""
    arithmetic: Literal["evaluate", "refuse"] = "evaluate"
    """An answer left as arithmetic where the gold is a plain number, 4 + 3 or 10! for it: `evaluate`, or `refuse` as
    wrong, since a policy could copy the question out. Fractions of numbers, percentages and roots are finished."""


DEFAULT = Policies()
"""The default policies of a verifier."""
