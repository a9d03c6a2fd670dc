"""The identity section of low-rank adapters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rloop_core.config.base import Impossible, Section

ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]
_HEADS = ("lm_head", "embed_tokens")


class LoraConfig(Section):
    """Low-rank adapters (LoRA) in place of full fine-tuning, in explore and rft alike.

    W' = W + alpha / rank * B A; W is frozen, B starts at zero. Every policy that a stage leaves has its adapters merged
    into it, so that it is a plain checkpoint and the next stage trains adapters of its own from there.
    """

    rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """Rank of the adapters; 0 trains all weights instead."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale: what an adapter adds is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before an adapter, in rft alone: in exploration it would blur the importance ratio."""
    target_modules: Literal["all-linear"] | tuple[ModuleName, ...] = "all-linear"
    """Linear layers that get an adapter, by the end of their names, or all of them but the output head."""

    @property
    def enabled(self) -> bool:
        """Whether adapters are trained."""
        return self.rank > 0

    def identity_of(self, stage: Literal["explore", "rft"]) -> dict[str, Any]:
        """Its share of a stage's fingerprint: nothing where all weights are trained."""
        if not self.enabled:
            return {}
        return {"lora": self.model_dump(mode="json", exclude={"dropout"} if stage == "explore" else set())}

    @model_validator(mode="after")
    def _possible(self) -> LoraConfig:
        if isinstance(self.target_modules, str):
            return self
        if not self.target_modules:
            raise Impossible("target_modules", "names no layer", "set it to all-linear, or to e.g. [q_proj, v_proj]")
        for name in self.target_modules:
            if name.rpartition(".")[2] in _HEADS:
                what = f"{name} cannot have an adapter: its weights may be tied, and the trainer scores with it apart"
                raise Impossible("target_modules", what, "name layers of attention or MLP, or set it to all-linear")
        return self
