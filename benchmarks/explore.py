"""An RL step with every rollout recorded, against the same without the record, and against the bare TRL trainer.

The trainers live in one process and take turns, RL step by RL step, so that whatever else the machine does meets all
alike. Learning rate 0, the same problems and the same random state make rloop's two generate the very same completions;
bare TRL draws its own, with `generate`, from the same policy for the same problems.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.line import Line
from benchmarks.trainers import Clock, bare_trainer

WARM_UP = 2
STEPS = 10


def bench() -> list[Line]:
    """Median ratios of an RL step's seconds, recording on, to the others'."""
    import torch

    torch.set_num_threads(1)
    bare, silent, recorded = _measure()
    return [
        _line("explore: RL step, recording on / bare TRL", recorded, bare),
        _line("explore: RL step, recording on / off", recorded, silent),
    ]


def _line(what: str, ours: list[float], theirs: list[float]) -> Line:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    pair = f"{statistics.median(ours):.3f} s against {statistics.median(theirs):.3f} s"
    detail = f"{pair}; ratios of {STEPS} steps {min(ratios):.3f} to {max(ratios):.3f}"
    return Line(what, statistics.median(ratios), 1.03, "x", detail)


def _measure() -> tuple[list[float], list[float], list[float]]:
    from transformers import PrinterCallback

    from rloop_core.config import load_config
    from rloop_core.policies import bundled_policy_path
    from rloop_core.problems import load_problems
    from rloop_core.rollout.policy import load_tokenizer
    from rloop_core.rollout.prompts import encode_problems
    from rloop_core.training.explore import ExploreJob, make_trainer
    from rloop_core.verifier import Verifier

    overrides = [
        f"explore.steps={WARM_UP + STEPS}",
        "explore.learning_rate=1e-12",
        "explore.dynamic_sampling.enabled=false",
        "placement.checkpoint_every=1000",
    ]
    config = load_config("deployments/configs/demo.yaml", overrides)
    policy = bundled_policy_path()
    problems = encode_problems(load_problems(config.problems), config.prompt, load_tokenizer(policy))
    with tempfile.TemporaryDirectory() as folder, Verifier() as verifier:
        job = ExploreJob(config, 0, 0, config.seed, policy, Path(folder), "cpu")
        recorded = make_trainer(job, problems, verifier)
        silent = make_trainer(job, problems, verifier, record=False)
        bare = bare_trainer(job, problems, verifier)
        turns = _Turns(3)
        clocks = [
            Clock(config.explore.updates_per_step, partial(turns.wait, place), lambda seconds: turns.pass_on())
            for place in range(3)
        ]
        threads = []
        for place, trainer in enumerate((bare, silent, recorded)):
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(clocks[place].callback())
            threads.append(threading.Thread(target=_train, args=(trainer, turns, place)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    bare_seconds, silent_seconds, recorded_seconds = (clock.seconds[WARM_UP:] for clock in clocks)
    return bare_seconds, silent_seconds, recorded_seconds


class _Turns:
    """Lets one of several threads go on at a time, in turn, until it leaves."""

    def __init__(self, players: int) -> None:
        self._playing = list(range(players))
        self._next = 0
        self._changed = threading.Condition()

    def wait(self, place: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._playing[self._next] == place)

    def pass_on(self) -> None:
        with self._changed:
            self._next = (self._next + 1) % len(self._playing)
            self._changed.notify_all()

    def leave(self, place: int) -> None:
        with self._changed:
            index = self._playing.index(place)
            self._playing.remove(place)
            if self._playing:
                self._next = index % len(self._playing)
            self._changed.notify_all()


def _train(trainer: Any, turns: _Turns, place: int) -> None:
    try:
        trainer.train()
    finally:
        turns.leave(place)
