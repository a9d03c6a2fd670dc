"""What every config section shares: frozen, strict, and no key that nobody asked for."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen config section that refuses unknown keys and silent type conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    def identity(self) -> dict[str, Any]:
        """Everything in this section, as plain JSON values, for a stage's fingerprint."""
        return self.model_dump(mode="json")


class Impossible(ValueError):  # noqa: N818 - says what is the case
    """Raised inside validators: a combination that cannot run, with the field's path and the fix."""

    def __init__(self, field: str, what: str, fix: str) -> None:
        super().__init__(what)
        self.field = field
        self.what = what
        self.fix = fix
