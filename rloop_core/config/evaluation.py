"""The identity section of evaluation: sets, how each is sampled, and how a checkpoint is chosen."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rloop_core.config.base import Impossible, Section
from rloop_core.config.identity import Positive, ProblemSource, Rate

Share = Annotated[float, Field(gt=0, le=1)]

SAMPLING = ("samples", "k", "temperature", "top_p", "max_completion_tokens")
"""The settings of `evaluate` that a set may have for itself."""


class EvaluatedSet(ProblemSource):
    """A problem set to evaluate on; a sampling setting of its own goes before the section's."""

    samples: Positive | None = None
    """Completions sampled for each problem of this set; null takes the section's."""
    k: tuple[Positive, ...] | None = None
    """The k of pass@k on this set; null takes the section's."""
    temperature: Rate | None = None
    """Sampling temperature on this set; null takes the section's."""
    top_p: Share | None = None
    """Nucleus sampling on this set; null takes the section's."""
    max_completion_tokens: Positive | None = None
    """Longest completion on this set; null takes the section's."""

    def identity(self) -> dict[str, Any]:
        """Which problems these are, as for any other source: how they are sampled is not part of it."""
        return self.model_dump(mode="json", exclude=set(SAMPLING))

    @property
    def own(self) -> dict[str, Any]:
        """The sampling settings that it has for itself, as plain JSON values."""
        return self.model_dump(mode="json", include=set(SAMPLING), exclude_none=True)


class EvaluateConfig(Section):
    """Evaluation of theta_{i+1} (paper 5.1): avg@k and unbiased pass@k on every listed set."""

    sets: tuple[EvaluatedSet, ...] = ()
    """Problem sets to evaluate on, each with sampling settings of its own where it needs them."""
    samples: Positive = 32
    """Completions sampled for each problem."""
    k: tuple[Positive, ...] = (1, 8, 16, 32)
    """The k of pass@k; none above `samples`."""
    temperature: Rate = 1.0
    """Sampling temperature."""
    top_p: Share = 1.0
    """Nucleus sampling."""
    max_completion_tokens: Positive | None = None
    """Longest completion; null takes explore's."""
    base: bool = True
    """Evaluate theta_0 too, so that gains can be read off."""
    snapshots: bool = False
    """Evaluate explore's snapshots too, for the matrices and curves over RL steps (`explore.snapshot_every`)."""
    select_on: str | None = None
    """Label of the set on which the best checkpoint is chosen; its own value there is biased upwards."""
    select_by: Annotated[str, Field(pattern=r"^(avg|pass@[1-9][0-9]*)$")] | None = None
    """`avg` or `pass@k`: the metric by which it is chosen; null takes avg."""

    def of(self, label: str) -> Self:
        """The section as it holds for one set: with that set's own settings, where it has any."""
        own = next((one.own for one in self.sets if one.label == label), {})
        return self.model_copy(update={name: tuple(value) if name == "k" else value for name, value in own.items()})

    @model_validator(mode="after")
    def _possible(self) -> EvaluateConfig:
        _check_ks(self, "")
        labels = [problem_set.label for problem_set in self.sets]
        for place, label in enumerate(labels):
            if labels.count(label) > 1:
                raise Impossible("sets", f"two sets are called {label!r}", "give one of them a `name`")
            _check_ks(self.of(label), f"sets.{place}.")
        self._check_selection(labels)
        return self

    def _check_selection(self, labels: list[str]) -> None:
        if self.select_on is None:
            if self.select_by is not None:
                raise Impossible("select_by", "select_on names no set", "name the set to choose on, or leave both out")
            return
        if self.select_on not in labels:
            known = f"name one of {', '.join(labels)}" if labels else "list it in evaluate.sets"
            raise Impossible("select_on", f"no set is called {self.select_on!r}", known)
        known_by = ["avg", *(f"pass@{k}" for k in self.of(self.select_on).k)]
        if self.select_by not in (None, *known_by):
            what = f"{self.select_by} is not among the metrics of {self.select_on}"
            raise Impossible("select_by", what, f"choose by one of {', '.join(known_by)}, or add its k")


def _check_ks(section: EvaluateConfig, where: str) -> None:
    if section.k and max(section.k) > section.samples:
        fix = f"raise samples to {max(section.k)}" + (", or give the set a k of its own" if where else "")
        raise Impossible(f"{where}k", f"pass@{max(section.k)} needs as many samples", fix)
