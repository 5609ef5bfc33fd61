"""What a draft network reads of the target: a feature of every computed token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from engine.executors.base import Executor, Executors
from engine.layers.attention import StepContext
from engine.spec.draft_network import DraftNetwork

# Steps of up to this many tokens share memory for their taps. For more, kernels run longer than it
# takes to allocate it.
_MAX_BUFFERED_TOKENS = 512


def keeps_taps(network: DraftNetwork, device: torch.device) -> bool:
    """Whether the cache keeps the tapped hidden states, and features are computed from them only
    when drafts are made.

    That takes more memory. But on a CPU a small model would spend a tenth of its time on features
    that are never read: computing one reads a whole matrix.
    """
    return bool(network.tapped_layers) and device.type == "cpu"


def kept_size(network: DraftNetwork, device: torch.device) -> int:
    """Numbers that the cache keeps for a token."""
    if keeps_taps(network, device):
        return len(network.tapped_layers) * network.tapped_size
    return network.feature_size


class FeatureCache:
    """The feature of every computed token, in the same slot as its keys in the KV cache.

    So whatever happens to a block (shared as a prefix, copied, swapped out) happens to keys and
    features alike, and drafts can start at any position of any request.
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
        # Two rows more: zeros, for the position before the first token; and one that padding writes
        # to.
        self._network = network
        self._keeps_taps = keeps_taps(network, device)
        size = kept_size(network, device)
        self._rows = torch.zeros(num_slots + 2, size, dtype=dtype, device=device)
        self._nothing = num_slots
        self.blocks = self._rows[:num_slots].view(-1, block_size, size)
        """[num_blocks, block_size, size]"""

    def keep(self, slots: torch.Tensor, source: torch.Tensor, *, is_padded: bool = True) -> None:
        """Store the features of tokens that were just computed. slots: [num_tokens] int64, -1 for
        padding, which there may be if ``is_padded``; source: as for ``DraftNetwork.feature``."""
        kept = source if self._keeps_taps else self._network.feature(source)
        if is_padded:
            self._rows[slots] = kept  # Index -1, the last row, is the one for padding.
        else:
            self._rows.index_copy_(0, slots, kept)  # Takes the host a fraction of that.

    def clear(self, slots: torch.Tensor) -> None:
        """Zero the features of tokens for which none were kept. slots: [num_tokens] int64."""
        self._rows[slots] = 0

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """The features in these slots: [num_slots, feature_size]; zeros where a slot is -1."""
        kept = self._rows[slots.masked_fill(slots < 0, self._nothing)]
        if not self._keeps_taps:
            return kept
        return self._network.feature(kept).masked_fill((slots < 0)[:, None], 0)


@dataclass(frozen=True, slots=True)
class _TapBuffer:
    """Memory for the hidden states that are tapped in a step."""

    tapped: torch.Tensor
    """[num_tokens, len(tapped_layers) * tapped_size]"""
    taps: Mapping[int, torch.Tensor]
    """Views of it by layer: [num_tokens, tapped_size] each."""


class TapBuffers:
    """The memory that all executors of a model tap hidden states to."""

    def __init__(self, network: DraftNetwork, features: FeatureCache) -> None:
        self._layers = network.tapped_layers
        width = len(self._layers) * network.tapped_size
        self._memory = features.blocks.new_empty(_MAX_BUFFERED_TOKENS if width else 0, width)
        """For steps that are not too long: [num_tokens, width]"""
        self._buffers: dict[int, _TapBuffer] = {}
        """By the number of tokens: parts of that memory."""

    def of(self, num_tokens: int) -> _TapBuffer:
        buffer = self._buffers.get(num_tokens)
        if buffer is not None:
            return buffer
        memory, is_small = self._memory, num_tokens <= len(self._memory)
        tapped = memory[:num_tokens] if is_small else memory.new_empty(num_tokens, memory.shape[1])
        parts = tapped.chunk(len(self._layers), -1)
        buffer = _TapBuffer(tapped, dict(zip(self._layers, parts, strict=True)))
        if is_small:
            self._buffers[num_tokens] = buffer
        return buffer


class WatchedExecutor(Executor):
    """Runs steps by another executor, and keeps the features of their tokens."""

    def __init__(
        self,
        executor: Executor,
        network: DraftNetwork,
        features: FeatureCache,
        buffers: TapBuffers,
        *,
        is_padded: bool,
    ) -> None:
        """is_padded: steps may have padding, as recorded ones have."""
        super().__init__(executor.model)
        self._executor = executor
        self._taps = bool(network.tapped_layers)
        self._features = features
        self._buffers = buffers
        self._is_padded = is_padded

    def serves(self, step: StepContext) -> bool:
        if not self._taps:
            return self._executor.serves(replace(step, wanted=None))
        return self._executor.serves(replace(step, taps=self._buffers.of(len(step.positions)).taps))

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        slots = step.groups[0].slots
        if not self._taps:
            hidden = self._executor.hidden_states(token_ids, replace(step, wanted=None))
            self._features.keep(slots, hidden, is_padded=self._is_padded)
            return step.kept(hidden)
        buffer = self._buffers.of(len(token_ids))
        hidden = self._executor.hidden_states(token_ids, replace(step, taps=buffer.taps))
        self._features.keep(slots, buffer.tapped, is_padded=self._is_padded)
        return hidden


def watched(executors: Executors, network: DraftNetwork, features: FeatureCache) -> Executors:
    """The executors of the target, which keep features whenever they run it."""
    buffers = TapBuffers(network, features)

    def watch(executor: Executor, *, is_padded: bool) -> Executor:
        return WatchedExecutor(executor, network, features, buffers, is_padded=is_padded)

    return Executors(
        eager=watch(executors.eager, is_padded=False),
        recorded=watch(executors.recorded, is_padded=True),
        fused=None if executors.fused is None else watch(executors.fused, is_padded=True),
        resting=executors,
    )
