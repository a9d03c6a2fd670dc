"""The demo study sampled by vLLM, cut to ten minutes: one seed, two arms, two iterations of few RL steps.

The bundled policy has heads of 24 numbers, which vLLM does not take. `tests/wide_policy.py` widens them to 32
with zeros: the same function of its prompt. Norms and queries are scaled to make up for the zeros, so a learning rate
moves these a little differently than in the study itself; on a GPU it is in bfloat16, for which vLLM's kernels are
made. So the figures are shown, not compared with the study's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench, Line, NotMeasured, Part
from benchmarks.gpu.device import ROOT, has_vllm
from benchmarks.gpu.processes import stage_runner
from rloop_core.config.loading import assign, read_mapping
from rloop_core.results.study.config import StudyConfig, make_study, study_runs
from rloop_core.stages.inputs import stages_of
from rloop_core.stages.run_record import write_run_record
from rloop_core.store import Store

ARMS = ("rloop", "vanilla-rl")


def run(bench: Bench) -> None:
    """Run every stage of both arms, then write the study's report; stages of an earlier call are not run again."""
    if bench.device == "cuda" and not has_vllm() and not bench.small:
        raise NotMeasured("vLLM is not installed")
    study, store = _cut(bench), str(bench.folder / "store")
    stages, seconds = 0, 0.0
    for arm_run in study_runs(study, store):
        with stage_runner(arm_run.config) as runner:
            write_run_record(runner.store, arm_run.config)
            runner.preflight()
            for iteration, stage in stages_of(arm_run.config):
                manifest = runner.ensure(stage, iteration).manifest
                stages, seconds = stages + 1, seconds + manifest.seconds
    from rloop_core.results.study.page import write_study

    findings = write_study(study, Store(store), bench.folder / "report", bench.folder / "cache")
    complete = not findings.record.missing()
    measured = f"{stages} stages in {seconds:.0f} s; report {'written' if complete else 'INCOMPLETE'}"
    why = f"seed {study.seeds[0]}, {len(ARMS)} arms, {study.run['iterations']} iterations; {bench.engine_words}"
    bench.judge("study", complete, measured, why)
    for label in findings.record.sets:
        rows = [*findings.table.policies[label], *findings.table.differences[label]]
        figures = [
            f"{row.name} " + ", ".join(f"{metric} {100 * cell.value:.1f}" for metric, cell in row.cells.items())
            for row in rows
        ]
        bench.show(label, "; ".join(figures), "%; differences of one seed")


def _cut(bench: Bench) -> StudyConfig:
    from tests.wide_policy import widen

    policy = bench.out / "policies" / f"study-{bench.device}"
    shutil.rmtree(policy, ignore_errors=True)
    policy.parent.mkdir(parents=True, exist_ok=True)
    widen(policy)
    if bench.device == "cuda":
        _halve(policy)
    data = read_mapping(ROOT / "deployments/studies/sums.yaml")
    steps = 2 if bench.small else 12
    changes: dict[str, Any] = {
        "iterations": 1 if bench.small else 2,
        "policy.path": str(policy),
        "explore.steps": steps,
        "explore.snapshot_every": steps,
        "evaluate.snapshots": "false",
        "placement.device": bench.device,
        "placement.checkpoint_every": 4,
        **bench.engines,
    }
    if bench.device == "cuda":
        changes |= {"policy.dtype": "bfloat16", "placement.threads": "null"}
    if bench.small:
        changes |= {
            "explore.problems_per_step": 8,
            "explore.group_size": 8,
            "explore.mini_batch_rollouts": 32,
            "evaluate.samples": 4,
            "evaluate.k": "[4]",
            "evaluate.sets.0.size": 12,
            "evaluate.sets.1.size": 8,
            "evaluate.sets.2.size": 4,
        }
    for field, value in changes.items():
        assign(data["run"], f"{field}={value}")
    for override in bench.overrides:
        assign(data["run"], override)
    if not bench.small:
        data["arms"]["vanilla-rl"]["set"].append("evaluate.base=false")  # theta_0 is evaluated once
    return make_study({**data, "seeds": data["seeds"][:1], "arms": {name: data["arms"][name] for name in ARMS}})


def _halve(policy: Path) -> None:
    """Convert the weights to bfloat16, and the config, from which vLLM takes its precision."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = {name: value.to(torch.bfloat16) for name, value in load_file(policy / "model.safetensors").items()}
    save_file(weights, policy / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))


PART = Part(
    "study",
    "the demo study with vLLM, a cut of one seed and two arms",
    "9 min; 2 min",
    (
        Line("study", "the demo study's stages, and its report", "all done, report whole"),
        Line("held-out", "what it says of held-out sums"),
        Line("harder", "of harder ones"),
    ),
    run,
    resumes=True,
)
