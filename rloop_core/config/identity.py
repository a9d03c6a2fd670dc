"""Identity sections: what is computed. Every field here is part of the fingerprint of the stages that use it."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rloop_core.config.base import Impossible, Section
from rloop_core.config.engines import Engine
from rloop_core.problems.registry import KNOWN_SETS
from rloop_core.store.canonical import canonical_json

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
TemplateName = Literal["boxed", "answer-line", "chat", "plain"]


Start = Literal["theta", "rl-endpoint"]
"""theta_i, or where an RL phase ended."""


class PolicyConfig(Section):
    """The initial policy theta_0."""

    path: str = "bundled"
    """A local directory, a hub id, or `bundled` or `bundled:study` for a tiny policy that ships with rloop."""
    revision: str | None = None
    """Hub revision (branch, tag or commit); pin a commit for a run that must be reproducible."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and arithmetic."""
    context_tokens: Positive | None = None
    """Longest prompt + completion the model takes; read from the model's own config when it is local."""
    trust_remote_code: bool = False
    """Run Python code shipped with the model. Leave off unless you have read that code."""


class ProblemSource(Section):
    """Where a problem set comes from: a known name, a JSONL or parquet file, a hub id, or a generator."""

    source: Annotated[str, Field(description=f"`{KNOWN_SETS}`, a FILE, `owner/dataset` or `reasoning_gym:<task>`.")]
    name: str | None = None
    """Name in reports; defaults to the source."""
    split: str | None = None
    """Hub split; defaults to the usual one of the data set."""
    revision: str | None = None
    """Hub revision: a commit, branch or tag. The sets known by name are pinned to a commit without it."""
    size: Positive | None = None
    """Number of problems to generate (`reasoning_gym:` only)."""
    seed: int = 0
    """Seed of the generator (`reasoning_gym:` only)."""
    params: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Difficulty knobs of the generator (`reasoning_gym:`); for hub data sets `config` names the subset."""
    limit: Positive | None = None
    """Keep the first N problems after deduplication."""
    skip_malformed: bool = False
    """Skip and count lines that are not valid JSON or lack a field, instead of refusing the file."""

    @model_validator(mode="after")
    def _possible(self) -> ProblemSource:
        try:
            canonical_json(self.params)
        except (TypeError, ValueError) as error:
            raise Impossible("params", str(error), "use plain finite values") from error
        return self

    @property
    def label(self) -> str:
        """The set's name in reports, manifests and tables."""
        return self.name or self.source


class DecontaminateConfig(Section):
    """Training problems that an evaluation set holds too: what to do with them, and when two problems are one.

    Nothing is dropped unless asked for: the training set stays what the config names, an evaluation set added to a
    finished run leaves what was trained valid, and the evaluation is reported with and without the problems that
    training gave away.
    """

    mode: Literal["report", "drop", "off"] = "report"
    """`report` keeps them and evaluates with and without; `drop` trains without them; `off` does not look."""
    ngram: Annotated[int, Field(ge=3, le=100)] = 13
    """Words in a row that both problems must have, boilerplate left out."""
    containment: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Least share of the evaluation problem's 3-word runs that the training problem must have as well."""


class PromptConfig(Section):
    """How a problem becomes a prompt."""

    template: TemplateName = "boxed"
    """`boxed` and `answer-line` ask for an answer form, `chat` is the model's chat template, `plain` adds a newline."""
    max_tokens: Positive = 2048
    """Longest prompt; a longer one is an error before anything is trained."""


class OverlongConfig(Section):
    """DAPO's soft overlong punishment: linear from 0 to -penalty over the last `buffer_tokens` of the budget."""

    buffer_tokens: NonNegative = 0
    """Length of the punished interval; 0 turns the punishment off."""
    penalty: Rate = 1.0
    """Punishment of a completion that fills the whole budget (DAPO: 1)."""


class DynamicSamplingConfig(Section):
    """DAPO's dynamic sampling: only groups whose *accuracy* varies enter the update; all are recorded."""

    enabled: bool = True
    """Keep sampling until `problems_per_step` groups with both right and wrong rollouts are found."""
    max_generation_batches: Positive = 10
    """Give up after this many generation batches in one RL step."""
    when_exhausted: Literal["fail", "update-with-fewer"] = "fail"
    """`fail` stops with a clear error (DAPO); `update-with-fewer` updates on the groups found, and says so."""


