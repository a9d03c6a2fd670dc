"""What sampling during the updates would bring an RL step: `python -m benchmarks.overlap`.

Simulates one device after another, decoding step by decoding step, with the speeds of `rloop plan` and with completion
lengths that were recorded, or drawn with a long tail. Prints a Markdown table of seconds an RL step and of how many
times faster than today's order (sample, then update, on all devices) these would be:

  partial   a completion that is unfinished when the step has enough goes on in the next step; nobody waits for it
  split     some devices only sample for the next step (one step of lag), the others only train; the best division,
            with the number of devices that sample
  both      split, and partial rollouts on the devices that sample

What a split costs besides is left out: sending weights, and training states on fewer devices.

examples:
  python -m benchmarks.overlap
  python -m benchmarks.overlap --lengths .rloop/store/demo-rloop-44
  python -m benchmarks.overlap --budgets 2048 28672 --devices 4 8 64
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measure import markdown_table
from rloop_core.config import Config
from rloop_core.plan.hours import (
    DEVICES,
    VLLM_SEQUENCES,
    Device,
    training_seconds,
    update_passes,
    vllm_step_seconds,
)
from rloop_core.plan.memory import GIB
from rloop_core.plan.models import ModelShape, element_bytes, find_shape
from rloop_core.plan.workload import MEAN_PROMPT

CONFIG = Path(__file__).parent.parent / "deployments" / "configs" / "qwen2.5-math-7b.yaml"
TAIL_MEAN, TAIL_SIGMA = 0.25, 1.0
"""Lengths with a long tail: lognormal, this mean as a share of the budget, cut at the budget."""
DEDICATED_MEMORY = 0.9
"""Share of a device that vLLM takes where it samples alone."""
GROUP = 16
"""Rollouts of one problem, drawn together."""
_STEADY = 4


@dataclass(frozen=True)
class Engine:
    """vLLM on one device: its speed, and the tokens its cache holds."""

    shape: ModelShape
    device: Device
    element: int
    share: float

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache holds beside the weights."""
        room = self.share * self.device.memory_gib * GIB - self.shape.parameters * self.element
        return int(room / self.shape.kv_bytes_per_token(self.element))

    def seconds(self, lengths: Sequence[int]) -> float:
        """Return the seconds until completions of these lengths, started in this order, are all finished.

        A completion starts when fewer than `VLLM_SEQUENCES` are in flight and the cache holds it at its full length.
        """
        waiting, running = list(reversed(lengths)), list[tuple[int, int]]()  # (decoding step at its end, length)
        step, clock = 0, 0.0
        reserved, ends = 0, 0  # sums of what is in flight: tokens at its end, and the decoding step there
        while waiting or running:
            while waiting and len(running) < VLLM_SEQUENCES:
                length = waiting[-1] + MEAN_PROMPT
                if running and reserved + length > self.cache_tokens:
                    break
                reserved += length
                end = step + waiting.pop()
                ends += end
                heapq.heappush(running, (end, length))
            ahead = running[0][0] - step
            cached = reserved - ends + len(running) * (step + ahead / 2)  # on average over the steps ahead
            clock += ahead * vllm_step_seconds(self.shape, self.device, len(running), cached, self.element)
            step += ahead
            while running and running[0][0] == step:
                end, length = heapq.heappop(running)
                reserved -= length
                ends -= end
        return clock


def busiest_seconds(engine: Engine, lengths: Sequence[int], devices: int) -> float:
    """Return the seconds of the device that finishes last; completion i goes to device i modulo `devices`."""
    return max(engine.seconds(lengths[rank::devices]) for rank in range(min(devices, len(lengths))))


def steady_seconds(engine: Engine, lengths: Sequence[int], devices: int) -> float:
    """Return the seconds a step where sampling never waits for a step's last completions: one device's mean share."""
    share = lengths[0::devices]
    once = engine.seconds(share)
    return (engine.seconds([*share] * _STEADY) - once) / (_STEADY - 1)


