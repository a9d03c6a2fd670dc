"""Work that nothing waits for: done at the same time where a second worker is free, else first."""

from collections.abc import Iterator
from contextlib import contextmanager

from rloop_core.config import Config
from tasks.gpu_concurrency import on_gpu
from tasks.session import RunSession
from tasks.stages import evaluate


@contextmanager
def evaluated_beside(run: RunSession, iteration: int) -> Iterator[None]:
    """Evaluate what an iteration ended with (-1: theta_0) while the block runs; leaving the block waits for it."""
    if not run.evaluates(iteration):
        yield
    elif run.config.placement.parallel_evaluation and not _wants_its_gpus(run.config):
        evaluation = evaluate.submit(run, iteration)
        yield
        evaluation.result()
    else:
        evaluate(run, iteration)
        yield


def _wants_its_gpus(config: Config) -> bool:
    """Whether evaluation would take the GPUs that exploration computes on: its engines want all of their memory."""
    pools = config.placement.pools
    return pools.get("evaluate") == pools.get("explore") and on_gpu(config)
