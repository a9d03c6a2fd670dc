"""Advantages and losses that TRL does not have: MaxRL's, and a user's own objective."""

from typing import Any

import torch

from rloop_core.config import ExploreConfig
from rloop_core.errors import StageError
from rloop_core.hooks import load_hook
from rloop_core.training.micro_batches import Batch


def maxrl_advantages(rewards: torch.Tensor, explore: ExploreConfig) -> torch.Tensor:
    """Return (R - mean) / mean within each group, and 0 where the mean is 0 (MaxRL, arXiv 2602.02710).

    R is 0 for `reward_wrong` and 1 for `reward_correct`; an overlong punishment lowers it, to 0 at most. The update is
    then the mean of grad log pi over a group's correct rollouts, less a term whose expectation is 0. `rewards` are as
    trained on, group after group: shape (groups * group_size,).
    """
    least, most = explore.reward_wrong, explore.reward_correct
    scores = ((rewards - least) / (most - least)).clamp(min=0).view(-1, explore.group_size)
    means = scores.mean(dim=1, keepdim=True)
    return torch.where(means > 0, (scores - means) / means.clamp(min=1e-6), 0.0).flatten()


def own_loss(trainer: Any, model: Any, inputs: Batch) -> torch.Tensor:
    """Return the loss of a user's objective: the sum of its token losses over the tokens of a DapoTrainer's update.

    `explore.objective: my_losses.py:reinforce` is for example

        def reinforce(log_probs, old_log_probs, advantages, mask):
            return -advantages[:, None] * log_probs

    It is called with the log-probabilities now and at sampling time, both (rows, tokens), the advantages, (rows,), and
    the mask of real tokens, (rows, tokens), and returns a loss for each token, (rows, tokens), in nats. Raises
    ConfigError if the function cannot be imported; StageError if it returns another shape.
    """
    objective = trainer.explore.objective
    function = load_hook(objective, "explore.objective")
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    mask = inputs["completion_mask"]
    log_probs, entropies, _ = trainer._get_per_token_logps_and_entropies(
        model, ids, attention, mask.shape[1], compute_entropy=True
    )
    old = inputs.get("old_per_token_logps")
    losses = function(log_probs, log_probs.detach() if old is None else old, inputs["advantages"], mask)
    if losses.shape != mask.shape:
        what = f"{objective} returns losses of shape {tuple(losses.shape)}, not {tuple(mask.shape)}"
        raise StageError(what, field="explore.objective", fix="return a loss for each token")
    if "importance_sampling_ratio" in inputs:
        losses = losses * inputs["importance_sampling_ratio"]
    entropy = (entropies.detach() * mask).sum() / mask.sum().clamp(min=1)
    trainer._metrics["train"]["entropy"].append(trainer.accelerator.gather(entropy).nanmean().item())
    tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
    loss: torch.Tensor = (losses * mask).sum() * trainer.args.steps_per_generation / tokens
    return loss
