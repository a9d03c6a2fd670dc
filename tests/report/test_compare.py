from __future__ import annotations

import csv
import json
import re
from itertools import combinations, pairwise

import pytest
from click.testing import CliRunner

from rloop_core.analysis.solved import SolvedRule
from rloop_core.cli.entry import group, main
from rloop_core.config import as_vanilla
from rloop_core.errors import ConfigError, StoreError
from rloop_core.evaluation.bootstrap import paired_difference
from rloop_core.problems.contamination import Decontamination, Match, Rules
from rloop_core.report.arms_matrices import similarity_curves
from rloop_core.report.comparison import compare_runs, write_comparison
from rloop_core.stages.data_record import DataRecord, SetRecord
from rloop_core.stages.run_record import write_run_record
from rloop_core.store import Store
from tests.report.paired import ITERATIONS, PHASE, SAMPLES, SETS, completion, correct, make_pair, pair_config

CLAIM = "RLoop \N{MINUS SIGN} RL"
NAMES = ("tiny", "tiny-vanilla-rl")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Both arms, finished; tests only read them."""
    arms = make_pair(tmp_path_factory.mktemp("pair"))
    for arm in arms:
        arm.finish()
    return arms


@pytest.fixture(scope="module")
def page(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return write_comparison(pair[0].store, *NAMES, folder / "out", folder / "cache")[0]


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


def mean(values):
    return sum(values) / len(values)


def test_table_1_and_its_paired_differences_by_brute_force(page, pair):
    rows = {(one["set"], one["row"], one["metric"]): one for one in rows_of(page, "table-1")}
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
            expected = paired_difference(a, b, seed=pair[0].config.seed)
            assert [float(found[end]) for end in ("low", "high")] == pytest.approx([expected.low, expected.high])
        average = rows["Avg", CLAIM, name]
        assert float(average["value"]) == pytest.approx(mean(list(by_set.values())), abs=1e-12)
        assert float(average["low"]) <= float(average["value"]) <= float(average["high"])


@pytest.mark.parametrize(("rule", "needed"), [("any", 1), ("at-least-2", 2), ("majority", 3)])
def test_forgetting_its_blocks_and_histories_by_brute_force(pair, tmp_path, rule, needed):
    found = compare_runs(pair[0].store, *NAMES, tmp_path, SolvedRule(rule))
    one = found.dynamics[0]
    label, problems = one.label, range(SETS[one.label])
    steps = [(i, s) for i in range(ITERATIONS) for s in range(1, PHASE + 1)]
    last = ITERATIONS * PHASE
    # The endpoint of vanilla RL stands for its last snapshot.
    vanilla = [("vanilla-rl", 0, 0 if i * PHASE + s == last else i * PHASE + s) for i, s in steps]
    solved = {
        "rloop": [[correct("rloop", i, s, label, p) >= needed for p in problems] for i, s in steps],
        "vanilla": [[correct(*place, label, p) >= needed for p in problems] for place in vanilla],
    }
    means = {}
    for arm, table in solved.items():
        cells = {(i, j): mean([a and not b for a, b in zip(table[i], table[j], strict=True)])
                 for i, j in combinations(range(len(steps)), 2)}  # fmt: skip
        same = [value for (i, j), value in cells.items() if steps[i][0] == steps[j][0]]
        other = [value for (i, j), value in cells.items() if steps[i][0] != steps[j][0]]
        means[arm] = (mean(same), mean(other))
    assert one.blocks.found.vanilla == pytest.approx(means["vanilla"])
    assert one.blocks.found.rloop == pytest.approx(means["rloop"])
    for place, name in enumerate(("intra", "inter")):
        assert one.blocks.intervals[name].value == pytest.approx(means["vanilla"][place] - means["rloop"][place])
    assert one.blocks.steps == [1, 2, 3, 4] and one.blocks.equal == PHASE
    assert [checkpoint.label for checkpoint in one.arms[0].checkpoints] == [
        "base", "step 1", "step 2", "theta_1", "step 3", "step 4", "theta_2"
    ]  # fmt: skip
    ends = [correct("rloop", ITERATIONS - 1, 0, label, p) >= needed for p in problems]
    kept = sum(count for kind, count in one.arms[0].kinds().items() if kind in ("always", "learnt", "regained"))
    assert kept == sum(ends) and sum(one.arms[0].kinds().values()) == len(problems)


def test_similarity_is_the_mean_jaccard_index_of_word_pairs(page):
    label = next(iter(SETS))

    def grams(iteration, step, problem):
        right = correct("rloop", iteration, step, label, problem)
        texts = [completion(s < right, s, step).split() for s in range(SAMPLES)]
        return [set(pairwise(words)) for words in texts]

    pairs = [
        len(a & b) / len(a | b) for p in range(SETS[label]) for a in grams(0, 1, p) for b in grams(0, 2, p)
    ]  # fmt: skip
    rows = [one for one in rows_of(page, "set-00-similarity") if one["arm"] == "RLoop"]
    (found,) = [one for one in rows if (one["from"], one["to"]) == ("step 1", "step 2")]
    assert float(found["similarity"]) == pytest.approx(mean(pairs), abs=1e-12)


def test_many_problems_are_sampled_for_similarity_and_the_page_says_so(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("rloop_core.report.arms_dynamics.SIMILARITY_PROBLEMS", 4)
    found = compare_runs(pair[0].store, *NAMES, tmp_path, SolvedRule()).dynamics
    assert [one.similarity_problems for one in found] == [4, 3]
    assert [one.arms[0].alike.problems for one in found] == [4, 3]
    assert "over 4 problems drawn from 7" in similarity_curves(found[0], "x").caption


def test_one_axis_of_rl_steps(page):
    rows = [one for one in rows_of(page, "curves") if one["metric"] == "avg@4" and one["set"] == next(iter(SETS))]
    placed = {(one["arm"], one["policy"]): int(one["rl_step"]) for one in rows}
    assert placed["RLoop", "theta_1"] == PHASE and placed["RLoop", "step 3"] == 3
    assert placed["RLoop", "theta_2"] == placed["RL", "step 4"] == ITERATIONS * PHASE
    steps = [(one["arm"], one["rl_step"]) for one in rows_of(page, "stability")]
    assert steps == [(arm, str(step)) for arm in ("RLoop", "RL") for step in range(1, 5)]


def test_the_page_is_whole_escaped_and_alone(page):
    text = page.read_text()
    assert page.stat().st_size < 5_000_000
    assert "<script" not in text.lower() and "<img src=x" not in text and "&lt;img src=x" in text
    assert "held-out &lt;b&gt;" in text and "held-out <b>" not in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text) and "http://" not in text and "https://" not in text
    titles = "Table 1|Accuracy and pass@k|Training reward|Entropy and gradient norm|Histories|Learning and forgetting"
    for title in (*titles.split("|"), "Differential forgetting", "Similarity of solutions", "Compute", "Lineage"):
        assert title in text
    assert "not comparable" not in text and 'class="note"' not in text
    pictures = {path.stem for path in page.parent.glob("*.png")}
    each = ("transitions", "differential", "similarity")
    assert pictures == {"curves", "reward", "stability"} | {f"set-{i:02d}-{name}" for i in (0, 1) for name in each}
    assert all((page.parent / f"{name}.csv").exists() for name in pictures | {"histories", "forgetting", "compute"})


def changed(config, section, **fields):
    return config.model_copy(update={section: getattr(config, section).model_copy(update=fields)})


CONTROL = as_vanilla(pair_config())
NOT_COMPARABLE = {
    "seed differs: 0 against 8": CONTROL.model_copy(update={"seed": 8}),
    "explore.learning_rate differs": changed(CONTROL, "explore", learning_rate=3e-6),
    "explore.clip_high differs": changed(CONTROL, "explore", clip_high=0.3),
    "the RL steps differ: 4 against 6": changed(CONTROL, "explore", steps=6),
    "verifier.tolerance differs": changed(CONTROL, "verifier", tolerance=0.01),
    "evaluate.samples differs: 4 against 5": changed(CONTROL, "evaluate", samples=5),
    'evaluate.sets.held-out <b> differs: null against {"temperature": 0.6}': changed(
        CONTROL,
        "evaluate",
        sets=(CONTROL.evaluate.sets[0].model_copy(update={"temperature": 0.6}), *CONTROL.evaluate.sets[1:]),
    ),
    "evaluate.temperature differs": changed(CONTROL, "evaluate", temperature=0.6),
    "evaluate.max_completion_tokens differs": changed(CONTROL, "evaluate", max_completion_tokens=99),
    "the training problem set differs": changed(CONTROL, "problems", source="other.jsonl"),
    "the base policy differs": changed(CONTROL, "policy", path="elsewhere"),
    "the evaluation set 'harder $x$' is used by tiny alone": changed(
        CONTROL, "evaluate", sets=CONTROL.evaluate.sets[:1]
    ),
    "tiny-2 of arm rloop": pair_config().model_copy(update={"name": "tiny-2"}),
}


@pytest.mark.parametrize("why", NOT_COMPARABLE)
def test_arms_that_differ_are_refused_before_anything_was_computed(tmp_path, why):
    ours, theirs = make_pair(tmp_path, vanilla=NOT_COMPARABLE[why])
    with pytest.raises(ConfigError, match=re.escape(why)):
        write_comparison(ours.store, ours.config.name, theirs.config.name, tmp_path / "out", tmp_path / "cache")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("role", ["policy", "problems", "problems:held-out <b>", "verifier"])
def test_what_the_artifacts_were_made_from_decides(tmp_path, role):
    ours, theirs = make_pair(tmp_path, pair_config(1))
    if role == "verifier":
        theirs.verifier = "3"
    else:
        theirs.digests[role] = "9" * 64
    for arm in (ours, theirs):
        arm.finish()
    with pytest.raises(ConfigError, match=re.escape("999999999999" if role != "verifier" else "version differs: 2 ag")):
        compare_runs(ours.store, *NAMES, tmp_path, SolvedRule())
    assert len(compare_runs(ours.store, *NAMES, tmp_path, SolvedRule(), force=True).objections) == 1


def test_a_config_changed_after_the_run_is_no_excuse(tmp_path):
    ours, theirs = make_pair(tmp_path, pair_config(1))
    for arm in (ours, theirs):
        arm.finish()
        write_run_record(ours.store, changed(arm.config, "explore", learning_rate=5e-6))
    with pytest.raises(ConfigError, match="tiny was last started with another config than its explore of iteration 0"):
        write_comparison(ours.store, *NAMES, tmp_path / "out", tmp_path / "cache")


def test_the_wrong_way_round_is_refused_and_one_run_against_itself(pair, tmp_path):
    for names in (NAMES[::-1], ("tiny", "tiny")):
        with pytest.raises(ConfigError, match="not rloop and vanilla-rl"):
            compare_runs(pair[0].store, *names, tmp_path, SolvedRule())
    found = compare_runs(pair[0].store, "tiny", "tiny", tmp_path, SolvedRule(), force=True)
    assert [arm.title for arm in found.arms] == ["tiny", "tiny (again)"]
    assert found.dynamics[0].blocks.intervals["inter"].value == 0


def written(ours, theirs, tmp_path):
    page, found = write_comparison(ours.store, *NAMES, tmp_path / "out", tmp_path / "cache")
    text = page.read_text()
    assert "Compute" in text and "What differs" in text
    return " ".join(found.notes), text, found


def test_without_snapshots_the_page_says_how_to_get_them(tmp_path):
    config = changed(changed(pair_config(1), "evaluate", snapshots=False), "explore", snapshot_every=0)
    ours, theirs = make_pair(tmp_path, config)
    for arm in (ours, theirs):
        arm.finish()
    notes, text, found = written(ours, theirs, tmp_path)
    assert "explore.snapshot_every=N" in notes and "evaluate.snapshots=true" in notes
    assert "No differential forgetting on held-out" in notes and "Table 1" in text
    # theta_i alone still make a history and matrices.
    assert [arm.title for arm in found.dynamics[0].arms] == ["RLoop", "RL"] and found.dynamics[0].blocks is None


def test_without_evaluation_there_are_still_curves_of_training(tmp_path):
    ours, theirs = make_pair(tmp_path, pair_config(1))
    for arm in (ours, theirs):
        arm.finish(evaluate=False)
    notes, text, _ = written(ours, theirs, tmp_path)
    assert "no evaluated final policy" in notes and "no Table 1" in notes
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"reward", "stability"}
    assert "Nothing to compare yet" in text


def test_runs_that_just_began_and_a_run_that_is_under_way(tmp_path):
    ours, theirs = make_pair(tmp_path, pair_config(1))
    notes, _, found = written(ours, theirs, tmp_path)
    assert "not complete" in notes and not list((tmp_path / "out").glob("*.png"))
    ours.finish(iterations=1)
    theirs.finish()
    notes, _, found = written(ours, theirs, tmp_path)
    assert "theta_1 of 2" in notes and found.table.row(next(iter(SETS)), "RLoop").policy == "theta_1"


def test_samples_that_are_damaged_or_not_those_of_the_summary_are_left_out(tmp_path):
    ours, theirs = make_pair(tmp_path, pair_config(1))
    original = ours.evaluated

    def lying(out, iteration):
        found = original(out, iteration)
        if iteration == 0:
            content = json.loads((out / "metrics.json").read_text())
            content["snapshots"]["1"][next(iter(SETS))]["avg@4"]["value"] += 0.1
            (out / "metrics.json").write_text(json.dumps(content))
        return found

    ours.evaluated = lying
    for arm in (ours, theirs):
        arm.finish()
    path = next(ours.store.local_path("tiny/iteration-001/evaluate/step-000002/set-00").glob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    notes, _, found = written(ours, theirs, tmp_path)
    assert "step 1: the samples give avg@4" in notes and "was altered" in notes
    assert found.dynamics[0].blocks.steps == [2, 3]


def test_contaminated_problems_are_shown_with_and_without(tmp_path):
    ours, theirs = make_pair(tmp_path, pair_config(1))
    label = next(iter(SETS))
    match = Match("equal", "train-1", label, "p0", 1.0, 20, True, "a b", "training", "evaluation")
    found = Decontamination("train", 12, {label: SETS[label]}, Rules(), (match,))
    for arm in (ours, theirs):
        arm.finish()
        sets = (SetRecord("training", "train.jsonl", "c" * 64, 12, {}, [], []),)
        content = {"schema_version": 1, **DataRecord(sets, "report", found).to_dict()}
        ours.store.write_bytes(f"{arm.config.name}/data.json", json.dumps(content).encode())
    table = compare_runs(ours.store, *NAMES, tmp_path, SolvedRule()).table
    assert [block.label for block in table.blocks] == [label, f"{label}, without 1 contaminated"]
    for policy in ("base", "RL", "RLoop"):
        expected = mean([count / SAMPLES for count in counts(policy, label)[1:]])
        assert table.blocks[1].problems == SETS[label] - 1
        assert table.row(table.blocks[1].label, policy).cells["avg@4"]["value"] == pytest.approx(expected)


def test_an_unknown_rule_run_or_folder(pair, tmp_path):
    store = pair[0].store
    with pytest.raises(ConfigError, match="any, majority or at-least-M"):
        write_comparison(store, *NAMES, tmp_path / "out", tmp_path, solved="often")
    with pytest.raises(StoreError, match="no run 'other'"):
        write_comparison(store, "tiny", "other", tmp_path / "out", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--out"):
        write_comparison(store, *NAMES, tmp_path / "file", tmp_path / "cache")


def test_works_from_a_store_that_is_not_local(pair, page, tmp_path):
    remote = Store("memory://compare-test")
    for key in pair[0].store.list(""):
        remote.write_bytes(key, pair[0].store.read_bytes(key))
    found = compare_runs(remote, *NAMES, tmp_path, SolvedRule())
    assert found.table.to_table().to_csv() == (page.parent / "table-1.csv").read_text()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_command_and_equal_pairs_give_equal_pages(pair, page, tmp_path, capsys):
    store = str(pair[0].store.local_path(""))
    arguments = ["--store", store, "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(group, ["compare", *NAMES, *arguments, "--json"])
    assert done.exit_code == 0, done.exception
    result = json.loads(done.stdout)
    assert result["objections"] == [] and {one["set"] for one in result["table"]} == {*SETS, "Avg"}
    assert str(tmp_path / "out" / "table-1.csv") in result["files"]
    assert (tmp_path / "out" / "compare.html").read_bytes() == page.read_bytes()
    with pytest.raises(SystemExit) as end:
        main(["compare", *NAMES[::-1], *arguments])
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "not comparable" in said.err and "--force" in said.err
    forced = CliRunner().invoke(group, ["compare", *NAMES[::-1], *arguments, "--force", "--solved", "majority"])
    assert forced.exit_code == 0 and "forced: tiny-vanilla-rl is of arm vanilla-rl" in forced.stderr
    text = (tmp_path / "out" / "compare.html").read_text()
    assert "rule &ldquo;majority&rdquo;" in text
    assert "RL minus" not in text and "RLoop minus RL" in text  # named as they were given
    assert 'role="alert"' in text and "These arms are not comparable" in text
