"""kill -9 anywhere, any number of times, then the same command: the digests of the run never killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import left_over_environment, manifest_digests, run_rloop
from tests.faults.conftest import SMOKE_RUN, Disturbed, wait_until
from tests.processes import still_running

pytestmark = pytest.mark.process


def _in_the_middle_of(run: Disturbed, stage: str) -> bool:
    """Whether a stage has begun to compute; exploration once its first checkpoint is whole."""
    folder = run.scratch(stage)
    if stage.endswith("explore"):
        return any(folder.rglob("rloop-complete.json"))
    return any(folder.rglob("stage.log"))


STAGES = ["base/evaluate", "iteration-000/explore", "iteration-000/harvest", "iteration-000/filter"]
STAGES += ["iteration-000/rft", "iteration-001/explore", "iteration-000/evaluate"]
FIRST = [stage for stage in STAGES if stage.startswith("iteration-000/") and not stage.endswith("evaluate")]


@pytest.mark.parametrize("stages", [["iteration-000/explore"], pytest.param(STAGES, marks=pytest.mark.long)])
def test_kill_9_in_the_middle_of_a_stage_repeats_only_that_stage(
    disturbed: Disturbed, undisturbed: dict[str, str], stages: list[str], tmp_path: Path
) -> None:
    """One stage is also killed in an environment with left-overs of others, and continued in one without."""
    if len(stages) == 1:
        disturbed.options = ("--iterations", "1", "--set", "evaluate.sets=[]")
        disturbed.environment = left_over_environment(tmp_path)
    killed = set()
    for stage in stages:
        kept = disturbed.manifests()
        process = disturbed.start()
        manifest = disturbed.store / "smoke" / stage / "manifest.json"
        wait_until(lambda: _in_the_middle_of(disturbed, stage) or manifest.exists(), stage)  # noqa: B023
        below = disturbed.kill()
        if not manifest.exists():
            killed.add(stage.split("/")[1])
        assert not still_running([process, *below])
        assert disturbed.manifests().items() >= kept.items(), "what was finished is kept, untouched"
    assert killed == {stage.split("/")[1] for stage in stages}
    run_rloop(*SMOKE_RUN, "--store", str(disturbed.store), *disturbed.options)
    made = manifest_digests(disturbed.store, "smoke")
    assert made == (undisturbed if len(stages) > 1 else {name: undisturbed[name] for name in FIRST})