def step_row(config: Config, shape: ModelShape, device: Device, devices: int, lengths: Sequence[int]) -> dict[str, str]:
    """Return the seconds of one RL step in today's order, and the gain of each other order."""
    element = element_bytes(config)
    whole = np.array(lengths, dtype=float) + MEAN_PROMPT
    # A pass computes 2 FLOP a weight and token, and attention 2 layers x hidden x length more (half of it is masked).
    attention = 2 * shape.layers * shape.hidden * (whole**2).sum() / (2 * shape.parameters * whole.sum())
    tokens = whole.sum() * (1 + attention)
    colocated = Engine(shape, device, element, config.placement.vllm.colocated_memory)
    dedicated = Engine(shape, device, element, DEDICATED_MEMORY)

    def update(count: int) -> float:
        return training_seconds(shape, device, update_passes(config), tokens, count)

    sampling = busiest_seconds(colocated, lengths, devices)
    today = sampling + update(devices)
    partial = steady_seconds(colocated, lengths, devices) + update(devices)
    split, both = (
        min((max(cost(dedicated, lengths, count), update(devices - count)), count) for count in range(1, devices))
        for cost in (busiest_seconds, steady_seconds)
    )
    return {
        "sampling": f"{sampling:,.0f}",
        "updates": f"{update(devices):,.0f}",
        "partial": f"{today / partial:.2f}",
        "split": f"{today / split[0]:.2f} ({split[1]})",
        "both": f"{today / both[0]:.2f} ({both[1]})",
    }


def tailed_lengths(count: int, budget: int, seed: int = 0) -> list[int]:
    """Return lengths in tokens with a long tail, cut at the budget."""
    mean = TAIL_MEAN * budget
    drawn = np.random.default_rng(seed).lognormal(np.log(mean) - TAIL_SIGMA**2 / 2, TAIL_SIGMA, count)
    return [int(n) for n in np.clip(drawn, 1, budget)]


def recorded_lengths(run: Path, count: int, budget: int, seed: int = 0) -> list[int]:
    """Return lengths of a recorded run's rollouts, whole groups together, scaled so that its longest is the budget.

    Raises:
        FileNotFoundError: The folder holds no shards of explore.
    """
    import pyarrow.parquet as pq

    shards = sorted(run.glob("iteration-*/explore/shards/**/*.parquet"))
    if not shards:
        raise FileNotFoundError(f"{run} holds no rollouts: name the folder of a run in its store")
    table = np.concatenate([pq.read_table(shard, columns=["length"])["length"].to_numpy() for shard in shards])
    groups = table[: len(table) // GROUP * GROUP].reshape(-1, GROUP)
    chosen = np.random.default_rng(seed).choice(len(groups), -(-count // GROUP))
    return [max(1, int(n)) for n in (groups[chosen].ravel()[:count] * (budget / table.max()))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=CONFIG, help="run config (default: the 7B one)")
    parser.add_argument("--lengths", type=Path, metavar="RUN", help="a run's folder in its store, for lengths besides")
    parser.add_argument("--budgets", type=int, nargs="+", default=[2048, 28_672], metavar="TOKENS")
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8, 64], metavar="N")
    parser.add_argument("--device", choices=[name for name in DEVICES if name != "cpu"], default="h100")
    options = parser.parse_args()

    from rloop_core.config import load_config

    config = load_config(options.config)
    if (shape := find_shape(config.policy)) is None:
        parser.error(f"--config: the size of {config.policy.path} is not known here")
    rows: list[list[str]] = []
    for budget in options.budgets:
        count = config.explore.rollouts_per_step
        drawn = {"long tail": tailed_lengths(count, budget)}
        if options.lengths:
            drawn["recorded"] = recorded_lengths(options.lengths, count, budget)
        for kind, lengths in drawn.items():
            for devices in options.devices:
                row = step_row(config, shape, DEVICES[options.device], devices, lengths)
                what = [f"{budget:,}", kind, f"{np.mean(lengths):,.0f}", str(devices)]
                rows.append([*what, *row.values()])
    header = ["budget", "lengths", "mean", "devices", "sampling, s", "updates, s", "partial", "split", "both"]
    print("\n".join(markdown_table(header, rows)))


if __name__ == "__main__":
    main()
