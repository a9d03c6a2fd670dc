from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from itertools import combinations, pairwise
from statistics import fmean as mean

import numpy as np
import pytest
from click.testing import CliRunner

from rloop_core.cli.entry import group, main
from rloop_core.errors import ConfigError, StoreError
from rloop_core.evaluation.bootstrap import intervals
from rloop_core.results.analysis.transitions import SolvedRule
from rloop_core.results.compare.comparison import compare_runs
from rloop_core.results.compare.figures import Figures
from rloop_core.results.compare.matrices import similarity_curves
from rloop_core.results.compare.page import render, write_comparison
from rloop_core.results.compare.transitions import set_transitions
from rloop_core.results.page import image_uri
from rloop_core.results.study.curves import step_curves
from rloop_core.results.study.forgetting import BLOCKS
from rloop_core.stages.run_record import write_run_record
from tests.results.conftest import report_text
from tests.results.paired import (
    ITERATIONS,
    PHASE,
    SAMPLES,
    SETS,
    assert_stands_alone,
    changed,
    completion,
    completion_ids,
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
    table = csv.DictReader(io.StringIO(compared.table.to_table().to_csv()))
    rows = {(one["set"], one["row"], one["metric"]): one for one in table}
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
def test_forgetting_its_blocks_and_histories_by_brute_force(compared, rule, needed):
    one = set_transitions(compared.record, SolvedRule(rule))[0]
    label, problems = one.label, range(SETS[one.label])
    steps = [(i, s) for i in range(ITERATIONS) for s in range(1, PHASE + 1)]
    last = ITERATIONS * PHASE
    # The endpoint of vanilla RL stands for its last snapshot.
    vanilla = [("vanilla-rl", 0, 0 if i * PHASE + s == last else i * PHASE + s) for i, s in steps]
    solved = {
        "rloop": [[correct("rloop", i, s, label, p) >= needed for p in problems] for i, s in steps],
        "vanilla": [[correct(*place, label, p) >= needed for p in problems] for place in vanilla],
    }
    means, cells = {}, {}
    for arm, table in solved.items():
        cells[arm] = {(i, j): mean([a and not b for a, b in zip(table[i], table[j], strict=True)])
                 for i, j in combinations(range(len(steps)), 2)}  # fmt: skip
        same = [value for (i, j), value in cells[arm].items() if steps[i][0] == steps[j][0]]
        other = [value for (i, j), value in cells[arm].items() if steps[i][0] != steps[j][0]]
        means[arm] = (mean(same), mean(other))
    rows = {(row.path, row.arm): row for row in one.blocks.forgetting}
    assert set(rows) == {(path, arm) for path in BLOCKS for arm in ("RLoop", "RL")}
    for place, path in enumerate(BLOCKS):
        ours, theirs = rows[path, "RLoop"], rows[path, "RL"]
        assert ours.observed.value == pytest.approx(means["rloop"][place])
        assert theirs.observed.value == pytest.approx(means["vanilla"][place])
        assert ours.difference.value == pytest.approx(means["vanilla"][place] - means["rloop"][place])
    assert one.blocks.observed[0, 3] == pytest.approx(cells["vanilla"][0, 3] - cells["rloop"][0, 3])
    assert np.isnan(one.blocks.observed[1, 0])
    assert one.blocks.steps == [1, 2, 3, 4] and one.blocks.equal == PHASE
    assert [checkpoint.label for checkpoint in one.arms[0].checkpoints] == [
        "base", "step 1", "step 2", "theta_1", "step 3", "step 4", "theta_2"
    ]  # fmt: skip
    ends = [correct("rloop", ITERATIONS - 1, 0, label, p) >= needed for p in problems]
    kept = sum(count for kind, count in one.arms[0].kinds().items() if kind in ("always", "learnt", "regained"))
    assert kept == sum(ends) and sum(one.arms[0].kinds().values()) == len(problems)


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_similarity_is_the_mean_jaccard_index_of_pairs(compared, unit):
    one = set_transitions(compared.record, SolvedRule(), unit)[0]
    places = {checkpoint.label: place for place, checkpoint in enumerate(one.arms[0].checkpoints)}

    def grams(step, problem):
        right = correct("rloop", 0, step, one.label, problem)
        samples = [(s < right, s, step) for s in range(SAMPLES)]
        units = [completion(*sample).split() if unit == "words" else completion_ids(*sample) for sample in samples]
        return [set(pairwise(own)) for own in units]

    def expected(first, second, self_pairs=True):
        by_problem = [
            [len(a & b) / len(a | b) for i, a in enumerate(grams(first, p)) for j, b in enumerate(grams(second, p))
             if self_pairs or i != j]
            for p in range(SETS[one.label])
        ]  # fmt: skip
        return mean([mean(own) for own in by_problem])

    alike, (first, second) = one.arms[0].similarity, (places["step 1"], places["step 2"])
    assert alike.with_self_pairs[first, second] == pytest.approx(expected(1, 2), abs=1e-12)
    assert alike.with_self_pairs[first, first] == pytest.approx(expected(1, 1), abs=1e-12)
    assert alike.without_self_pairs[first, first] == pytest.approx(expected(1, 1, self_pairs=False), abs=1e-12)
    assert f"{unit[:-1]} pairs" in similarity_curves(one, "x").caption


def test_many_problems_are_sampled_for_similarity_and_the_page_says_so(compared, monkeypatch):
    monkeypatch.setattr("rloop_core.results.compare.transitions.SIMILARITY_PROBLEMS", 4)
    found = set_transitions(compared.record, SolvedRule())
    assert [one.similarity_problems for one in found] == [4, 3]
    assert [one.arms[0].similarity.problems for one in found] == [4, 3]
    assert "over 4 problems drawn from 7" in similarity_curves(found[0], "x").caption


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
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(scripts) == text.lower().count("<script") == 1
    allowed = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in text  # this script and no other
    assert "<img src=x" not in text and "&lt;img src=x" in text
    titles = (
        "Table 1|Accuracy and pass@k|Training reward|Policy entropy|Gradient norm|Histories|Learning and forgetting"
    )
    for title in (*titles.split("|"), "Differential forgetting", "Similarity of solutions", "Compute", "Lineage"):
        assert title in text
    assert "not comparable" not in text and 'class="note"' not in text and "missing: " not in text
    pictures = {path.stem for path in page.parent.glob("*.png")}
    each = ("figure-2-transitions", "figure-5a-differential", "figure-5b-similarity")
    whole = ("figure-1-overfitting", "figure-1-reward", "figure-3-iterations", "figure-4-curves", "figure-5c-entropy",
             "figure-6-gradients", "arm-00-filter")  # fmt: skip
    assert pictures == {*whole, *(f"set-{i:02d}-{name}" for i in (0, 1) for name in each)}
    tables = {"histories", "forgetting", "compute", "lineage", "experts"}
    assert all((page.parent / f"{name}.csv").exists() for name in pictures | tables)


@pytest.mark.process
def test_every_figure_of_the_paper_is_named_and_led_to(page):
    text = page.read_text()
    listed = text[text.index('<table class="paper">') :]
    rows = dict(re.findall(r"<tr><td>((?:Figure|Table) [^<]*)</td>(.*?)</tr>", listed, re.S))
    assert list(rows) == [
        "Table 1", "Figure 1", "Figure 2", "Figure 3", "Figure 4", "Figure 5a", "Figure 5b", "Figure 5c", "Figure 6"
    ]  # fmt: skip
    titles = dict(re.findall(r'<figure id="([^"]+)"><h3>([^<]+)</h3>', text))
    for name in list(rows)[1:]:
        anchors = re.findall(r'href="#([^"]+)"', rows[name])
        assert anchors and all(anchor in titles for anchor in anchors), name
        named = [re.findall(r"\d[abc]?", titles[anchor].partition(".")[0]) for anchor in anchors]
        assert all(any(one.startswith(name.removeprefix("Figure ")) for one in own) for own in named), (name, named)
    assert len(re.findall("href", rows["Figure 2"])) == 2 * len(SETS)


def test_pictures_for_which_there_is_no_room_stay_outside_and_are_named(compared, monkeypatch):
    drawn = Figures([step_curves(compared.record, name) for name in ("figure-1-reward", "figure-6-gradients")])
    room = sum(len(image_uri(one)) for one in drawn.every) - 1
    monkeypatch.setattr("rloop_core.results.compare.page.PICTURE_BYTES", room)
    text = render(compared, drawn)
    assert text.count("data:image") == 1 and text.count("<figure") == 2
    assert "see figure-6-gradients.png beside this file" in text


def test_compute_counts_updates_and_evaluation_and_says_what_is_equal(compared):
    rows = {one["quantity"]: one for one in csv.DictReader(io.StringIO(compared.compute.to_csv()))}
    policies = {"RLoop": 1 + ITERATIONS * (PHASE + 1), "RL": 1 + ITERATIONS * PHASE + 1}
    for arm, count in policies.items():
        assert float(rows["rollouts of evaluation"][arm]) == count * SAMPLES * sum(SETS.values())
        assert float(rows["completion tokens of evaluation"][arm]) == 3 * float(rows["rollouts of evaluation"][arm])
    assert [float(rows["optimizer updates of RL"][arm]) for arm in policies] == [4, 4]
    assert [float(rows["updates of RFT"][arm]) for arm in policies] == [48, 0]
    text = render(compared, Figures())
    assert "RL steps: equal, 4 in each arm." in text and "Rollouts of RL: equal, 48 in each arm." in text
    assert "RFT adds 48 optimizer updates to RLoop, 1200.0 % of its updates of RL." in text


def test_an_unknown_rule_run_or_folder(compared, pair, tmp_path):
    store = pair[0].store
    with pytest.raises(ConfigError, match="any, majority or at-least-M"):
        compare_runs(store, *NAMES, tmp_path, solved="often")
    with pytest.raises(StoreError, match="no run 'other'"):
        compare_runs(store, "tiny", "other", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--out"):
        write_comparison(compared, tmp_path / "file")


@pytest.mark.process
def test_the_command_says_what_it_wrote_or_why_not(command_and_page, pair, tmp_path, capsys):
    result, page = command_and_page
    assert result["not_comparable"] == [] and {one["set"] for one in result["table"]} == {*SETS, "Avg"}
    assert str(page.parent / "table-1.csv") in result["files"]
    store = str(pair[0].store.local_path(""))
    with pytest.raises(SystemExit) as end:
        main(["compare", *NAMES[::-1], "--store", store, "--out", str(tmp_path / "out")])
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "not comparable" in said.err and "--force" in said.err
    assert not (tmp_path / "out").exists()


@pytest.mark.process
def test_equal_pairs_give_equal_pages(compared, pair, page, tmp_path):
    again = compare_runs(pair[0].store, *NAMES, tmp_path)
    assert render(compared, Figures()) == render(again, Figures())
    text = page.read_text()
    name = "set-01-figure-5b-similarity"
    for drawn in (step_curves(again.record, "figure-1-reward"), similarity_curves(again.transitions[1], name)):
        assert image_uri(drawn) in text and drawn.png == (page.parent / f"{drawn.name}.png").read_bytes()


def test_a_forced_comparison_says_so_loudly(tmp_path):
    ours, _ = make_pair(tmp_path, pair_config(1))
    arguments = ["--store", str(ours.store.local_path("")), "--out", str(tmp_path / "out")]
    asked = ["--force", "--solved", "majority", "--similarity-unit", "tokens"]
    forced = CliRunner().invoke(group, ["compare", *NAMES[::-1], *arguments, *asked])
    assert forced.exit_code == 0 and "forced: tiny-vanilla-rl is of arm vanilla-rl" in forced.stderr
    text = (tmp_path / "out" / "compare.html").read_text()
    assert 'role="alert"' in text and "These arms are not comparable" in text


def test_chosen_checkpoints_are_shown_and_marked_where_they_were_chosen(pair, pair_store, tmp_path):
    label = next(iter(SETS))
    for arm in pair:
        write_run_record(pair_store, changed(arm.config, "evaluate", select_on=label))
    found = compare_runs(pair_store, *NAMES, tmp_path)
    text = render(found, Figures())
    section = text[text.index("<h3>Chosen checkpoints</h3>") :]
    section = section[: section.index("</table>")]
    assert section.count("biased upwards") == 2 and section.count("<tr>") == 1 + 2 * len(SETS)
    assert all(one.policy in section and one.biased == {label} for one in found.selected)
    assert "Chosen checkpoints" in report_text(pair_store, cache=tmp_path)
