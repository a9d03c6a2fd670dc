"""Memory that the driver has back after every stage, seen from the process that started it, which itself holds none.

The stages run as in any run, each in a process tree of its own. With vLLM, explore has an engine in its own process,
harvest (from snapshots) and evaluate have theirs beside them.
"""

from __future__ import annotations

from benchmarks.gpu.bench import Bench, Line, Part
from benchmarks.gpu.device import MIB, TOLERANCE, PeakMemory, has_vllm, settled_bytes
from benchmarks.gpu.iteration import STAGES, iteration_config
from benchmarks.gpu.policy import HALF
from benchmarks.gpu.processes import stage_runner
from rloop_core.stages.process import start_fork_server


def run(bench: Bench) -> None:
    """Run one iteration with each engine; compare what is in use before a stage and a moment after it."""
    _iteration(bench, "transformers")
    if has_vllm():
        _iteration(bench, "vllm")
    else:
        bench.leave_out("vLLM is not installed", *(f"vllm-{stage}" for stage in STAGES))


def _iteration(bench: Bench, engine: str) -> None:
    in_loop = engine if engine == "transformers" or bench.in_loop_vllm else "transformers"
    changes = {
        "name": f"memory-{engine}",
        "explore.engine": in_loop,
        "placement.engine": engine,
        "explore.snapshot_every": 2,
        "harvest.snapshot_samples": 2,
    }
    full = {
        "explore.problems_per_step": 16,
        "explore.max_completion_tokens": 128,
        "explore.learning_rate": 1e-5,
    }
    config = iteration_config(bench, "qwen2.5-0.5b.yaml", HALF, changes, full=full, store=f"store-{engine}")
    start_fork_server()
    with stage_runner(config) as runner:
        runner.preflight()
        for stage in STAGES:
            key = f"{engine}-{stage}"
            with PeakMemory(bench.device) as memory:
                cached = runner.ensure(stage, 0).cached
            left = settled_bytes(bench.device, memory.before + TOLERANCE) - memory.before
            notes = ["resident memory of this part's processes"] if bench.device == "cpu" else []
            notes += ["in-loop vLLM needs a GPU"] if in_loop != engine and stage == "explore" else []
            if cached:
                bench.leave_out("the store holds it already: delete the folder of --out", key)
            else:
                measured = f"{left / MIB:+.0f} MiB after, {memory.taken / MIB:,.0f} MiB at its peak"
                bench.judge(key, left <= TOLERANCE, measured, "; ".join(notes))


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
