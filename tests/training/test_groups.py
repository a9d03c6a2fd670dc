from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rloop_core.training.groups import ProblemStream, informative_groups, problems_needed


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=12))
def test_informative_means_accuracy_has_variance(groups: list[list[bool]]) -> None:
    flat = [outcome for group in groups for outcome in group]
    expected = [index for index, group in enumerate(groups) if 0 < sum(group) < len(group)]
    assert informative_groups(flat, 4) == expected


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 5), st.data())
def test_a_later_round_draws_the_missing_groups_at_the_share_so_far_with_some_to_spare(
    share: int, ranks: int, rounds: int, data: st.DataObject
) -> None:
    wanted = share * ranks
    drawn = rounds * wanted
    found = data.draw(st.integers(0, wanted - 1))
    number = problems_needed(wanted, found, drawn, ranks)
    assert number % ranks == 0 and 0 < number <= wanted
    expected = number * found / drawn
    assert number == wanted or expected >= wanted - found + (wanted - found) ** 0.5
    assert found == 0 or (number - ranks) * found / drawn <= 3 * (wanted - found), "not many more than it needs"
    assert problems_needed(wanted, 0, 0, ranks) == wanted


@given(st.integers(1, 9), st.integers(0, 2**31), st.lists(st.integers(0, 12), max_size=8))
def test_the_problem_stream_visits_everything_once_a_pass_and_resumes_anywhere(
    count: int, seed: int, draws: list[int]
) -> None:
    whole = ProblemStream(count, seed).take(sum(draws))
    stream = ProblemStream(count, seed)
    pieces: list[int] = []
    for number in draws:
        pieces += ProblemStream(count, seed, stream.cursor).take(number)
        stream.take(number)
    assert pieces == whole
    for start in range(0, len(whole) - count + 1, count):
        assert sorted(whole[start : start + count]) == list(range(count))


def test_passes_differ_in_order_and_seeds_differ() -> None:
    stream = ProblemStream(50, seed=1)
    first, second = stream.take(50), stream.take(50)
    assert first != second
    assert ProblemStream(50, seed=2).take(50) != first
