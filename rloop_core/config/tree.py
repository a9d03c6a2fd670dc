"""The whole config of a run: identity sections, and one placement section that no fingerprint sees."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rloop_core.config.base import Impossible, Section
from rloop_core.config.evaluation import EvaluateConfig
from rloop_core.config.identity import (
    DecontaminateConfig,
    ExploreConfig,
    FilterConfig,
    HarvestConfig,
    PolicyConfig,
    ProblemSource,
    PromptConfig,
    RFTConfig,
)
from rloop_core.config.lora import LoraConfig
from rloop_core.config.placement import PlacementConfig
from rloop_core.verifier.policies import Policies


class Config(Section):
    """One RLoop run. `name` and `iterations` say which artifacts exist, not what is in them."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "rloop"
    """Name of the run: its folder in the store."""
    arm: Literal["rloop", "vanilla-rl"] = "rloop"
    """`vanilla-rl` is the control: one uninterrupted RL phase, no filter, no fine-tuning (`as_vanilla`)."""
    iterations: Annotated[int, Field(gt=0, le=1000)] = 3
    """I in Algorithm 1. Raising it later continues the run."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of every random choice."""
    policy: PolicyConfig = PolicyConfig()
    """The initial policy theta_0."""
    problems: ProblemSource
    """Training problems."""
    decontaminate: DecontaminateConfig = DecontaminateConfig()
    """Training problems that an evaluation set holds too."""
    prompt: PromptConfig = PromptConfig()
    """How a problem becomes a prompt."""
    verifier: Policies = Policies()
    """What counts as a right answer."""
    explore: ExploreConfig = ExploreConfig()
    """RL exploration (DAPO)."""
    harvest: HarvestConfig = HarvestConfig()
    """Collection of trajectories and success rates."""
    filter: FilterConfig = FilterConfig()
    """Selection of the expert set."""
    rft: RFTConfig = RFTConfig()
    """Rejection-sampling fine-tuning."""
    lora: LoraConfig = LoraConfig()
    """Low-rank adapters in explore and rft."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Evaluation of every theta."""
    placement: PlacementConfig = PlacementConfig()
    """Where and how; changes nothing that is computed."""

    @property
    def policy_stage(self) -> str:
        """The stage whose artifact holds what an iteration ended with."""
        return "explore" if self.arm == "vanilla-rl" else "rft"

    @property
    def evaluation_tokens(self) -> int:
        """Completion budget of evaluation in tokens, where a set has none of its own."""
        return self.evaluate.max_completion_tokens or self.explore.max_completion_tokens

    @property
    def longest_evaluation(self) -> int:
        """The greatest completion budget of any evaluation set, in tokens."""
        return max((self.evaluation_tokens_of(one.label) for one in self.evaluate.sets), default=self.evaluation_tokens)

    def evaluation_tokens_of(self, label: str) -> int:
        """Completion budget of one evaluation set, in tokens."""
        return self.evaluate.of(label).max_completion_tokens or self.explore.max_completion_tokens

    def stage_identity(self, stage: str) -> dict[str, Any]:
        """The config's share of a stage's fingerprint; inputs and code versions are added by the stage.

        A field appears under every stage that reads it directly. What a stage inherits from the stages before it
        reaches its fingerprint through their artifacts' digests instead, and so do the problems: equal inputs are
        recognised as equal however they came about, wherever a file lies.
        """
        model = {"dtype": self.policy.dtype, "trust_remote_code": self.policy.trust_remote_code}
        shared = {
            "prompt": self.prompt.identity(),
            "policy": model,
            "verifier": self.verifier.model_dump(mode="json"),
            "seed": self.seed,
        }
        sections: dict[str, dict[str, Any]] = {
            "explore": {**shared, "explore": self.explore.identity(), **self.lora.identity_of("explore")},
            "harvest": {"harvest": self.harvest.identity(), "shape": self._explore_shape()},
            "filter": {"filter": self.filter.identity(), "seed": self.seed},
            "rft": {
                "rft": self.rft.identity(),
                "policy": model,
                "seed": self.seed,
                **self.lora.identity_of("rft"),
            },
            "evaluate": {
                **shared,
                "evaluate": self._evaluation_identity(),
                "max_completion_tokens": self.evaluation_tokens,
            },
        }
        if self.harvest.snapshot_samples:
            sampling = {"temperature": self.explore.temperature, "tokens": self.explore.max_completion_tokens}
            sections["harvest"] |= {**shared, "sampling": sampling}
        return sections[stage]

    def _evaluation_identity(self) -> dict[str, Any]:
        """How sets are sampled and summarised; a set appears only with settings of its own."""
        shared = self.evaluate.model_dump(mode="json", exclude={"base", "sets", "snapshots", "select_on", "select_by"})
        own = {one.label: one.own for one in self.evaluate.sets if one.own}
        return {**shared, "sets": own} if own else shared

    def _explore_shape(self) -> dict[str, int]:
        """What harvest proves complete: RL steps, and rollouts a group."""
        return {"steps": self.explore.steps, "group_size": self.explore.group_size}

    @model_validator(mode="after")
    def _possible(self) -> Config:
        check_context(self, self.policy.context_tokens, "policy.context_tokens")
        if self.arm == "vanilla-rl" and self.iterations != 1:
            raise Impossible(
                "iterations", f"vanilla RL is one phase, not {self.iterations}", "set it to 1, and explore.steps to all"
            )
        if self.evaluate.snapshots and not self.explore.snapshot_every:
            raise Impossible("evaluate.snapshots", "explore keeps no snapshots", "set explore.snapshot_every")
        if self.harvest.snapshot_samples and not self.explore.snapshot_every:
            raise Impossible(
                "harvest.snapshot_samples", "explore keeps no snapshots to sample from", "set explore.snapshot_every"
            )
        if self.filter.source == "snapshots" and not self.harvest.snapshot_samples:
            raise Impossible("filter.source", "harvest samples from no snapshots", "set harvest.snapshot_samples")
        micro = self.placement.micro_batch_rollouts
        if micro and self.explore.mini_batch_rollouts % micro:
            raise Impossible(
                "placement.micro_batch_rollouts",
                f"{micro} does not divide explore.mini_batch_rollouts = {self.explore.mini_batch_rollouts}",
                "choose a divisor",
            )
        self._check_processes()
        return self

    def _check_processes(self) -> None:
        """Every process of a stage that trains gets as many problems, rollouts and trajectories as any other."""
        processes, machines = self.placement.processes, self.placement.machines
        if processes % machines:
            what = f"{processes} processes, in all, cannot be shared out equally over {machines} machines"
            raise Impossible("placement.processes", what, f"set it to {machines}, or to another multiple of that")
        if machines > 1 and not self.placement.scratch:
            what = "several machines need a folder for unfinished work that all of them see"
            raise Impossible("placement.scratch", what, "name one on a shared file system, under the same path on all")
        shared = {
            "explore.problems_per_step": self.explore.problems_per_step,
            "explore.mini_batch_rollouts": self.explore.mini_batch_rollouts,
            "rft.batch_trajectories": self.rft.batch_trajectories,
        }
        if micro := self.placement.micro_batch_rollouts:
            shared["explore.mini_batch_rollouts / placement.micro_batch_rollouts"] = (
                self.explore.mini_batch_rollouts // micro
            )
        if micro := self.placement.micro_batch_trajectories:
            shared["rft.batch_trajectories / placement.micro_batch_trajectories"] = max(
                1, self.rft.batch_trajectories // micro
            )
        for what, number in shared.items():
            if number % processes:
                raise Impossible(
                    "placement.processes", f"{processes} does not divide {what} = {number}", "choose a divisor"
                )


