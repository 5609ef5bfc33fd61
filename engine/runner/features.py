"""What a draft network reads of the target: a feature of every computed token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from engine.layers.attention import StepContext
from engine.models.base import Model
from engine.spec.draft_network import DraftNetwork


def keeps_taps(network: DraftNetwork, device: torch.device) -> bool:
    """Whether what features are made of is kept in their place.

    It takes more memory. But a small model on a CPU would lose a tenth of its time on features
    that nobody asks for, as making one means reading a matrix.
    """
    return bool(network.tapped_layers) and device.type == "cpu"


def kept_size(network: DraftNetwork, device: torch.device) -> int:
    """Numbers to keep of a token."""
    if keeps_taps(network, device):
        return len(network.tapped_layers) * network.tapped_size
    return network.feature_size


class FeatureCache:
    """The feature of every computed token, in the slots that its keys have in the KV cache.

    So whatever happens to a block (shared as a prefix, copied, swapped out) happens to both, and a
    draft can start at any place of any request.
    """

    def __init__(
        self,
        num_slots: int,
        block_size: int,
        network: DraftNetwork,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Two rows more: one for what padding writes, and one of zeros for the place before the
        # first.
        self._network = network
        self._keeps_taps = keeps_taps(network, device)
        size = kept_size(network, device)
        self._rows = torch.zeros(num_slots + 2, size, dtype=dtype, device=device)
        self._padding, self._nothing = num_slots, num_slots + 1
        self.blocks = self._rows[:num_slots].view(-1, block_size, size)
        """[num_blocks, block_size, size]"""

    def copy_block(self, source: int, target: int, num_slots: int) -> None:
        self.blocks[target, :num_slots] = self.blocks[source, :num_slots]

    def keep(
        self, slots: torch.Tensor, hidden: torch.Tensor, taps: Mapping[int, torch.Tensor]
    ) -> None:
        """Of tokens just computed. slots: [num_tokens] int64, -1 for padding; the rest as for
        ``DraftNetwork.feature``."""
        if self._keeps_taps:
            kept = torch.cat([taps[layer] for layer in self._network.tapped_layers], -1)
        else:
            kept = self._network.feature(hidden, taps)
        self._rows.index_copy_(0, slots.masked_fill(slots < 0, self._padding), kept)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """[num_slots, feature_size]; zeros where a slot is -1."""
        kept = self._rows[slots.masked_fill(slots < 0, self._nothing)]
        if not self._keeps_taps:
            return kept
        layers = self._network.tapped_layers
        taps = dict(zip(layers, kept.chunk(len(layers), -1), strict=True))
        features = self._network.feature(kept, taps)
        return features.masked_fill((slots < 0)[:, None], 0)


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
            self._features.keep(step.slots, hidden, {})
            return hidden
        width = self._network.tapped_size
        taps = {
            layer: torch.empty(
                len(token_ids), width, dtype=self._features.blocks.dtype, device=token_ids.device
            )
            for layer in layers
        }
        hidden = self.model.hidden_states(token_ids, replace(step, taps=taps))
        self._features.keep(step.slots, hidden, taps)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden)
