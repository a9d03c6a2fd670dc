"""The policies that ship with rloop: what each was made of, and on which problems it is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.organism.corpus import Lesson
from benchmarks.organism.pretrain import Recipe
from benchmarks.organism.styles import MIXTURE, SCHOOL, STUDY_MIXTURE, Style
from benchmarks.organism.sums import RL_SETS, STUDY_SETS, SumSet


@dataclass(frozen=True)
class Organism:
    """A policy that can be made again.

    Attributes:
        shape: Parameters of `chain_sum` for the corpus.
        mixture: The styles of its habits.
        sets: Problems that its corpus leaves out; those called held_out and harder are what it is measured on.
        recipe: How it was trained.
    """

    shape: dict[str, Any]
    mixture: Sequence[Style]
    sets: Sequence[SumSet]
    recipe: Recipe

    def lessons(self, recipe: Recipe) -> list[Lesson]:
        """The corpus in order: `school` of it teaches every style, the rest the habits of the mixture."""
        total, school = recipe.steps * recipe.batch, round(recipe.steps * recipe.school) * recipe.batch
        return [(school, SCHOOL), (total - school, self.mixture)]

    @property
    def measured(self) -> list[SumSet]:
        """The sets of the card's figures."""
        return [one for one in self.sets if one.name in ("held_out", "harder")]


DEMO = Organism(
    shape={"min_terms": 2, "max_terms": 7, "min_digits": 1, "max_digits": 1},
    mixture=MIXTURE,
    sets=RL_SETS,
    recipe=Recipe(school=0.65),
)
"""Has much to gain from a rare style: `make demo`."""

STUDY = Organism(
    shape={"min_terms": 2, "max_terms": 5, "min_digits": 1, "max_digits": 1},
    mixture=STUDY_MIXTURE,
    sets=STUDY_SETS,
    recipe=Recipe(steps=450, batch=128, seed=44),
)
"""Overfits in RL within minutes: `make study`."""

ORGANISMS = {"demo": DEMO, "study": STUDY}
