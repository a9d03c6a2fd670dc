"""From the final policy back to each rollout: the chain, the keys of expert trajectories, and a rollout's record."""

from __future__ import annotations

import csv
import json

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from rloop_core.cli.entry import group
from rloop_core.errors import ConfigError, StageError
from rloop_core.results.report.lineage import lineage_of
from rloop_core.results.report.trajectories import RolloutKey, count_experts, find_rollout, write_expert_keys
from rloop_core.results.run_reader import read_run
from tests.results.conftest import report_text
from tests.results.paired import ITERATIONS, PHASE, TRAINING, changed, make_pair, pair_config

KEYS = ("run", "iteration", "step", "rank", "attempt", "group_id", "sample", "problem_id")


@pytest.fixture
def run(pair, tmp_path):
    return read_run(pair[0].store, "tiny", tmp_path)


def rows_of(path):
    with open(path, encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def key_of(row):
    return RolloutKey.parse("/".join(row[name] for name in KEYS[1:-1]))


@pytest.fixture
def listed(run, tmp_path):
    write_expert_keys([run], tmp_path / "experts.csv")
    return rows_of(tmp_path / "experts.csv")


def test_every_listed_key_is_in_the_store_exactly_once(listed, run):
    # Two hard problems, 1 and 2 of 4 rollouts correct in each of the RL steps; all completions differ.
    assert len(listed) == ITERATIONS * PHASE * sum(correct for correct in TRAINING if correct < 4)
    assert len({tuple(row.items()) for row in listed}) == len(listed)
    folder = run.store.local_path("tiny")
    for stage, pattern in (("harvest", "trajectories/*.parquet"), ("explore", "shards/*.parquet")):
        stored = [
            tuple(str(row[name]) for name in KEYS)
            for path in sorted(folder.glob(f"iteration-*/{stage}/{pattern}"))
            for row in pq.read_table(path, columns=list(KEYS)).to_pylist()
        ]
        assert all(stored.count(tuple(row[name] for name in KEYS)) == 1 for row in listed)


def test_a_key_leads_to_the_record_that_was_trained_on(listed, run):
    experts = pq.read_table(run.store.local_path("tiny/iteration-001/filter/experts.parquet")).to_pylist()
    last = [row for row in listed if row["iteration"] == "1"]
    for row, expert in zip(last, experts, strict=True):
        rollout = find_rollout(run, key_of(row))
        assert rollout["record"] == expert and rollout["record"]["verdict"] == "correct"
        assert rollout["file"].endswith("tiny/iteration-001/harvest/trajectories/part-00000.parquet")
        assert rollout["shard"].endswith(
            f"tiny/iteration-001/explore/shards/step-{int(row['step']):06d}.rank-00.parquet"
        )


def test_keys_that_lead_nowhere_are_refused(run):
    with pytest.raises(StageError, match="none of the rollouts have the key 1/1/0/0/g1-0/9"):
        find_rollout(run, RolloutKey(1, 1, 0, 0, "g1-0", 9))
    with pytest.raises(StageError, match="iteration 7 has no harvest artifact"):
        find_rollout(run, RolloutKey(7, 1, 0, 0, "g1-0", 0))
    for text in ("1/1/0/0/g1-0", "1/1/0/x/g1-0/0", ""):
        with pytest.raises(ConfigError, match="is not the key of a rollout"):
            RolloutKey.parse(text)
    odd = RolloutKey(0, 1, 2, 3, "a/b", 4)
    assert RolloutKey.parse(str(odd)) == odd


@pytest.mark.process
def test_the_chain_goes_from_the_final_policy_to_what_the_run_was_given(page, run):
    ours, theirs = json.loads((page.parent / "lineage.json").read_text())
    assert [link["name"] for link in ours["links"]] == [
        "theta_2", "expert set of iteration 1", "harvest of iteration 1", "explore of iteration 1",
        "theta_1", "expert set of iteration 0", "harvest of iteration 0", "explore of iteration 0",
    ]  # fmt: skip
    assert [link["name"] for link in theirs["links"]] == ["RL step 4"]
    made = {link["name"]: link["digest"] for link in ours["links"]}
    for link in ours["links"]:
        manifest = run.manifests[link["iteration"], link["stage"]]
        assert (link["digest"], link["fingerprint"]) == (manifest.digest, manifest.fingerprint)
        for source in link["sources"]:
            # Whatever an artifact was made from is the artifact further down, or given.
            assert made.get(source["name"], source["digest"]) == source["digest"]
            assert source["in_store"] is (True if source["name"] in made else None)
    assert [source["name"] for source in ours["links"][0]["sources"]] == ["theta_1", "expert set of iteration 1"]
    assert [(root["role"], root["digest"]) for root in ours["roots"]] == [("policy", "b" * 64), ("problems", "c" * 64)]
    assert ours["broken"] == [] and ours["links"][1]["facts"]["trajectories"] == 6
    shards = ours["links"][3]["facts"]["shards"]
    assert [(shard["step"], shard["rank"], shard["attempt"]) for shard in shards] == [(1, 0, 0), (2, 0, 0)]
    text = page.read_text()
    assert (
        text.count('<ol class="chain">') == 2
        and made["theta_2"][:12] in text
        and "6 trajectories of 2 problems" in text
    )


def test_experts_are_counted_by_problem_group_and_step(run):
    expected = {"trajectories": 6, "problems": 2, "groups": 4, "first_step": 1, "last_step": 2, "from_snapshots": 0}
    assert count_experts(run, 0) == expected


def test_what_the_store_no_longer_holds_is_said(tmp_path):
    ours, _ = make_pair(tmp_path, pair_config(1))
    ours.finish(evaluate=False)
    ours.store.delete("tiny/iteration-000/rft/manifest.json")
    broken = lineage_of(read_run(ours.store, "tiny", tmp_path)).broken
    assert len(broken) == 2 and broken[0].startswith("theta_2 was made from theta_1 as ")
    text = report_text(ours.store, cache=tmp_path)
    assert "explore of iteration 1 was made from theta_1" in text.lower() and "no longer holds" in text


def test_the_chain_of_an_ablation_follows_what_was_really_read(tmp_path):
    config = changed(pair_config(1), "rft", start="rl-endpoint")
    ours, _ = make_pair(tmp_path, changed(config, "explore", start="rl-endpoint"))
    ours.finish(evaluate=False)
    lineage = lineage_of(read_run(ours.store, "tiny", tmp_path))
    sources = {link.name: [source.name for source in link.sources] for link in lineage.links}
    made = ["expert set of iteration {}", "harvest of iteration {}", "explore of iteration {}"]
    assert list(sources) == ["theta_2", *(one.format(1) for one in made), "theta_1", *(one.format(0) for one in made)]
    assert sources["theta_2"] == ["explore of iteration 1", "expert set of iteration 1", "theta_1"]
    assert sources["explore of iteration 1"][0] == "explore of iteration 0" and lineage.broken == ()


@pytest.mark.process
def test_both_pages_have_the_same_keys(report, complete, page, listed, tmp_path):
    assert rows_of(page.parent / "experts.csv") == listed
    write_expert_keys([read_run(complete.store, "tiny", tmp_path)], tmp_path / "complete.csv")
    assert (report.parent / "experts.csv").read_text() == (tmp_path / "complete.csv").read_text()
    assert json.loads((report.parent / "lineage.json").read_text())["run"] == "tiny"


def test_the_report_has_the_chain_and_the_command_finds_a_rollout(listed, run, tmp_path):
    assert '<ol class="chain">' in report_text(run.store, cache=tmp_path)
    asked = ["report", "tiny", "--store", str(run.store.local_path("")), "--rollout"]
    shown = CliRunner().invoke(group, [*asked, str(key_of(listed[0]))])
    assert json.loads(shown.stdout)["record"]["problem_id"] == listed[0]["problem_id"]
    assert CliRunner().invoke(group, [asked[0], "tiny", *asked[1:], str(key_of(listed[0]))]).exit_code == 2
