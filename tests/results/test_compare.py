"""A run against its control: Table 1, the paper's figures and the page, against counting by hand."""

from __future__ import annotations

import csv
import re
from itertools import combinations, pairwise
from statistics import fmean as mean

import pytest
from click.testing import CliRunner

from rloop_core.cli.entry import group, main
from rloop_core.errors import ConfigError, StoreError
from rloop_core.evaluation.bootstrap import intervals
from rloop_core.results import similarity
from rloop_core.results.curves import step_curves
from rloop_core.results.forgetting import BLOCKS, SolvedRule, forgetting, transitions
from rloop_core.results.matrices import differential_figure, similarity_figure
from rloop_core.results.page import image_uri, render, write_page
from rloop_core.stages.run_record import write_run_record
from tests.results.conftest import compare_runs, report_text
from tests.results.paired import (
    ITERATIONS,
    PHASE,
    SAMPLES,
    SETS,
    assert_stands_alone,
    changed,
    completion,
    correct,
    make_pair,
    pair_config,
)

CLAIM = "RLoop \N{MINUS SIGN} RL"
NAMES = ("tiny", "tiny-vanilla-rl")


def rows_of(page, name):
    with open(page.parent / f"{name}.csv", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def counts(policy, label):
    """Correct samples by problem of a row of Table 1."""
    place = {"base": ("both", -1, 0), "RL": ("vanilla-rl", 0, 0), "RLoop": ("rloop", ITERATIONS - 1, 0)}[policy]
    return [correct(*place, label, p) for p in range(SETS[label])]


def metric(name, count):
    """avg@n, pass@k by counting every draw of k samples, majority@n, for the wrong samples here have no answer."""
    kind, _, k = name.partition("@")
    if kind == "avg":
        return count / SAMPLES
    if kind == "majority":
        return float(count > 0)
    draws = list(combinations([s < count for s in range(SAMPLES)], int(k)))
    return sum(any(draw) for draw in draws) / len(draws)


def test_table_1_and_its_paired_differences_by_brute_force(compared, pair):
    rows = {
        (row.set, row.name, metric): {end: getattr(cell, end) for end in ("value", "low", "high")}
        for row in compared.table.rows()
        for metric, cell in row.cells.items()
    }
    names = ("avg@4", "pass@2", "pass@4", "majority@4")
    assert {key[2] for key in rows} == set(names)
    for name in names:
        by_set = {}
        for label in SETS:
            for policy in ("base", "RL", "RLoop"):
                expected = mean([metric(name, count) for count in counts(policy, label)])
                assert float(rows[label, policy, name]["value"]) == pytest.approx(expected, abs=1e-12)
            a, b = ([metric(name, count) for count in counts(policy, label)] for policy in ("RLoop", "RL"))
            found = rows[label, CLAIM, name]
            by_set[label] = mean(a) - mean(b)
            assert float(found["value"]) == pytest.approx(by_set[label], abs=1e-12)
            (expected,) = intervals([[x - y for x, y in zip(a, b, strict=True)]], seed=pair[0].config.seed)
            assert [float(found[end]) for end in ("low", "high")] == pytest.approx([expected.low, expected.high])
        average = rows["Avg", CLAIM, name]
        assert float(average["value"]) == pytest.approx(mean(list(by_set.values())), abs=1e-12)
        assert float(average["low"]) <= float(average["value"]) <= float(average["high"])


@pytest.mark.parametrize(("rule", "needed"), [("any", 1), ("at-least-2", 2), ("majority", 3)])
def test_forgetting_and_its_blocks_by_brute_force(compared, rule, needed):
    results, label = compared.results, next(iter(SETS))
    problems = range(SETS[label])
    steps = [(i, s) for i in range(ITERATIONS) for s in range(1, PHASE + 1)]
    last = ITERATIONS * PHASE
    # The endpoint of vanilla RL stands for its last snapshot.
    vanilla = [("vanilla-rl", 0, 0 if i * PHASE + s == last else i * PHASE + s) for i, s in steps]
    solved = {
        "RLoop": [[correct("rloop", i, s, label, p) >= needed for p in problems] for i, s in steps],
        "RL": [[correct(*place, label, p) >= needed for p in problems] for place in vanilla],
    }
    means, cells = {}, {}
    for arm, table in solved.items():
        cells[arm] = {(i, j): mean([a and not b for a, b in zip(table[i], table[j], strict=True)])
                 for i, j in combinations(range(len(steps)), 2)}  # fmt: skip
        same = [value for (i, j), value in cells[arm].items() if steps[i][0] == steps[j][0]]
        other = [value for (i, j), value in cells[arm].items() if steps[i][0] != steps[j][0]]
        means[arm] = (mean(same), mean(other))
    rows = {(row.path, row.arm): row for row in forgetting(results, SolvedRule(rule)) if row.set == label}
    for place, path in enumerate(BLOCKS):
        ours, theirs = rows[path, "RLoop"], rows[path, "RL"]
        assert ours.steps == theirs.steps == (1, 2, 3, 4)
        assert ours.observed.value == pytest.approx(means["RLoop"][place])
        assert theirs.observed.value == pytest.approx(means["RL"][place])
        assert ours.difference.value == pytest.approx(means["RL"][place] - means["RLoop"][place])
    moved = {arm: transitions(results, label, arm, 0, SolvedRule(rule)) for arm in ("RLoop", "RL")}
    assert [policy.label for policy in moved["RLoop"].policies] == [
        "base", "step 1", "step 2", "theta_1", "step 3", "step 4", "theta_2"
    ]  # fmt: skip
    drawn = differential_figure(label, moved, PHASE, "x")
    shown = {row[:2]: row[3] for row in drawn.table.rows}
    assert shown[1, 4] == pytest.approx(cells["RL"][0, 3] - cells["RLoop"][0, 3]) and len(shown) == 6


def test_similarity_is_the_mean_jaccard_index_of_pairs(compared):
    results, label = compared.results, next(iter(SETS))
    places = {policy.label: place for place, policy in enumerate(results.policies(label, "RLoop"))}

    def grams(step, problem):
        right = correct("rloop", 0, step, label, problem)
        samples = [(s < right, s, step) for s in range(SAMPLES)]
        return [set(pairwise(completion(*sample).split())) for sample in samples]

    def expected(first, second, self_pairs=True):
        by_problem = [
            [len(a & b) / len(a | b) for i, a in enumerate(grams(first, p)) for j, b in enumerate(grams(second, p))
             if self_pairs or i != j]
            for p in range(SETS[label])
        ]  # fmt: skip
        return mean([mean(own) for own in by_problem])

    alike = similarity.solutions_similarity(results, label, "RLoop", 0)
    first, second = places["step 1"], places["step 2"]
    assert alike.with_self_pairs[first, second] == pytest.approx(expected(1, 2), abs=1e-12)
    assert alike.with_self_pairs[first, first] == pytest.approx(expected(1, 1), abs=1e-12)
    assert alike.without_self_pairs[first, first] == pytest.approx(expected(1, 1, self_pairs=False), abs=1e-12)


def test_many_problems_are_sampled_for_similarity_and_the_page_says_so(compared, monkeypatch):
    monkeypatch.setattr(similarity, "MOST_PROBLEMS", 4)
    found = {label: similarity.solutions_similarity(compared.results, label, "RL", 0) for label in SETS}
    assert [one.problems for one in found.values()] == [4, 3]
    label = next(iter(SETS))
    assert (
        "over 4 problems drawn from 7" in similarity_figure(compared.results, label, {"RL": found[label]}, "x").caption
    )


@pytest.mark.process
def test_one_axis_of_rl_steps(page):
    rows = [
        one for one in rows_of(page, "figure-4-curves") if one["metric"] == "avg@4" and one["set"] == next(iter(SETS))
    ]
    placed = {(one["arm"], one["policy"]): int(one["rl_step"]) for one in rows}
    assert placed["RLoop", "theta_1"] == PHASE and placed["RLoop", "step 3"] == 3
    assert placed["RLoop", "theta_2"] == placed["RL", "step 4"] == ITERATIONS * PHASE
    steps = [(one["arm"], one["rl_step"]) for one in rows_of(page, "figure-6-gradients")]
    assert steps == [(arm, str(step)) for arm in ("RLoop", "RL") for step in range(1, 5)]


@pytest.mark.process
def test_figure_3_has_both_arms_at_the_end_of_each_iteration(page):
    rows = [one for one in rows_of(page, "figure-3-iterations") if one["set"] == next(iter(SETS))]
    own = {(one["arm"], int(one["iteration"])): one for one in rows if one["metric"] == "avg@4"}
    assert {(key, one["policy"], int(one["rl_step"])) for key, one in own.items()} == {
        (("RLoop", 0), "base", 0), (("RLoop", 1), "theta_1", PHASE), (("RLoop", 2), "theta_2", 2 * PHASE),
        (("RL", 0), "base", 0), (("RL", 1), "step 2", PHASE), (("RL", 2), "step 4", 2 * PHASE),
    }  # fmt: skip
    label = next(iter(SETS))
    expected = mean([metric("avg@4", correct("vanilla-rl", 0, PHASE, label, p)) for p in range(SETS[label])])
    assert float(own["RL", 1]["value"]) == pytest.approx(expected, abs=1e-12)
    assert {"pass@2", "pass@4", "majority@4"} <= {one["metric"] for one in rows}


@pytest.mark.process
def test_figure_1_is_vanilla_rl_alone(page):
    rows = rows_of(page, "figure-1-overfitting")
    assert [int(one["rl_step"]) for one in rows if one["set"] == "training"] == [1, 2, 3, 4]
    label = next(iter(SETS))
    own = {int(one["rl_step"]): float(one["value"]) for one in rows if (one["set"], one["metric"]) == (label, "pass@4")}
    solved = mean([correct("vanilla-rl", 0, 1, label, p) > 0 for p in range(SETS[label])])
    assert sorted(own) == [0, 1, 2, 3, 4] and own[1] == pytest.approx(solved, abs=1e-12)


@pytest.mark.process
def test_the_page_is_whole_escaped_and_alone(page):
    text = page.read_text()
    assert_stands_alone(text)
    assert "<script" not in text.lower() and "<img src=x" not in text and "&lt;img src=x" in text
    order = ["RLoop minus RL after 4 RL steps, in points: ", "Table 1", "Accuracy and pass@k by iteration",
             "Training<", "The paper", "Learning and forgetting", "After each iteration", "Expert sets",
             "Compute", "Sample traj", "Artifacts"]  # fmt: skip
    places = [text.index(title) for title in order]
    assert places == sorted(places)
    assert "not comparable" not in text and 'role="note"' not in text
    pictures = {path.stem for path in page.parent.glob("*.png")}
    each = ("figure-2-transitions", "figure-5a-differential", "figure-5b-similarity")
    whole = ("figure-1-overfitting", "figure-1-reward", "figure-3-iterations", "figure-4-curves", "figure-5c-entropy",
             "figure-6-gradients", "filter", "success-rates")  # fmt: skip
    assert pictures == {*whole, *(f"set-{i:02d}-{name}" for i in (0, 1) for name in each)}
    tables = {"table-1", "by-step", "values", "forgetting", "compute", "artifacts"}
    assert {path.stem for path in page.parent.glob("*.csv")} == pictures | tables
    titles = " ".join(re.findall(r"<figure[^>]*><h3>([^<]+)</h3>", text))
    for figure in ("1", "2a", "2c", "3", "4", "5a", "5b", "5c", "6"):
        assert re.search(rf"\(figures?[^)]* {figure}\b", titles), figure


def test_compute_counts_updates_and_evaluation_and_says_what_is_equal(compared):
    rows = {one["quantity"]: one for one in compared.compute.to_dicts()}
    policies = {"RLoop": 1 + ITERATIONS * (PHASE + 1), "RL": 1 + ITERATIONS * PHASE + 1}
    for arm, count in policies.items():
        assert rows["rollouts of evaluation"][arm] == count * SAMPLES * sum(SETS.values())
        assert rows["completion tokens of evaluation"][arm] == 3 * rows["rollouts of evaluation"][arm]
    assert [rows["optimizer updates of RL"][arm] for arm in policies] == [4, 4]
    assert [rows["updates of RFT"][arm] for arm in policies] == [48, 0]
    assert compared.equal[:2] == ["RL steps: equal, 4 in each arm.", "Rollouts of RL: equal, 48 in each arm."]


def test_an_unknown_rule_run_or_folder(compared, pair, tmp_path):
    store = pair[0].store
    with pytest.raises(ConfigError, match="any, majority or at-least-M"):
        compare_runs(store, *NAMES, tmp_path, solved="often")
    with pytest.raises(StoreError, match="no run 'other'"):
        compare_runs(store, "tiny", "other", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--out"):
        write_page(compared, tmp_path / "file", "report.html")


@pytest.mark.process
def test_the_command_says_what_it_wrote_or_why_not(command_and_page, pair, tmp_path, capsys):
    result, page = command_and_page
    assert result["not_comparable"] == [] and {one["set"] for one in result["table"]} == {*SETS, "Avg"}
    assert str(page.parent / "table-1.csv") in result["files"]
    store = str(pair[0].store.local_path(""))
    with pytest.raises(SystemExit) as end:
        main(["report", *NAMES[::-1], "--store", store, "--out", str(tmp_path / "out")])
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "not comparable" in said.err and "--force" in said.err
    assert not (tmp_path / "out").exists()


@pytest.mark.process
def test_equal_pairs_give_equal_pages(compared, pair, page, tmp_path):
    again = compare_runs(pair[0].store, *NAMES, tmp_path)
    assert render(compared, {}) == render(again, {})
    text, drawn = page.read_text(), step_curves(again.results, "figure-1-reward")
    assert image_uri(drawn) in text and drawn.png == (page.parent / f"{drawn.name}.png").read_bytes()


def test_a_forced_comparison_says_so_loudly(tmp_path):
    ours, _ = make_pair(tmp_path, pair_config(1))
    arguments = ["--store", str(ours.store.local_path("")), "--out", str(tmp_path / "out")]
    asked = ["--force", "--solved", "majority"]
    forced = CliRunner().invoke(group, ["report", *NAMES[::-1], *arguments, *asked])
    assert forced.exit_code == 0 and "forced: tiny-vanilla-rl is of arm vanilla-rl" in forced.stderr
    text = (tmp_path / "out" / "report.html").read_text()
    assert 'role="alert"' in text and "These runs are not comparable" in text


def test_chosen_checkpoints_are_shown_and_marked_where_they_were_chosen(pair, pair_store, tmp_path):
    label = next(iter(SETS))
    for arm in pair:
        write_run_record(pair_store, changed(arm.config, "evaluate", select_on=label))
    text = render(compare_runs(pair_store, *NAMES, tmp_path), {})
    section = text[text.index("<h2>Chosen checkpoints</h2>") :]
    section = section[: section.index("<h2>", 5)]
    assert section.count("biased: chosen on this set") == 2 and section.count("<p>RL") == 2
    assert "Chosen checkpoints" in report_text(pair_store, cache=tmp_path)
