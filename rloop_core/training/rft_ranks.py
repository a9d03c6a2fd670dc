"""Fine-tuning shared out among processes: the same batches as one process has, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import Sampler
from trl import SFTTrainer


class SharingTrainer(SFTTrainer):  # type: ignore[misc]
    """SFTTrainer whose last rows carry no loss, and fill the last batch of an epoch so that every rank has a share.

    Left alone, accelerate fills that batch with rows of the first, which would be trained on twice.

    Args:
        silent_rows: How many of the last rows; 0 where one process trains.
        **trl: SFTTrainer's own arguments.
    """

    def __init__(self, *, silent_rows: int, **trl: Any) -> None:
        self._silent_rows = silent_rows
        super().__init__(**trl)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler[int]:
        if not self._silent_rows:
            return super()._get_train_sampler(*args, **kwargs)  # type: ignore[no-any-return]
        return _SilentLast(len(self.train_dataset) - self._silent_rows, self._silent_rows)


class _SilentLast(Sampler[int]):
    """The order in which accelerate gives the rows to one process, and the silent rows after it."""

    def __init__(self, rows: int, silent: int) -> None:
        self._rows = rows
        self._silent = silent
        self._shuffled = SeedableRandomSampler(range(rows))

    def __iter__(self) -> Iterator[int]:
        yield from self._shuffled
        yield from range(self._rows, self._rows + self._silent)

    def __len__(self) -> int:
        return self._rows + self._silent

    def set_epoch(self, epoch: int) -> None:
        """Every epoch has an order of its own."""
        self._shuffled.set_epoch(epoch)
