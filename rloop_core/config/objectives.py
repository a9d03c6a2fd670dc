"""Objectives of exploration: what each is, TRL's arguments for it, and how the losses of micro-batches add up."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Objective(NamedTuple):
    """An entry of `explore.objective`. r_t is a token's ratio of new to old probability, A its group's advantage."""

    what: str
    """The objective, and its source."""
    trl: dict[str, Any]
    """Arguments of TRL's GRPOConfig, beside the clip range."""
    divisor: Literal["update", "rows"]
    """What TRL divides a micro-batch's sum of losses by: the tokens of the whole update, or the micro-batch's own rows,
    whose share of the update then weighs it."""


_TOKEN, _SEQUENCE = {"importance_sampling_level": "token"}, {"importance_sampling_level": "sequence"}

OBJECTIVES: dict[str, Objective] = {
    "dapo": Objective(
        "min(r_t A, clip(r_t) A), every token of an update weighs the same (DAPO, arXiv 2503.14476, equation 8)",
        {"loss_type": "dapo", **_TOKEN},
        "update",
    ),
    "grpo": Objective(
        "as dapo over the mean of each sequence's tokens: sequences weigh the same (arXiv 2402.03300, equation 3)",
        {"loss_type": "grpo", **_TOKEN},
        "rows",
    ),
    "dr_grpo": Objective(
        "A = R - mean, not divided by the group's deviation; token losses divided by rows x max_completion_tokens "
        "(Dr. GRPO, arXiv 2503.20783)",
        {"loss_type": "dr_grpo", "scale_rewards": "none", **_TOKEN},
        "rows",
    ),
    "gspo": Objective(
        "min(s A, clip(s) A), s = exp(mean_t log r_t), one ratio for each sequence (GSPO, arXiv 2507.18071, equation "
        "5); its clip range is much smaller, such as clip_low 3e-4 and clip_high 4e-4",
        {"loss_type": "grpo", **_SEQUENCE},
        "rows",
    ),
    "luspo": Objective(
        "as gspo, each sequence times its length (LUSPO, arXiv 2602.05261)",
        {"loss_type": "luspo", **_SEQUENCE},
        "rows",
    ),
    "cispo": Objective(
        "min(r_t, 1 + clip_high) A log pi, no gradient through the ratio, so that no token is left out (CISPO, arXiv "
        "2506.13585); clip_high is wide, such as 4, and clip_low is not used",
        {"loss_type": "cispo", **_TOKEN},
        "update",
    ),
    "sapo": Objective(
        "a smooth gate, sigmoid(tau (r_t - 1)) 4 / tau, in place of the clip, which is not used (SAPO, arXiv "
        "2511.20347)",
        {"loss_type": "sapo", **_TOKEN},
        "rows",
    ),
    "vespo": Objective(
        "phi(w) A log pi, w the ratio of whole sequences, phi a gamma weight in place of the clip, which is not used "
        "(VESPO, arXiv 2602.10693)",
        {"loss_type": "vespo", **_TOKEN},
        "update",
    ),
}
"""By name. An objective of one's own is a function, `module:function`; see `training.trainer`."""


def trl_arguments(objective: str, clip_low: float, clip_high: float) -> dict[str, Any]:
    """Return GRPOConfig's arguments; those of a function's own objective are dapo's."""
    trl = OBJECTIVES.get(objective, OBJECTIVES["dapo"]).trl
    ceiling = 1 + clip_high if objective == "cispo" else clip_high  # TRL's is the ratio's for cispo
    return {"scale_rewards": "group", **trl, "epsilon": clip_low, "epsilon_high": ceiling}


def divisor(objective: str) -> Literal["update", "rows"]:
    """Return what divides a micro-batch's sum of losses."""
    return OBJECTIVES[objective].divisor if objective in OBJECTIVES else "update"
