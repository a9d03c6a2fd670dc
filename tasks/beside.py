"""Work that nothing waits for: done at the same time where a second worker is free, else first."""

from collections.abc import Iterator
from contextlib import contextmanager

from tasks.session import RunSession
from tasks.stages import evaluate


@contextmanager
def evaluated_beside(run: RunSession, iteration: int) -> Iterator[None]:
    """Evaluate what an iteration ended with (-1: theta_0) while the block runs; leaving the block waits for it."""
    if not run.evaluates(iteration):
        yield
    elif run.config.placement.parallel_evaluation:
        evaluation = evaluate.submit(run, iteration)
        yield
        evaluation.result()
    else:
        evaluate(run, iteration)
        yield
