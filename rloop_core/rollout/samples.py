"""How likely each drawn token was, noted while `generate` draws: one number a token, never the logits of a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class DrawnLogProbs:
    """A logits processor that warps as `generate` itself would, and notes what each token then drawn was worth.

    `generate` applies its own warpers after those that it is handed, where nothing could see their result; so the
    temperature and the nucleus are applied here, by the same classes, and it is told of neither. A token is known only
    when the next one is asked for, so the scores of one step are held.

    Args:
        temperature: Softmax temperature.
        top_p: Nucleus mass.
    """

    def __init__(self, temperature: float, top_p: float) -> None:
        from transformers import TemperatureLogitsWarper, TopPLogitsWarper

        self._warpers: list[Any] = [TemperatureLogitsWarper(temperature)] if temperature != 1.0 else []
        self._warpers += [TopPLogitsWarper(top_p)] if top_p < 1.0 else []
        self._held: torch.Tensor | None = None
        self._noted: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The warped scores of the next token; called by `generate`."""
        self._note(input_ids)
        for warper in self._warpers:
            scores = warper(input_ids, scores)
        self._held = scores
        return scores

    def take(self, ids: torch.Tensor) -> list[list[float]]:
        """Log-probabilities of the tokens drawn since the last call, for each row of `generate`'s result."""
        import torch

        self._note(ids)
        rows: list[list[float]] = torch.stack(self._noted, dim=1).tolist()
        self._noted, self._held = [], None
        return rows

    def _note(self, ids: torch.Tensor) -> None:
        if self._held is not None:
            chosen = self._held.gather(1, ids[:, -1:])[:, 0]
            self._noted.append((chosen - self._held.logsumexp(dim=1)).float())
