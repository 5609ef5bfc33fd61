"""What a draft network reads of the target: a feature of every computed token."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.layers.attention import StepContext
from engine.models.base import Model
from engine.spec.draft_network import DraftNetwork


class FeatureCache:
    """The feature of every computed token, in the slots that its keys have in the KV cache.

    So whatever happens to a block (shared as a prefix, copied, swapped out) happens to both, and a
    draft can start at any place of any request.
    """

    def __init__(
        self,
        num_slots: int,
        block_size: int,
        size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Two rows more: one for what padding writes, and one of zeros for the place before the
        # first.
        self._rows = torch.zeros(num_slots + 2, size, dtype=dtype, device=device)
        self._padding, self._nothing = num_slots, num_slots + 1
        self.blocks = self._rows[:num_slots].view(-1, block_size, size)
        """[num_blocks, block_size, size]"""

    def copy_block(self, source: int, target: int, num_slots: int) -> None:
        self.blocks[target, :num_slots] = self.blocks[source, :num_slots]

    def write(self, slots: torch.Tensor, features: torch.Tensor) -> None:
        """slots: [num_tokens] int64, -1 for padding."""
        self._rows.index_copy_(0, slots.masked_fill(slots < 0, self._padding), features)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Zeros where a slot is -1."""
        return self._rows[slots.masked_fill(slots < 0, self._nothing)]


class WatchedModel(Model):
    """The target, whose features are kept whenever it runs."""

    def __init__(self, model: Model, network: DraftNetwork, features: FeatureCache) -> None:
        self.model = model
        self._network = network
        self._features = features

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        layers = self._network.tapped_layers
        if not layers:
            hidden = self.model.hidden_states(token_ids, step)
            self._features.write(step.slots, self._network.feature(hidden, {}))
            return hidden
        width = self._network.tapped_size
        taps = {
            layer: torch.empty(
                len(token_ids), width, dtype=self._features.blocks.dtype, device=token_ids.device
            )
            for layer in layers
        }
        hidden = self.model.hidden_states(token_ids, replace(step, taps=taps))
        self._features.write(step.slots, self._network.feature(hidden, taps))
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden)
