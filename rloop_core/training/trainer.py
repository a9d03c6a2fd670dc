"""DAPO exploration on TRL's GRPOTrainer, which is extended around its methods; none of them is copied.

TRL has clip-higher, the token-level loss and group advantages. Added here: RL-step accounting, dynamic sampling on
accuracy, the record of every rollout, a problem order that resumes exactly, the other stages' sampler, and passes over
rows of similar lengths.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object, is_peft_model, set_seed
from torch.utils.data import DataLoader
from trl import GRPOTrainer
from trl.models.utils import unwrap_model_for_generation

from rloop_core.config import ExploreConfig
from rloop_core.config.objectives import divisor
from rloop_core.errors import StageError
from rloop_core.hooks import is_hook
from rloop_core.rollout.engine import SamplingSettings
from rloop_core.rollout.prompts import EncodedProblem
from rloop_core.rollout.recording import trajectory_row
from rloop_core.rollout.sampler import TransformersSampler
from rloop_core.rollout.vllm_server import server_errors
from rloop_core.training.adapters import keep_frozen_weights_in_sync
from rloop_core.training.groups import GroupBatch, ProblemStream, group_id, informative_groups
from rloop_core.training.losses import maxrl_advantages, own_loss
from rloop_core.training.micro_batches import Batch, TokenMicroBatches, select_rows, split_alike, unpad
from rloop_core.training.rollouts import AnswerReward, RolloutRecorder
from rloop_core.verifier import Verdict

_VLLM_SEQUENCES = 512
"""Most sequences that a colocated vLLM works on at a time; more gain nothing (28,900 tokens/s with 512 on an H200)."""
_VLLM_PREFILL_TOKENS = 8192


class DapoTrainer(TokenMicroBatches, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer that records every rollout, samples dynamically, and resumes exactly at RL-step boundaries.

    P is over all ranks. The judgements of `answer_reward`, the first reward, drive dynamic sampling. Benchmarks have no
    `recorder`. At most `generation_batch` sequences are generated together, which bounds the KV
    cache, and `micro_batch_tokens` computed together, which bounds the activations. `trl` are GRPOTrainer's arguments.
    """

    def __init__(
        self,
        *,
        explore: ExploreConfig,
        problems: Sequence[EncodedProblem],
        stream: ProblemStream,
        answer_reward: AnswerReward,
        recorder: RolloutRecorder | None,
        generation_batch: int,
        micro_batch_tokens: int,
        **trl: Any,
    ) -> None:
        self.explore = explore
        self.stream = stream
        self.recorder = recorder
        self.micro_batch_tokens = micro_batch_tokens
        self._completion_tokens: list[float] = []
        self._problems = problems
        self._prompt_ids = {problem.prompt: list(problem.prompt_ids) for problem in problems}
        self._answer_reward = answer_reward
        self._sampling = explore.dynamic_sampling
        self._rollout_statistics: tuple[torch.Tensor, torch.Tensor] | None = None
        self._seconds = {"generate": 0.0, "verify": 0.0, "record": 0.0}
        self.step_metrics: dict[str, float] = {}
        with _engine_arguments():
            super().__init__(**trl)
        if self.use_vllm:
            # Starting vLLM resets this process's random state to a fixed seed; from here on, checkpoints keep it. vLLM
            # draws each request's seed from it, which ranks of one tensor-parallel group must do alike.
            set_seed(self.args.seed + self.accelerator.process_index // self.args.vllm_tensor_parallel_size)
            if is_peft_model(self.model):
                adapters = self.model.peft_config["default"]
                keep_frozen_weights_in_sync(self.vllm_generation, adapters.lora_alpha / adapters.r)
        self._sampling_settings = SamplingSettings(
            samples=1,
            temperature=self.temperature,
            top_p=1.0,
            max_tokens=self.max_completion_length,
            batch=generation_batch,
            seed=0,  # unused: the trainer's random state, which its checkpoints hold, decides
            stop=answer_reward.stop,
        )

    def get_train_dataloader(self) -> DataLoader[int]:
        """Return a loader with one item per forward-backward pass of the phase, in a single epoch.

        Problems come from the stream instead: dynamic sampling takes an unknown number of them, and TRL's own sampler
        replays the first epoch's order after a resume in a later one.
        """
        updates = self.explore.steps * self.explore.updates_per_step
        passes = updates * self.args.gradient_accumulation_steps * self.accelerator.num_processes
        loader: DataLoader[int] = DataLoader(range(passes), batch_size=1, collate_fn=list)  # type: ignore[arg-type]
        return self.accelerator.prepare(loader)  # type: ignore[no-any-return]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        """Generate one RL step's rollouts, in rounds until every rank has its groups, and record all of them."""
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)  # type: ignore[no-any-return]
        started = time.perf_counter()
        step = self.state.global_step // self.explore.updates_per_step + 1  # global_step counts updates
        ranks = self.accelerator.num_processes
        batch = GroupBatch(self.explore.problems_per_step // ranks, self.explore.group_size)
        rows: list[dict[str, Any]] = []
        rounds = 0
        missing = 0
        while rounds == 0 or (missing and not self._exhausted(rounds, step, missing)):
            rows += self._sample_round(step, rounds, batch)
            missing = batch.share(lambda own: gather_object([own]), self.accelerator.process_index)
            rounds += 1
        for row in rows:
            row["kept"] = row["group_id"] in batch.in_update
        before_record = time.perf_counter()
        if self.recorder:
            self.recorder.write(step, rows)
        verify = self._answer_reward.take_seconds()
        self._seconds["generate"] += before_record - started - verify
        self._seconds["verify"] += verify
        self._seconds["record"] += time.perf_counter() - before_record
        output = batch.tensors(self._tokenizer.pad_token_id)
        output["num_items_in_batch"] = self.accelerator.gather(output["completion_mask"].sum()).sum()
        self.step_metrics = self._over_ranks(_metrics_of(rows, self.explore.group_size)) | {
            "generation_batches": float(rounds),
            "groups_missing": float(missing),
        }
        return output

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds since the last call of: generate (including the scoring pass), verify, record."""
        seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        return seconds

    def _sample_round(self, step: int, round_index: int, batch: GroupBatch) -> list[dict[str, Any]]:
        """Generate and score P problems x G rollouts, offer the groups to the batch, and return the record rows."""
        size = self.explore.group_size
        indices = self.stream.take(self.explore.problems_per_step)
        share = len(indices) // self.accelerator.num_processes
        rank = self.accelerator.process_index
        mine = [self._problems[index] for index in indices[rank * share : (rank + 1) * share]]
        inputs = [{"prompt": problem.prompt, "problem": problem} for problem in mine for _ in range(size)]
        self._rollout_statistics = None
        output = super()._generate_and_score_completions(inputs)
        scores = [judgement.reward for judgement in self._answer_reward.judgements]
        if self.explore.advantage == "maxrl":
            output["advantages"] = maxrl_advantages(self._own_rewards(len(inputs)), self.explore)
        groups = informative_groups(scores, size) if self._sampling.enabled else list(range(len(mine)))
        names = [group_id(step, rank, round_index, group) for group in range(len(mine))]
        batch.add(output, {names[group]: group for group in groups})
        return self._rows(names, mine, output)

    def _rows(
        self, names: list[str], problems: list[EncodedProblem], output: dict[str, torch.Tensor]
    ) -> list[dict[str, Any]]:
        """Return the record rows of one round, without `kept`: whether a group is in the update shows later."""
        answer = self._answer_reward
        ids = _unpadded(output["completion_ids"], output["completion_mask"])
        log_probs, entropies = self._statistics_of(output["completion_mask"])
        rewards = self._own_rewards(len(ids)).tolist()
        rows = []
        for index, judgement in enumerate(answer.judgements):
            group, sample = divmod(index, self.explore.group_size)
            own = {
                "group_id": names[group],
                "sample": sample,
                "policy_step": self.state.global_step,
                "reward": rewards[index],
                "finished": answer.finished[index],
                "logprob_sum": log_probs[index],
                "entropy_mean": entropies[index],
            }
            rows.append(trajectory_row(problems[group], answer.completions[index], ids[index], judgement, **own))
        return rows

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Sample completions with the sampler of the other stages; vLLM samples through TRL's own method."""
        if self.use_vllm:
            with server_errors(self.args.vllm_server_base_url):
                return super()._generate_single_turn(prompt_ids, *args, **kwargs)  # type: ignore[no-any-return]
        with unwrap_model_for_generation(
            self.model_wrapped,
            self.accelerator,
            gather_deepspeed3_params=self.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
        ) as policy:
            sampler = TransformersSampler(policy, self._tokenizer)
            completions = sampler.sample_ids(prompt_ids, self._sampling_settings)
            policy.train()
        return completions, None

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Return the prompts' ids that all stages share, instead of tokenizing again."""
        return [self._prompt_ids[prompt] for prompt in prompts], None, {}

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return TRL's rewards, (ranks * rows, functions), and keep their weighted sum, the update's reward."""
        rewards = super()._calculate_rewards(*args, **kwargs)
        self._last_rewards = (rewards * self.reward_weights.to(rewards.device)).sum(dim=1)
        return rewards  # type: ignore[no-any-return]

    def _own_rewards(self, rows: int) -> torch.Tensor:
        """Return the rewards of this rank's rows of the last round."""
        first = self.accelerator.process_index * rows
        rewards: torch.Tensor = self._last_rewards[first : first + rows]
        return rewards

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        """Return TRL's loss, or that of a user's own objective."""
        if is_hook(self.explore.objective):
            return own_loss(self, model, inputs)
        self.entropy_coef = inputs.pop("entropy_coef", torch.zeros(())).item()
        return super()._compute_loss(model, inputs)  # type: ignore[no-any-return]

    def compute_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss of one update, with TRL's metrics averaged over its tokens, not over its micro-batches."""
        metrics = self._metrics["train"]
        before = {name: len(values) for name, values in metrics.items()}
        loss = super().compute_loss(*args, **kwargs)
        weights = self._completion_tokens
        for name, values in metrics.items():
            of_parts = values[before.get(name, 0) :]
            if len(of_parts) == len(weights):
                mean = sum(value * weight for value, weight in zip(of_parts, weights, strict=True)) / sum(weights)
                values[before.get(name, 0) :] = [mean]
        return loss

    def micro_batches(self, inputs: Batch) -> Iterator[tuple[Batch, float]]:
        """Yield the rollouts of one update by length, without columns that hold padding alone."""
        lengths = (inputs["prompt_mask"].sum(dim=1) + inputs["completion_mask"].sum(dim=1)).tolist()
        parts = split_alike(lengths, self.micro_batch_tokens, self.accelerator)
        batches = [_without_empty_columns(select_rows(inputs, rows)) for rows in parts]
        tokens = torch.stack([batch["completion_mask"].sum().float() for batch in batches])
        self._completion_tokens = self.accelerator.reduce(tokens, reduction="sum").clamp(min=1.0).tolist()
        all_tokens = sum(tokens.tolist()) or 1.0
        for rows, batch, own_tokens in zip(parts, batches, tokens.tolist(), strict=True):
            weight = 1.0 if divisor(self.explore.objective) == "update" else len(rows) / len(lengths)
            # TRL adds the mean entropy of the micro-batch's tokens, whatever the objective divides by.
            batch["entropy_coef"] = torch.tensor(self.explore.entropy_bonus * own_tokens / all_tokens / weight)
            yield batch, weight

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Run TRL's pass on rows without padding; without gradients in micro-batches of similar lengths.

        Without gradients it scores rollouts, and adds their entropies, which the fused head computes at no cost.
        """
        score = super()._get_per_token_logps_and_entropies
        scoring = not torch.is_grad_enabled()
        compute_entropy |= scoring and not self._is_reference(model)
        parts: list[Any] = [range(len(input_ids))]
        if scoring:
            parts = split_alike(attention_mask.sum(dim=1).tolist(), self.micro_batch_tokens, self.accelerator)
        log_probs, entropies, auxiliary = [], [], None
        for rows in parts:
            index = torch.tensor(rows, device=input_ids.device)
            part = unpad(input_ids[index], attention_mask[index], logits_to_keep)
            scores, entropy, auxiliary = score(
                model, part.input_ids, part.attention_mask, part.kept,
                compute_entropy=compute_entropy, **kwargs,
            )  # fmt: skip
            log_probs.append(part.spread(scores, logits_to_keep))
            if compute_entropy:
                entropies.append(part.spread(entropy, logits_to_keep))
        order = torch.tensor([row for rows in parts for row in rows], device=input_ids.device).argsort()
        scores, entropy = torch.cat(log_probs)[order], torch.cat(entropies)[order] if entropies else None
        if scoring and entropy is not None:
            self._rollout_statistics = scores, entropy
        return scores, entropy, auxiliary

    def _is_reference(self, model: Any) -> bool:
        """Return True if a pass is that of theta_i for `explore.kl`: a second model, or one without its adapters."""
        if not self.explore.kl:
            return False
        return model is self.ref_model or any(getattr(each, "_disable_adapters", False) for each in model.modules())

    def _statistics_of(self, mask: torch.Tensor) -> tuple[list[float | None], list[float | None]]:
        """Return log-probability sums and mean entropies of the last round in nats; None if TRL did not score it."""
        if self._rollout_statistics is None:
            unknown: list[float | None] = [None] * mask.shape[0]
            return unknown, unknown
        log_probs, entropies = self._rollout_statistics
        lengths = mask.sum(dim=1).clamp(min=1)
        return (log_probs * mask).sum(dim=1).tolist(), ((entropies * mask).sum(dim=1) / lengths).tolist()

    def _over_ranks(self, metrics: dict[str, float]) -> dict[str, float]:
        """Combine the metrics of all ranks; each has equally many rollouts, so the mean of means is the mean."""
        if self.accelerator.num_processes == 1:
            return metrics
        ranks = self.accelerator.gather(torch.tensor([list(metrics.values())], device=self.accelerator.device))
        combined = dict(zip(metrics, ranks.mean(dim=0).tolist(), strict=True))
        for name in ("rollouts", "groups", "groups_dropped"):
            combined[name] *= self.accelerator.num_processes
        column = list(metrics)
        combined["length_min"] = ranks[:, column.index("length_min")].min().item()
        combined["length_max"] = ranks[:, column.index("length_max")].max().item()
        return combined

    def _exhausted(self, rounds: int, step: int, missing: int) -> bool:
        """Return True if sampling must stop although the batch is not full.

        Raises:
            StageError: It must stop, and the config requires a full batch.
        """
        if self._sampling.enabled and rounds < self._sampling.max_generation_batches:
            return False
        if self._sampling.when_exhausted == "fail":
            wanted = self.explore.problems_per_step
            raise StageError(
                f"RL step {step}: after {rounds} generation batches only {wanted - missing} of {wanted} groups "
                "hold both right and wrong rollouts: the problems are too easy or too hard for this policy",
                field="explore.dynamic_sampling.max_generation_batches",
                fix="choose other problems, raise the limit, or set when_exhausted to update-with-fewer",
            )
        return True


@contextmanager
def _engine_arguments() -> Iterator[None]:
    """Bound the sequences of TRL's colocated vLLM, and widen its prefill, while a trainer starts it.

    TRL 1.16 asks for as many sequences as an RL step has rollouts, which vLLM refuses above 4,096, and which take
    `[sequences, vocabulary]` of the GPU's memory.
    """
    from trl.generation import vllm_generation

    engine: Any = getattr(vllm_generation, "LLM", None)  # there with vLLM alone

    def start(**own: Any) -> Any:
        sequences = min(own.get("max_num_seqs") or _VLLM_SEQUENCES, _VLLM_SEQUENCES)
        return engine(**{**own, "max_num_seqs": sequences, "max_num_batched_tokens": _VLLM_PREFILL_TOKENS})

    if engine is not None:
        vllm_generation.LLM = start
    try:
        yield
    finally:
        if engine is not None:
            vllm_generation.LLM = engine


def _without_empty_columns(batch: Batch) -> Batch:
    """Remove the first columns of prompts and the last ones of completions that hold no row's token."""
    width = batch["completion_mask"].shape[1]
    prompt, completion = (max(1, int(batch[f"{name}_mask"].sum(dim=1).max())) for name in ("prompt", "completion"))
    shorter = {name: value[:, -prompt:] for name, value in batch.items() if name.startswith("prompt_")}
    return shorter | {
        name: value[:, :completion] if value.ndim == 2 and value.shape[1] == width else value
        for name, value in batch.items()
        if name not in shorter
    }


def _unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    keep = mask.bool()
    return [row[flags].tolist() for row, flags in zip(ids.cpu(), keep.cpu(), strict=True)]


def _metrics_of(rows: list[dict[str, Any]], group_size: int) -> dict[str, float]:
    """Return this rank's metrics of an RL step: means over all rollouts, and groups dropped from the update."""
    count = len(rows)
    lengths = [row["length"] for row in rows]
    entropies = [row["entropy_mean"] for row in rows if row["entropy_mean"] is not None]
    return {
        **({"entropy_rollouts": sum(entropies) / len(entropies)} if entropies else {}),
        "rollouts": float(count),
        "reward": sum(row["reward"] for row in rows) / count,
        "accuracy": sum(row["verdict"] == Verdict.correct for row in rows) / count,
        "truncated": sum(not row["finished"] for row in rows) / count,
        "length_mean": sum(lengths) / count,
        "length_min": float(min(lengths)),
        "length_max": float(max(lengths)),
        "groups": count / group_size,
        "groups_dropped": sum(not row["kept"] for row in rows) / group_size,
    }
