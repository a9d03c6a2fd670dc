"""A key-value cache that grows in place.

transformers' own cache copies everything it holds for every token it adds, which on a CPU was two thirds of the time
that sampling took (one core, 256 sequences, 2026-11-21). This one keeps room for the tokens to come.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import DynamicCache

_ROOM = 64
"""Tokens of room added whenever a layer is full."""


def roomy_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for `model`; layers other than plain attention, such as sliding windows, stay as they are."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache = DynamicCache(config=model.config)
    layer_class = _layer_class()
    cache.layers = [layer_class() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


@lru_cache(maxsize=1)
def _layer_class() -> Any:
    import torch
    from transformers.cache_utils import DynamicLayer

    class RoomyLayer(DynamicLayer):  # type: ignore[misc]
        """`keys` and `values` are views of the filled part of larger buffers."""

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.keys: Any
            self.values: Any
            self._buffers: dict[str, torch.Tensor] = {}

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            held = self.get_seq_length()
            self.keys = self._longer("keys", self.keys, key_states, held)
            self.values = self._longer("values", self.values, value_states, held)
            return self.keys, self.values

        def _longer(self, name: str, view: torch.Tensor, new: torch.Tensor, held: int) -> torch.Tensor:
            """The view with the new states behind it, in its own buffer where there is room."""
            batch, heads, count, size = new.shape
            buffer = self._buffers.get(name)
            # Selecting rows makes a new tensor, which the buffer is then not the buffer of.
            own = buffer is not None and buffer.data_ptr() == view.data_ptr() and buffer.shape[0] == batch
            if not (held and own and buffer is not None and buffer.shape[2] >= held + count):
                buffer = new.new_empty((batch, heads, held + count + _ROOM, size))
                if held:
                    buffer[:, :, :held] = view
                self._buffers[name] = buffer
            buffer[:, :, held : held + count] = new
            return buffer[:, :, : held + count]

    return RoomyLayer
