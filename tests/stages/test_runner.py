"""What a run computes, finds again and publishes, with stages that only write a file."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rloop_core.config import Config
from rloop_core.errors import LeaseError, StageError
from rloop_core.stages.execute import StageContext, execute
from rloop_core.stages.identity import difference
from rloop_core.stages.inputs import stages_of
from rloop_core.stages.job import StageJob, StageOutcome
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Manifest, Store, manifest_key, stage_folder
from tests.conftest import small_config

Place = tuple[int, str]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_config(iterations=2, placement={"store": str(tmp_path / "store")})


def _write(job: StageJob, on_event: Any, **limits: Any) -> StageOutcome:
    out = Path(job.work) / "out"
    out.mkdir(parents=True)
    (out / "made.txt").write_text(f"{job.stage} {job.iteration}")
    return StageOutcome({}, {})


def _run(config: Config, launch: Callable[..., StageOutcome] = _write) -> tuple[dict[Place, Manifest], list[Place]]:
    """The artifacts of all stages, and which of them were computed."""
    store = Store(config.placement.store)
    with Lease(store, config.name) as lease:
        runner = StageRunner(config, store, lease, launch=launch)
        results = {(iteration, stage): runner.ensure(stage, iteration) for iteration, stage in stages_of(config)}
    return (
        {place: result.manifest for place, result in results.items()},
        [place for place, result in results.items() if not result.cached],
    )


def test_only_what_is_whole_under_the_same_config_is_cached(config: Config) -> None:
    made, computed = _run(config)
    assert computed == stages_of(config)
    assert _run(config) == (made, [])
    (Path(config.placement.store) / stage_folder("small", 0, "filter") / "made.txt").unlink()
    assert _run(config)[1] == [(0, "filter")]
    changed = small_config(**{**config.model_dump(mode="json"), "filter": {"threshold": 0.2}})
    assert _run(changed)[1] == [(0, "filter"), (1, "filter")]


def test_a_kill_while_scratch_is_removed_leaves_nothing_for_a_later_start_to_go_on_from(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exploration was once made again from what was left of it, without its metrics: its artifact was damaged."""
    begun_with: list[list[str]] = []

    def launch(job: StageJob, on_event: Any, **limits: Any) -> StageOutcome:
        begun_with.append([path.name for path in Path(job.work).iterdir() if path.suffix == ".jsonl"])
        for name in ("metrics.jsonl", "timings.jsonl"):
            (Path(job.work) / name).touch()
        return _write(job, on_event)

    def killed_in_the_middle(folder: Path, **rest: Any) -> None:
        next(folder.rglob("metrics.jsonl")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed_in_the_middle)
        _run(config, launch)
    made = next(Path(config.placement.store).rglob("made.txt"))
    content = made.read_text()
    made.write_text("damaged")
    _run(config, launch)
    assert made.read_text() == content
    assert begun_with[:2] == [[], []], "with nothing of the first time"
    assert not list(Path(config.placement.store).rglob("*.jsonl")), "nor does anything of it stay"


def test_what_has_no_manifest_is_missing_and_so_is_all_that_builds_on_it(config: Config) -> None:
    store = Store(config.placement.store)
    assert StageRunner(config, store, None).remaining() == stages_of(config)
    _run(config)
    assert StageRunner(config, store, None).remaining() == []
    store.delete(manifest_key("small", 0, "harvest"))
    assert StageRunner(config, store, None).remaining() == stages_of(config)[1:]


def test_exploration_and_fine_tuning_both_start_from_theta_i(config: Config) -> None:
    made, _ = _run(config)
    inputs = StageRunner(config, Store(config.placement.store), None).inputs
    for iteration, theta in ((0, inputs.base().digest), (1, made[0, "rft"].digest)):
        assert made[iteration, "explore"].inputs[0].digest == made[iteration, "rft"].inputs[0].digest == theta
        assert made[iteration, "rft"].inputs[1].digest == made[iteration, "filter"].digest


def test_nothing_is_published_under_a_lease_that_was_lost_meanwhile(config: Config) -> None:
    store = Store(config.placement.store)

    def lose(job: StageJob, on_event: Any, **limits: Any) -> StageOutcome:
        store.write_bytes("small/lease.json", json.dumps({"token": "another", "host": "elsewhere"}).encode())
        return _write(job, on_event)

    with pytest.raises(LeaseError, match="was taken over by another process"):
        _run(config, lose)
    assert not store.exists(manifest_key("small", 0, "explore"))


def test_what_was_replaced_or_deleted_meanwhile_is_named_at_the_end(config: Config) -> None:
    store = Store(config.placement.store)
    with Lease(store, config.name) as lease:
        runner = StageRunner(config, store, lease, launch=_write)
        runner.ensure("explore", 0)
        runner.ensure_kept()
        store.delete(manifest_key("small", 0, "explore"))
        with pytest.raises(StageError, match="small/iteration-000/explore"):
            runner.ensure_kept()


def test_every_stage_of_every_iteration_has_a_seed_of_its_own(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def run(context: StageContext) -> StageOutcome:
        seeds.append(context.seed)
        return _write(context.job, context.on_event)

    for _, stage in stages_of(config):
        monkeypatch.setitem(sys.modules, f"rloop_core.stages.{stage}", SimpleNamespace(run=run))
    _run(config, lambda job, on_event, **limits: execute(job, on_event))
    assert len(set(seeds)) == len(stages_of(config))


def test_a_difference_names_the_fields() -> None:
    old = {"config": {"filter": {"threshold": 0.1, "seed": 1}}, "inputs": [["policy", "a"]]}
    new = {"config": {"filter": {"threshold": 0.2, "seed": 1}}, "inputs": [["policy", "a"]]}
    assert difference(old, new) == "filter.threshold: 0.1 -> 0.2"
