"""What the driver has back after every stage, seen from the process that started it, which itself holds nothing.

The stages run as in any run, each in a process tree of its own. With vLLM, explore has an engine in its own process,
harvest (from snapshots) and evaluate have theirs beside them.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.bench import Bench, Part
from benchmarks.gpu.iteration import STAGES, iteration_config
from benchmarks.gpu.machine import has_vllm
from benchmarks.gpu.policy import HALF
from benchmarks.gpu.row import Line
from benchmarks.gpu.runs import runner_of
from benchmarks.gpu.watch import MIB, TOLERANCE, Watch, settled_bytes
from rloop_core.stages.process import warm_up


def run(bench: Bench) -> None:
    """One iteration; what is in use before a stage and a moment after it."""
    engines = [name for name in ("transformers", "vllm") if name == "transformers" or has_vllm()]
    for engine in engines:
        _iteration(bench, engine)
    for key in (line.key for line in PART.lines if not has_vllm() and line.key.startswith("vllm")):
        bench.leave_out(key, "vLLM is not installed")


def _iteration(bench: Bench, engine: str) -> None:
    in_loop = engine if engine == "transformers" or bench.in_loop_vllm else "transformers"
    changes: dict[str, Any] = {
        "name": f"memory-{engine}",
        "explore.engine": in_loop,
        "placement.engine": engine,
        "explore.snapshot_every": 2,
        "harvest.snapshot_samples": 2,
    }
    if not bench.small:
        changes |= {
            "explore.problems_per_step": 16,
            "explore.max_completion_tokens": 128,
            "explore.learning_rate": 1e-5,
        }
    config = iteration_config(bench, "qwen2.5-0.5b.yaml", HALF, changes, f"store-{engine}")
    warm_up()
    with runner_of(config) as runner:
        runner.preflight()
        for stage in STAGES:
            with Watch(bench.device) as watch:
                cached = runner.ensure(stage, 0).cached
            left = settled_bytes(bench.device, watch.before + TOLERANCE) - watch.before
            measured = f"{left / MIB:+.0f} MiB after, {watch.taken / MIB:,.0f} MiB at its peak"
            where = "resident memory of this part's processes" if bench.device == "cpu" else ""
            said = [where, "in-loop vLLM needs a GPU" if in_loop != engine and stage == "explore" else ""]
            if cached:
                bench.leave_out(f"{engine}-{stage}", "the store holds it already: delete the folder of --out")
            else:
                bench.judge(f"{engine}-{stage}", left <= TOLERANCE, measured, "; ".join(filter(None, said)))


PART = Part(
    "memory",
    "memory that the driver has back after every stage",
    "8 min; 2 min",
    tuple(
        Line(f"{engine}-{stage}", f"memory left in use after {stage}, {words}", f"at most {TOLERANCE // MIB} MiB")
        for engine, words in (("transformers", "transformers"), ("vllm", "vLLM"))
        for stage in STAGES
    ),
    run,
)
