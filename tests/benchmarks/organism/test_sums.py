"""Problem sets: parsed rightly, disjoint, and absent from the corpus."""

from __future__ import annotations

import pytest

from benchmarks.organism.make import SHAPE
from benchmarks.organism.styles import MIXTURE, SCHOOL, answer_of
from benchmarks.organism.sums import HARDER, HELD_OUT, RL_SETS, TRAIN, SumSet, parse_terms, texts, worked_sums


@pytest.mark.parametrize("chosen", RL_SETS, ids=lambda s: s.name)
def test_terms_are_parsed_as_reasoning_gym_adds_them(chosen: SumSet) -> None:
    import reasoning_gym

    rows = reasoning_gym.create_dataset("chain_sum", seed=chosen.seed, size=chosen.size, **chosen.params)
    assert [p.gold for p in chosen.problems()] == [int(r["answer"]) for r in rows]


def test_a_text_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="not a chain_sum question"):
        parse_terms("What is 3 + 4?")


def test_the_sets_have_no_duplicates_and_are_disjoint() -> None:
    assert len(texts(RL_SETS)) == TRAIN.size + HELD_OUT.size + HARDER.size


def test_the_corpus_leaves_out_what_it_is_told_to() -> None:
    plain = list(worked_sums(7, SHAPE, [(400, MIXTURE)], exclude=()))
    banned = {w.prompt.rstrip("\n") for w in plain[::2]}
    kept = list(worked_sums(7, SHAPE, [(400, MIXTURE)], exclude=banned))
    assert len(kept) == 400
    assert not banned & {w.prompt.rstrip("\n") for w in kept}


def test_wrong_steps_make_some_but_not_most_solutions_wrong() -> None:
    items = [w for w in worked_sums(3, SHAPE, [(2_000, MIXTURE)], ()) if w.style == "running"]
    wrong = sum(answer_of(w.solution) != sum(parse_terms(w.prompt.strip())) for w in items) / len(items)
    assert 0.2 < wrong < 0.8  # half of the sums pass below zero, where this style goes wrong by habit


def test_lessons_follow_one_another() -> None:
    items = list(worked_sums(4, SHAPE, [(300, SCHOOL), (300, [MIXTURE[0]])], ()))
    assert {w.style for w in items[:300]} == {s.name for s in SCHOOL}
    assert {w.style for w in items[300:]} == {MIXTURE[0].name}
    assert all(answer_of(w.solution) == sum(parse_terms(w.prompt.strip())) for w in items[:300])