class ExploreConfig(Section):
    """Exploration by DAPO (paper 4.1 and 5.1) from theta_i."""

    steps: Positive = 200
    """RL steps a phase (N_RL in Algorithm 1). One RL step = P problems x G rollouts, then its updates."""
    problems_per_step: Positive = 512
    """P: problems in one RL step."""
    group_size: Annotated[int, Field(ge=2)] = 16
    """G: rollouts of each problem in one RL step."""
    mini_batch_rollouts: Positive = 512
    """Rollouts in one optimizer update; P x G / this = updates an RL step."""
    max_completion_tokens: Positive = 2048
    """Longest completion; a longer one is cut and its verdict is `truncated`."""
    learning_rate: Rate = 1e-6
    """AdamW's learning rate, constant after the warm-up."""
    warmup_updates: NonNegative = 10
    """Optimizer updates of linear warm-up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """AdamW's decoupled weight decay."""
    max_grad_norm: Rate = 1.0
    """Gradients are scaled down to this norm."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """epsilon_low of DAPO's clip-higher: the ratio's floor is 1 - clip_low."""
    clip_high: Rate = 0.28
    """epsilon_high of DAPO's clip-higher: the ratio's ceiling is 1 + clip_high."""
    temperature: Rate = 1.0
    """Sampling temperature of the rollouts."""
    top_p: float = 1.0
    """Must be 1: anything else biases the importance ratio."""
    reward_correct: float = 1.0
    """Score of a correct rollout, before the overlong punishment."""
    reward_wrong: float = -1.0
    """Score of any other rollout, before the overlong punishment."""
    overlong: OverlongConfig = OverlongConfig()
    """Soft overlong punishment."""
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    """Which groups enter the update."""
    snapshot_every: NonNegative = 0
    """Keep the policy's weights every N RL steps, for harvest and analysis; 0 keeps the endpoint only."""
    start: Start = "theta"
    """What an iteration explores from. `rl-endpoint` (an ablation): no re-initialisation, RL goes on where it ended."""
    engine: Engine = "transformers"
    """Who draws the rollouts: `transformers`, or `vllm` beside the trainer on its GPU (rloop[vllm]).

    vLLM's arithmetic is not the trainer's, so each token's loss is weighted by how far they differ: that is another
    computation, and this field, unlike `placement.engine`, part of the fingerprint."""
    importance_cap: Rate = 2.0
    """With vLLM: ceiling of that weight, trainer's probability / engine's (truncated importance sampling)."""

    def identity(self) -> dict[str, Any]:
        """Without `start`, which reaches the fingerprint as the digest of the policy that it leads to.

        What only vLLM's rollouts have is left out where there are none: it was unknown to runs before it.
        """
        without = {"start"} | ({"engine", "importance_cap"} if self.engine == "transformers" else set())
        return self.model_dump(mode="json", exclude=without)

    @property
    def rollouts_per_step(self) -> int:
        """P x G."""
        return self.problems_per_step * self.group_size

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates in one RL step."""
        return self.rollouts_per_step // self.mini_batch_rollouts

    @model_validator(mode="after")
    def _possible(self) -> ExploreConfig:
        if self.mini_batch_rollouts % self.group_size:
            raise Impossible(
                "group_size",
                f"{self.group_size} does not divide mini_batch_rollouts = {self.mini_batch_rollouts}",
                f"make mini_batch_rollouts a multiple of {self.group_size}",
            )
        if self.rollouts_per_step % self.mini_batch_rollouts:
            raise Impossible(
                "mini_batch_rollouts",
                f"{self.mini_batch_rollouts} does not divide problems_per_step x group_size = {self.rollouts_per_step}",
                f"choose a divisor of {self.rollouts_per_step} that is a multiple of {self.group_size}",
            )
        if self.top_p != 1.0:
            raise Impossible("top_p", f"{self.top_p} biases DAPO's importance ratio", "set it to 1.0")
        if self.overlong.buffer_tokens >= self.max_completion_tokens:
            raise Impossible(
                "overlong.buffer_tokens",
                f"{self.overlong.buffer_tokens} leaves nothing of max_completion_tokens = {self.max_completion_tokens}",
                "make the buffer shorter than the completion budget (DAPO: a fifth of it)",
            )
        if self.reward_correct <= self.reward_wrong:
            raise Impossible("reward_correct", "it is not above reward_wrong", "DAPO uses 1 and -1")
        if self.snapshot_every and self.steps % self.snapshot_every:
            raise Impossible(
                "snapshot_every", f"{self.snapshot_every} does not divide steps = {self.steps}", "choose a divisor"
            )
        return self


class HarvestConfig(Section):
    """What is collected besides the rollouts of the RL steps."""

    snapshot_samples: NonNegative = 0
    """Rollouts sampled for every training problem from every kept snapshot (paper 4.1); 0 = none."""
    snapshots: Literal["all", "last"] = "all"
    """`last` samples from the last snapshot of the phase alone, which is its endpoint."""


class FilterConfig(Section):
    """Active learning (paper 4.2 and 5.1): correct trajectories of hard problems become the expert set."""

    source: Literal["all", "snapshots"] = "all"
    """`snapshots` (an ablation) takes what harvest sampled from snapshots, and leaves the RL steps' rollouts out."""
    active_learning: bool = True
    """Off (an ablation): every solved problem counts as hard, whatever its success rate."""
    threshold: Annotated[float, Field(json_schema_extra={"exclusiveMinimum": 0, "exclusiveMaximum": 1})] = 0.10
    """A problem is hard when 0 < success rate < threshold."""
    min_attempts: Positive = 1
    """Problems with fewer rollouts are left out."""
    min_successes: Positive = 1
    """Problems with fewer correct rollouts are left out (guards against false positives)."""
    max_per_problem: Positive | None = 8
    """Cap of trajectories a problem; null takes all."""
    drop_truncated: bool = True
    """Leave out completions that did not end by themselves."""
    drop_multiple_boxes: bool = True
    """Leave out completions that box several answers."""
    on_empty: Literal["carry", "widen", "fail"] = "carry"
    """Empty expert set: carry theta_i forward, widen the threshold, or fail."""
    widen_to: tuple[float, ...] = (0.2, 0.5)
    """Thresholds tried in order when `on_empty` is `widen`."""

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The thresholds to try, in order; 1 takes every solved problem."""
        if not self.active_learning:
            return (1.0,)
        return (self.threshold, *(self.widen_to if self.on_empty == "widen" else ()))

    @model_validator(mode="after")
    def _possible(self) -> FilterConfig:
        if not 0.0 < self.threshold < 1.0:
            fix = "the paper uses 0.10; to take every solved problem set filter.active_learning to false"
            raise Impossible("threshold", f"{self.threshold} is outside (0, 1)", fix)
        steps = (self.threshold, *self.widen_to)
        rising = all(narrow < wide for narrow, wide in pairwise(steps)) and steps[-1] <= 1.0
        if self.on_empty == "widen" and not (rising and self.widen_to):
            given = f"{list(self.widen_to)} does not rise from threshold = {self.threshold} to at most 1"
            raise Impossible("widen_to", given, "list rising thresholds such as [0.2, 0.5, 1.0]")
        if self.min_successes > self.min_attempts > 1:
            raise Impossible("min_successes", "it exceeds min_attempts", "lower it, or raise min_attempts")
        return self


class RFTConfig(Section):
    """Rejection-sampling fine-tuning of theta_i on the expert set (paper 4.1, equation 6)."""

    start: Start = "theta"
    """What is fine-tuned: theta_i, or (an ablation) the endpoint of the RL phase that it explored."""
    learning_rate: Annotated[float, Field(ge=0)] = 1e-5
    """AdamW's peak learning rate."""
    epochs: Positive = 1
    """Passes over the expert set (paper: 1)."""
    batch_trajectories: Positive = 64
    """Trajectories in one optimizer update."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Learning-rate schedule after the warm-up."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.03
    """Share of the updates spent warming up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: Rate = 1.0
    """Gradients are scaled down to this norm."""

    def identity(self) -> dict[str, Any]:
        """Without `start`, which reaches the fingerprint as the digest of the policy that it leads to."""
        return self.model_dump(mode="json", exclude={"start"})
