"""Dynamic sampling (DAPO, section 3.2): which groups enter the update, and the batch they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]


def group_id(step: int, rank: int, round_index: int, group: int) -> str:
    """Name of a group, unique within one exploration phase."""
    return f"s{step:06d}-r{rank:02d}-b{round_index:02d}-g{group:04d}"


def informative_groups(correct: Sequence[bool], group_size: int) -> list[int]:
    """Indices of the groups with both right and wrong rollouts.

    Accuracy decides, never the shaped reward: an overlong punishment must not make a mastered problem look informative.

    Args:
        correct: One outcome a rollout, group after group; shape (groups * group_size,).
        group_size: G.
    """
    groups = [correct[start : start + group_size] for start in range(0, len(correct), group_size)]
    return [index for index, group in enumerate(groups) if any(group) and not all(group)]


@dataclass
class GroupBatch:
    """Collects the groups of one RL step over several generation rounds until the batch is full.

    Args:
        wanted: Groups this rank needs.
        group_size: G.
    """

    wanted: int
    group_size: int
    _parts: list[Tensors] = field(default_factory=list)
    _fill: Tensors | None = None
    taken: int = 0

    @property
    def missing(self) -> int:
        """Groups still needed."""
        return self.wanted - self.taken

    def add(self, output: Tensors, groups: Sequence[int]) -> list[int]:
        """Take as many of `groups` as are still needed; returns those taken.

        Args:
            output: TRL's scored generation batch; tensors of shape (rows, ...), rows group after group.
            groups: Indices of the groups worth taking.
        """
        taken = list(groups[: self.missing])
        if taken:
            self._parts.append(_select(output, taken, self.group_size))
            self.taken += len(taken)
        if self._fill is None:
            self._fill = _silenced(_select(output, [0], self.group_size))
        return taken

    def tensors(self, pad_token_id: int) -> Tensors:
        """The batch, of shape (wanted * group_size, ...); places that no group filled carry no loss.

        A silent group keeps the shape that TRL's mini-batches need, with every token masked and advantage 0.
        """
        assert self._fill is not None, "add() comes first"
        return _stack(self._parts + [self._fill] * self.missing, pad_token_id)


def _select(output: Tensors, groups: Sequence[int], group_size: int) -> Tensors:
    import torch

    rows = torch.cat([torch.arange(group * group_size, (group + 1) * group_size) for group in groups])
    return {name: value[rows.to(value.device)] for name, value in output.items() if value.ndim > 0}


def _silenced(part: Tensors) -> Tensors:
    silent = dict(part)
    for name in ("advantages", "completion_mask"):
        silent[name] = part[name] * 0
    return silent


def _stack(parts: list[Tensors], pad_token_id: int) -> Tensors:
    """Concatenate along rows; prompts are padded on the left, everything after them on the right."""
    import torch

    stacked: dict[str, Any] = {}
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        if tensors[0].ndim == 2:
            width = max(tensor.shape[1] for tensor in tensors)
            value = pad_token_id if name.endswith("_ids") else 0
            left = name.startswith("prompt_")
            tensors = [_pad(tensor, width, value, left) for tensor in tensors]
        stacked[name] = torch.cat(tensors)
    return stacked


def _pad(tensor: torch.Tensor, width: int, value: int, left: bool) -> torch.Tensor:
    import torch

    extra = width - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (extra, 0) if left else (0, extra), value=value)