def as_vanilla(config: Config) -> Config:
    """The control arm at equal compute (paper 5.2): the same DAPO and seed, iterations x steps RL steps on end.

    Its first `explore.steps` RL steps are those of RLoop's first iteration; a config that is vanilla RL already stays.
    """
    if config.arm == "vanilla-rl":
        return config
    steps = config.explore.steps * config.iterations
    return config.model_copy(
        update={
            "arm": "vanilla-rl",
            "name": f"{config.name}-vanilla-rl",
            "iterations": 1,
            "explore": config.explore.model_copy(update={"steps": steps}),
        }
    )


def check_context(config: Config, context_tokens: int | None, source: str) -> None:
    """Refuse a prompt + completion budget beyond the model's context.

    Args:
        config: The run's config.
        context_tokens: The model's longest sequence, in tokens; None when it is not known yet.
        source: Where that number comes from, for the message.

    Raises:
        Impossible: The budget does not fit.
    """
    if context_tokens is None:
        return
    longest = max(config.explore.max_completion_tokens, config.longest_evaluation)
    if config.prompt.max_tokens + longest > context_tokens:
        raise Impossible(
            "prompt.max_tokens",
            f"prompt {config.prompt.max_tokens} + completion {longest} tokens exceed the model's context of "
            f"{context_tokens} ({source})",
            f"lower prompt.max_tokens to at most {max(1, context_tokens - longest)}, or the completion budget",
        )
