"""Config sections of problem sets: their source, prompts and evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rloop_core.config.base import InvalidCombination, Positive, Rate, Section, refuse_if
from rloop_core.problems.registry import KNOWN_SETS
from rloop_core.store.canonical import canonical_json

TopP = Annotated[float, Field(gt=0, le=1)]

SAMPLING = ("samples", "k", "temperature", "top_p", "max_completion_tokens")
"""The settings of `evaluate` that a set may override."""
TemplateName = Literal["boxed", "answer-line", "chat", "plain"]


class ProblemSource(Section):
    """Source of a problem set: a known name, a JSONL or parquet file, a hub id, or a generator."""

    source: Annotated[str, Field(description=f"`{KNOWN_SETS}`, a FILE, `owner/dataset` or `reasoning_gym:<task>`.")]
    name: str | None = None
    """Name in reports; defaults to the source."""
    split: str | None = None
    """Hub split; defaults to the usual one of the data set."""
    revision: str | None = None
    """Hub revision: a commit, branch or tag; the sets known by name have a pinned commit by default."""
    size: Positive | None = None
    """Number of problems to generate (`reasoning_gym:` only)."""
    seed: int = 0
    """Seed of the generator (`reasoning_gym:` only)."""
    params: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Difficulty settings of the generator (`reasoning_gym:`); for hub data sets `config` names the subset."""
    limit: Positive | None = None
    """Keep the first N problems after deduplication."""
    skip_malformed: bool = False
    """Skip and count rows that are not valid JSON or lack a field, instead of refusing the file."""

    @model_validator(mode="after")
    def _possible(self) -> ProblemSource:
        try:
            canonical_json(self.params)
        except (TypeError, ValueError) as error:
            raise InvalidCombination("params", str(error), "use plain finite values") from error
        return self

    @property
    def label(self) -> str:
        """The set's name in reports, manifests and tables."""
        return self.name or self.source


class PromptConfig(Section):
    """Template and length limit of the prompts."""

    template: TemplateName = "boxed"
    """`boxed` and `answer-line` ask for an answer form, `chat` is the model's chat template, `plain` adds a newline.

    Where a chat template names today's date, it is always 26 July 2024."""
    max_tokens: Positive = 2048
    """Longest prompt; a longer one is an error before anything is trained."""


class EvaluatedSet(ProblemSource):
    """A problem set to evaluate on; its own sampling settings override the section's."""

    samples: Positive | None = None
    """Completions sampled for each problem of this set; null = the section's."""
    k: tuple[Positive, ...] | None = None
    """The k of pass@k on this set; null = the section's."""
    temperature: Rate | None = None
    """Sampling temperature on this set; null = the section's."""
    top_p: TopP | None = None
    """Nucleus sampling on this set; null = the section's."""
    max_completion_tokens: Positive | None = None
    """Longest completion on this set; null = the section's."""

    def identity(self) -> dict[str, Any]:
        """Return the identity of the problems, without the sampling settings."""
        return self.model_dump(mode="json", exclude=set(SAMPLING))

    @property
    def own(self) -> dict[str, Any]:
        """The set's sampling settings that replace the section's, as plain JSON values."""
        return self.model_dump(mode="json", include=set(SAMPLING), exclude_none=True)


class EvaluateConfig(Section):
    """Evaluation of theta_{i+1} (paper 5.1): avg@k and unbiased pass@k on every listed set."""

    sets: tuple[EvaluatedSet, ...] = ()
    """Problem sets to evaluate on, optionally with their own sampling settings."""
    samples: Positive = 32
    """Completions sampled for each problem."""
    k: tuple[Positive, ...] = (1, 8, 16, 32)
    """The k of pass@k; none above `samples`."""
    temperature: Rate = 1.0
    """Sampling temperature."""
    top_p: TopP = 1.0
    """Nucleus sampling."""
    max_completion_tokens: Positive | None = None
    """Longest completion; null = explore's."""
    base: bool = True
    """Evaluate theta_0 too, to measure gains."""
    snapshots: bool = False
    """Evaluate explore's snapshots too, for the matrices and curves over RL steps (`explore.snapshot_every`)."""

    def of(self, label: str) -> Self:
        """Return the section with the settings of one set."""
        settings = next((each.own for each in self.sets if each.label == label), {})
        update = {name: tuple(value) if name == "k" else value for name, value in settings.items()}
        return self.model_copy(update=update)

    @model_validator(mode="after")
    def _possible(self) -> EvaluateConfig:
        _check_ks(self, "")
        labels = [problem_set.label for problem_set in self.sets]
        for index, label in enumerate(labels):
            refuse_if(labels.count(label) > 1, "sets", f"two sets are called {label!r}", "give one of them a `name`")
            _check_ks(self.of(label), f"sets.{index}.")
        return self


def _check_ks(section: EvaluateConfig, where: str) -> None:
    most = max(section.k, default=0)
    fix = f"raise samples to {most}" + (", or give the set a k of its own" if where else "")
    refuse_if(most > section.samples, f"{where}k", f"pass@{most} needs as many samples", fix)
