"""Trajectories of both final policies side by side: which problems, which samples, and within which bounds."""

from __future__ import annotations

import re

import pytest

from rloop_core.results.analysis.transitions import SolvedRule
from rloop_core.results.compare import trajectories
from rloop_core.results.compare.trajectories import collect_cases
from rloop_core.results.report.trajectories import samples_of
from rloop_core.trajectories.shards import write_shard
from tests.results.conftest import row
from tests.results.paired import ITERATIONS, PHASE, SAMPLES, SETS, correct

WAYS = {
    "RLoop": [("both", -1, 0), *(("rloop", i, s) for i in range(ITERATIONS) for s in (*range(1, PHASE + 1), 0))],
    "RL": [("both", -1, 0), *(("vanilla-rl", 0, s) for s in (1, 2, 3, 0))],
}


def expected_fate(label, problem):
    """In which way the arms differ on a problem, counted anew."""
    counts = {arm: [correct(*place, label, problem) for place in way] for arm, way in WAYS.items()}
    winners = [arm for arm, own in counts.items() if own[-1]]
    if len(winners) != 1:
        return None
    (loser,) = set(counts) - set(winners)
    return f"{'lost' if any(counts[loser]) else 'never solved'} by {loser}, solved by {winners[0]}"


def test_problems_whose_fate_differs_are_shown_by_kind(compared):
    expected = {
        (label, f"p{p}"): fate
        for label, count in SETS.items()
        for p in range(count)
        if (fate := expected_fate(label, p))
    }
    shown = {(one.place, one.problem_id): one.fate for one in compared.cases.cases if one.place in SETS}
    assert shown == expected and len(set(expected.values())) >= 2
    counted = {key: count for key, count in compared.cases.found.items() if key[0] in SETS}
    kinds = [(label, fate) for (label, _), fate in expected.items()]
    assert counted == {key: kinds.count(key) for key in kinds}


def test_both_policies_show_a_correct_and_another_sample(compared):
    for one in compared.cases.cases:
        if one.place not in SETS:
            continue
        p = int(one.problem_id[1:])
        for side, arm in zip(one.sides, ("RLoop", "RL"), strict=True):
            right = correct(*WAYS[arm][-1], one.place, p)
            assert (side.correct, side.samples) == (right, SAMPLES) and side.title.startswith(f"{arm}, ")
            verdicts = [sample.verdict for sample in side.shown]
            assert verdicts == {0: ["no_answer"] * 2, SAMPLES: ["correct"] * 2}.get(right, ["correct", "no_answer"])
            assert all(sample.gold == "3" for sample in side.shown)


def test_hard_problems_come_with_expert_trajectories_and_their_keys(compared):
    hard = [one for one in compared.cases.cases if one.place not in SETS]
    assert [one.problem_id for one in hard] == ["t0", "t1"]  # a quarter and a half of their rollouts are correct
    assert [side.told for one in hard for side in one.sides] == [
        "success rate 25.0% over all harvested rollouts", "success rate 50.0% over all harvested rollouts"
    ]  # fmt: skip
    assert hard[0].sides[0].shown[0].key == "1/1/0/0/g1-0/0"


@pytest.mark.process
def test_the_page_has_them_escaped_with_a_filter_that_works_on_what_is_there(page, compared):
    text = page.read_text()
    section = text[text.index("<h2>Trajectories</h2>") : text.index("<h2>Expert sets</h2>")]
    assert section.count('<details class="case"') == len(compared.cases.cases)
    assert "<script>x" not in section and "&lt;script&gt;x&lt;/script&gt;" in section
    assert '<form class="filters" hidden>' in section  # without the script all of it is shown
    for name in ("place", "fate"):
        offered = re.search(rf'<select name="{name}">(.*?)</select>', section, re.S).group(1)
        values = set(re.findall(r'value="(\d+)"', offered))
        assert values == set(re.findall(rf'data-{name}="(\d+)"', section))
    script = text[text.rindex("<script>") :]
    assert "innerHTML" not in script and "hidden" in script and "fetch" not in script


def test_what_would_make_the_page_too_large_is_left_out_and_said(compared, monkeypatch):
    every = compared.cases.cases
    room = every[0].escaped_bytes + every[1].escaped_bytes
    monkeypatch.setattr(trajectories, "PAGE_BYTES", room)
    found = collect_cases(*compared.arms, SolvedRule())
    assert found.cases == every[:2] and found.left_out == len(every) - 2
    monkeypatch.setattr(trajectories, "PROBLEMS_A_FATE", 1)
    monkeypatch.setattr(trajectories, "PAGE_BYTES", 10**7)
    few = collect_cases(*compared.arms, SolvedRule())
    shown = [(one.place, one.fate) for one in few.cases if one.place in SETS]
    assert len(shown) == len(set(shown)) and few.found == compared.cases.found


def test_hostile_text_counts_as_long_as_it_gets(tmp_path):
    text = "<&\"'" * 2_000
    files = [write_shard(tmp_path, 1, 0, 0, [row("p", s, s == 1, step=1, completion=text) for s in range(3)])]
    (shown,) = samples_of(files, ["p"], "here", each=2, characters=100).values()
    assert [(one.verdict, len(one.completion), one.cut) for one in shown] == [
        ("correct", 100, 7_900), ("no_answer", 100, 7_900)
    ]  # fmt: skip
    assert shown[0].key == "1/0/0/g-p/1" and samples_of(files, [], "here") == {}
    side = trajectories.Side("a", 1, 3, "", shown)
    case = trajectories.Case("set", "fate", "p", "", "", [side])
    assert case.escaped_bytes > 2 * 100 * 4


def test_samples_prefer_one_of_each_and_else_take_the_first(tmp_path):
    verdicts = {"all": [1, 1, 1], "none": [0, 0, 0], "late": [0, 0, 1], "early": [1, 0, 0]}
    rows = [row(p, s, bool(own[s]), step=1) for p, own in verdicts.items() for s in range(3)]
    found = samples_of([write_shard(tmp_path, 1, 0, 0, rows)], list(verdicts), "here")
    picked = {p: [int(one.key.rpartition("/")[2]) for one in own] for p, own in found.items()}
    assert picked == {"all": [0, 1], "none": [0, 1], "late": [2, 0], "early": [0, 1]}
