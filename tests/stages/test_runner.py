"""What a run computes, finds again and publishes, with stages that only write a file."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rloop_core.config import Config
from rloop_core.errors import LeaseError, RLoopError
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


@pytest.fixture
def shared(config: Config) -> Iterator[Path]:
    """A folder where every user may write, and a process that has loaded what a run loads: other users may not."""
    if os.geteuid():
        pytest.skip("only root becomes other users")
    _run(config)
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    (folder / "store").mkdir()
    (folder / "store").chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def _as_user(number: int, folder: Path, launch: Callable[..., StageOutcome] = _write, **placement: Any) -> str:
    """Start a run of a user's own in the shared store, in a process of that user; return the error that ended it."""
    placement |= {"store": str(folder / "store")}
    config = small_config(name=f"run-{number}", iterations=1, placement=placement)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        said = "the child ended otherwise"
        try:
            os.setgroups([])
            os.setgid(number)
            os.setuid(number)
            _run(config, launch)
            said = ""
        except RLoopError as error:
            said = str(error)
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as stream:
        return stream.read()


@pytest.mark.process
def test_users_of_one_store_have_unfinished_work_of_their_own_which_nobody_else_enters(shared: Path) -> None:
    def interrupted(job: StageJob, on_event: Any, **limits: Any) -> StageOutcome:
        (Path(job.work) / "half").touch()
        raise LeaseError("interrupted", field="test", fix="go on")

    def goes_on(job: StageJob, on_event: Any, **limits: Any) -> StageOutcome:
        if not (Path(job.work) / "half").exists() and job.stage == "explore":
            raise LeaseError("begins again", field="test", fix="none")
        return _write(job, on_event)

    assert "interrupted" in _as_user(4001, shared, lambda *given, **rest: interrupted(*given, **rest))
    assert _as_user(4002, shared) == ""
    assert _as_user(4001, shared, goes_on) == ""
    for number in (4001, 4002):
        status = (shared / f"store/.scratch-{number}").stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (number, 0o700)


@pytest.mark.process
@pytest.mark.parametrize("place", ["store/.scratch-4001", "own", "all/run-4001"])
@pytest.mark.parametrize("planted", ["folder", "link"])
def test_unfinished_work_is_never_taken_from_another_users_folder(shared: Path, place: str, planted: str) -> None:
    target = shared / ("elsewhere" if planted == "link" else place)
    target.mkdir(parents=True)
    target.chmod(0o777)
    os.chown(target, 4002, 4002)
    if planted == "link":
        (shared / place).parent.mkdir(exist_ok=True)
        (shared / place).symlink_to(target)
        os.chown(shared / place, 4002, 4002, follow_symlinks=False)
    (shared / place).parent.chmod(0o777)
    placement = {} if place.startswith("store") else {"scratch": str(shared / place.partition("/")[0])}
    refused = _as_user(4001, shared, **placement)
    assert "it belongs to user 4002" in refused and "placement.scratch" in refused
    assert list(target.iterdir()) == []
