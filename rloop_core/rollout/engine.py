"""What every rollout engine takes and gives, so that a stage need not know who draws its completions.

An engine draws *batches*: the unit of the record's shards, of resuming after a crash, and of sharing the work among
machines. What is in a batch, and what decides its random numbers, is settled here for all engines: the seed of the
draw and the batch's number, so that any batch can be drawn alone, by anybody. Two engines still draw different
completions from one seed, as two kinds of device do: their samples agree in distribution, not token for token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rloop_core.config import Config
from rloop_core.rollout.prompts import EncodedProblem
from rloop_core.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


ENGINE_STARTS = "rloop: a rollout engine starts"
"""A line on stderr before an engine's processes start: what they say of themselves comes after it."""


@dataclass(frozen=True)
class SamplingSettings:
    """How completions are drawn.

    Args:
        samples: Completions a problem.
        temperature: Softmax temperature.
        top_p: Nucleus mass.
        max_tokens: Completion budget, in tokens.
        batch: Sequences of a batch, and at most so many are generated together.
        seed: Seed of the whole draw.
    """

    samples: int
    temperature: float
    top_p: float
    max_tokens: int
    batch: int
    seed: int


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    Args:
        problem: Its problem.
        sample: Index among the problem's samples.
        token_ids: Sampled ids, the ending eos included.
        text: Decoded without special tokens.
        finished: Whether it ended by itself.
        logprob_sum: Log-probability of its tokens as they were drawn, temperature and nucleus included, in nats.
    """

    problem: EncodedProblem
    sample: int
    token_ids: list[int]
    text: str
    finished: bool
    logprob_sum: float


@dataclass(frozen=True)
class Drawn:
    """What was drawn for one prompt; its fields are `Completion`'s.

    Args:
        token_ids: Sampled ids, the ending eos included.
        text: Decoded without special tokens.
        finished: Whether it ended by itself.
        logprob_sum: In nats.
    """

    token_ids: list[int]
    text: str
    finished: bool
    logprob_sum: float


class RolloutEngine(Protocol):
    """Draws completions from one policy."""

    def sample(
        self, problems: Sequence[EncodedProblem], settings: SamplingSettings, batches: Collection[int] | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """(number, completions) of each batch of `plan_batches` as it is done, in any order.

        Args:
            problems: What to answer.
            settings: How to draw.
            batches: Numbers of the batches to draw; None draws all.
        """
        ...

    def close(self) -> None:
        """End whatever the engine started; a GPU's memory is free again after that."""
        ...


def plan_batches(problems: Sequence[EncodedProblem], settings: SamplingSettings) -> list[list[tuple[int, int]]]:
    """(problem index, sample) pairs in batches; prompts of like length go together, to waste little on padding."""
    order = sorted(range(len(problems)), key=lambda index: (len(problems[index].prompt_ids), index))
    pairs = [(index, sample) for index in order for sample in range(settings.samples)]
    return [pairs[start : start + settings.batch] for start in range(0, len(pairs), settings.batch)]


def batch_seed(settings: SamplingSettings, batch: int) -> int:
    """The seed of one batch; an engine that seeds every sequence derives theirs from it."""
    return derive_seed(settings.seed, "batch", batch)


def completions_of(
    problems: Sequence[EncodedProblem], pairs: Sequence[tuple[int, int]], drawn: Sequence[Drawn]
) -> list[Completion]:
    """The completions of one batch of `plan_batches`."""
    return [
        Completion(problems[which], sample, one.token_ids, one.text, one.finished, one.logprob_sum)
        for (which, sample), one in zip(pairs, drawn, strict=True)
    ]


def make_engine(config: Config, policy: Path, device: str, tokenizer: PreTrainedTokenizerBase) -> RolloutEngine:
    """The engine that `placement` names, with the policy loaded: transformers in this process, vLLM in its own.

    Args:
        config: The run's config.
        policy: Folder of the policy.
        device: "cpu" or "cuda".
        tokenizer: The policy's.

    Raises:
        RLoopError: The engine is not installed here, does not start, or wants more devices than there are.
    """
    if config.placement.engine == "vllm":
        from rloop_core.rollout.vllm_engine import VllmEngine

        return VllmEngine(config, policy, device, tokenizer)
    from rloop_core.rollout.policy import load_model
    from rloop_core.rollout.sampler import TransformersSampler

    remote = config.policy.trust_remote_code
    model = load_model(policy, dtype=config.policy.dtype, device=device, trust_remote_code=remote)
    return TransformersSampler(model, tokenizer)
