"""What a draft network reads of the target: a feature of every computed token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from engine.layers.attention import StepContext
from engine.models.base import Model
from engine.spec.draft_network import DraftNetwork

# Room for the taps of steps of up to so many tokens is made once.
_MAX_KEPT_ROOM = 64


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
        # Two rows more: one of zeros for the place before the first, and one for what padding
        # writes.
        self._network = network
        self._keeps_taps = keeps_taps(network, device)
        size = kept_size(network, device)
        self._rows = torch.zeros(num_slots + 2, size, dtype=dtype, device=device)
        self._nothing = num_slots
        self.blocks = self._rows[:num_slots].view(-1, block_size, size)
        """[num_blocks, block_size, size]"""

    def keep(self, slots: torch.Tensor, source: torch.Tensor) -> None:
        """Of tokens just computed. slots: [num_tokens] int64, -1 for padding; source: as for
        ``DraftNetwork.feature``."""
        # Counted from the end, -1 is the row for padding.
        self._rows[slots] = source if self._keeps_taps else self._network.feature(source)

    def clear(self, slots: torch.Tensor) -> None:
        """Nothing was kept of these tokens. slots: [num_tokens] int64."""
        self._rows[slots] = 0

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """[num_slots, feature_size]; zeros where a slot is -1."""
        kept = self._rows[slots.masked_fill(slots < 0, self._nothing)]
        if not self._keeps_taps:
            return kept
        return self._network.feature(kept).masked_fill((slots < 0)[:, None], 0)


@dataclass(frozen=True, slots=True)
class _Room:
    """For what is tapped in a step."""

    tapped: torch.Tensor
    """[num_tokens, len(tapped_layers) * tapped_size]"""
    taps: Mapping[int, torch.Tensor]
    """The parts of it, by layer."""


class WatchedModel(Model):
    """The target, whose features are kept whenever it runs."""

    def __init__(self, model: Model, network: DraftNetwork, features: FeatureCache) -> None:
        self.model = model
        self._network = network
        self._features = features
        self._room: dict[int, _Room] = {}
        """By the number of tokens, if that is small."""

    @property
    def max_one_kernel_batch(self) -> int:
        return 0 if self._network.tapped_layers else self.model.max_one_kernel_batch

    @property
    def max_one_kernel_drafted(self) -> int:
        return self.model.max_one_kernel_drafted

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        layers = self._network.tapped_layers
        if not layers:
            hidden = self.model.hidden_states(token_ids, replace(step, wanted=None))
            self._features.keep(step.slots, hidden)
            return step.kept(hidden)
        room = self._room.get(len(token_ids)) or self._make_room(len(token_ids))
        hidden = self.model.hidden_states(token_ids, replace(step, taps=room.taps))
        self._features.keep(step.slots, room.tapped)
        return hidden

    def _make_room(self, num_tokens: int) -> _Room:
        layers, blocks = self._network.tapped_layers, self._features.blocks
        width = len(layers) * self._network.tapped_size
        tapped = torch.empty(num_tokens, width, dtype=blocks.dtype, device=blocks.device)
        room = _Room(tapped, dict(zip(layers, tapped.chunk(len(layers), -1), strict=True)))
        if num_tokens <= _MAX_KEPT_ROOM:
            self._room[num_tokens] = room
        return room

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden)
