"""Problem order and dynamic sampling (DAPO, section 3.2): which groups enter the update, and the batch they form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]


class ProblemStream:
    """Endless passes over each source's problems, each pass in its own order: a function of seed and cursor alone.

    So a phase resumes from the cursor, the number of problems taken so far, in any pass, and dynamic sampling may draw
    any number of problems per RL step. After n problems a source of share w gave more than w * n - 1 and less than
    w * n + 1: of the sources with less than their share, the one that first falls a whole problem behind gives the next
    (earliest pseudo-deadline first: Baruah et al., Proportionate progress, Algorithmica 15, 1996).
    """

    def __init__(self, sizes: Sequence[int], seed: int, cursor: int = 0, weights: Sequence[float] = (1.0,)) -> None:
        """Begin at `cursor`; the problems of the sources follow each other, `sizes` of them, drawn by `weights`."""
        self._sizes, self._first = sizes, [sum(sizes[:source]) for source in range(len(sizes))]
        self._shares = [weight / sum(weights) for _, weight in zip(sizes, weights, strict=True)]
        self._seed = seed
        self.cursor = cursor if len(sizes) == 1 else 0
        self._taken = [self.cursor] * len(sizes)
        self._orders = [(-1, np.empty(0, dtype=np.int64)) for _ in sizes]
        while self.cursor < cursor:
            self._next_source()

    def take(self, number: int) -> list[int]:
        """Return the next `number` problem indices, and advance the cursor."""
        return [self._draw(self._next_source()) for _ in range(number)]

    def _next_source(self) -> int:
        """Advance the cursor; return the source that gives the next problem."""
        self.cursor += 1
        behind = (source for source, share in enumerate(self._shares) if share * self.cursor > self._taken[source])
        source = min(behind, key=lambda source: (self._taken[source] + 1) / self._shares[source])
        self._taken[source] += 1
        return source

    def _draw(self, source: int) -> int:
        """Return the problem that a source's last turn gives."""
        which, index = divmod(self._taken[source] - 1, self._sizes[source])
        if which != self._orders[source][0]:
            seeds = [self._seed, which, source] if source else [self._seed, which]
            self._orders[source] = which, np.random.default_rng(seeds).permutation(self._sizes[source])
        return self._first[source] + int(self._orders[source][1][index])


def group_id(step: int, rank: int, round_index: int, group: int) -> str:
    """Return a group's name, unique within one exploration phase."""
    return f"s{step:06d}-r{rank:02d}-b{round_index:02d}-g{group:04d}"


def informative_groups(scores: Sequence[float], group_size: int) -> list[int]:
    """Return the indices of the groups whose rollouts differ in their scores: right and wrong ones, with the verifier.

    R(tau) decides, not the shaped reward: an overlong punishment must not make a solved problem look informative.
    `scores` has R of each rollout, group after group: shape (groups * group_size,).
    """
    groups = [scores[start : start + group_size] for start in range(0, len(scores), group_size)]
    return [index for index, group in enumerate(groups) if min(group) < max(group)]


@dataclass
class GroupBatch:
    """Collects this rank's groups of one RL step over several generation rounds, with the surplus of other ranks."""

    wanted: int
    """Groups that this rank needs."""
    group_size: int
    in_update: set[str] = field(default_factory=set)
    """Ids of the groups that this rank added and that are in the update, of this rank or of another."""
    _parts: list[Tensors] = field(default_factory=list)
    _surplus: list[tuple[str, Tensors]] = field(default_factory=list)
    _fill: Tensors | None = None

    @property
    def missing(self) -> int:
        """Number of groups still needed."""
        return self.wanted - len(self._parts)

    def add(self, output: Tensors, groups: Mapping[str, int]) -> None:
        """Take groups until the batch is full; the rest is surplus.

        Args:
            output: TRL's scored generation batch; tensors of shape (rows, ...), rows group after group.
            groups: Id and index of each informative group.
        """
        for name, index in groups.items():
            part = _select(output, index, self.group_size)
            if self.missing:
                self._parts.append(part)
                self.in_update.add(name)
            else:
                self._surplus.append((name, part))
        if self._fill is None:
            part = _select(output, 0, self.group_size)
            self._fill = part | {name: part[name] * 0 for name in ("advantages", "completion_mask")}

    def share(self, gather: Callable[[Any], list[Any]], rank: int) -> int:
        """Give surplus groups to ranks that miss some, and return how many groups all ranks together still miss.

        The first surplus groups in order of rank go to the first ranks that miss some. All ranks call this together:
        `gather` is a collective operation that returns what every rank passes, in order of rank.
        """
        missing, surplus = zip(*gather((self.missing, len(self._surplus))), strict=True)
        moved = min(sum(missing), sum(surplus))
        if not moved:
            return int(sum(missing))
        given = self._surplus[: max(0, moved - sum(surplus[:rank]))]
        del self._surplus[: len(given)]
        self.in_update |= {name for name, _ in given}
        host = [{key: value.cpu() for key, value in part.items()} for _, part in given]
        pool = [part for parts in gather(host) for part in parts]
        assert self._fill is not None, "add() comes first"
        for part in pool[sum(missing[:rank]) :][: self.missing]:
            self._parts.append({key: value.to(self._fill[key].device) for key, value in part.items()})
        return int(sum(missing) - moved)

    def tensors(self, pad_token_id: int) -> Tensors:
        """Return the batch, of shape (wanted * group_size, ...).

        A group with all tokens masked and advantage 0 takes the place of a missing one: it keeps the shape that TRL's
        mini-batches need, and carries no loss.
        """
        assert self._fill is not None, "add() comes first"
        return _stack(self._parts + [self._fill] * self.missing, pad_token_id)


def _select(output: Tensors, group: int, group_size: int) -> Tensors:
    rows = slice(group * group_size, (group + 1) * group_size)
    return {name: value[rows].clone() for name, value in output.items() if value.ndim > 0}


def _stack(parts: list[Tensors], pad_token_id: int) -> Tensors:
    """Concatenate along rows; prompts are padded on the left, everything after them on the right."""
    import torch
    from torch.nn.functional import pad

    stacked: dict[str, Any] = {}
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        if tensors[0].ndim == 2:
            width = max(tensor.shape[1] for tensor in tensors)
            value = pad_token_id if name.endswith("_ids") else 0
            extra = [width - tensor.shape[1] for tensor in tensors]
            sides = [(more, 0) if name.startswith("prompt_") else (0, more) for more in extra]
            tensors = [pad(tensor, side, value=value) for tensor, side in zip(tensors, sides, strict=True)]
        stacked[name] = torch.cat(tensors)
    return stacked
