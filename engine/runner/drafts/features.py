"""What a draft network reads of the target: a feature of every computed token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from engine.executors.base import Executor, Executors
from engine.layers.attention import StepContext
from engine.spec.draft_network import DraftNetwork

# Steps of up to this many tokens share memory for auxiliary hidden states. For more, kernels run
# longer than it takes to allocate it.
_MAX_BUFFERED_TOKENS = 512


def keeps_aux(network: DraftNetwork, device: torch.device) -> bool:
    """Whether the cache keeps auxiliary hidden states, and features are computed from them only
    when drafts are made.

    That takes more memory. But on a CPU a small model would spend a tenth of its time on features
    that are never read: computing one reads a whole matrix.
    """
    return bool(network.aux_layers) and device.type == "cpu"


def kept_size(network: DraftNetwork, device: torch.device) -> int:
    """Numbers that the cache keeps for a token."""
    if keeps_aux(network, device):
        return len(network.aux_layers) * network.aux_size
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
        self._keeps_aux = keeps_aux(network, device)
        size = kept_size(network, device)
        self._rows = torch.zeros(num_slots + 2, size, dtype=dtype, device=device)
        self._nothing = num_slots
        self.blocks = self._rows[:num_slots].view(-1, block_size, size)
        """[num_blocks, block_size, size]"""

    def keep(self, slots: torch.Tensor, source: torch.Tensor, *, is_padded: bool = True) -> None:
        """Store the features of tokens that were just computed. slots: [num_tokens] int64, -1 for
        padding, which there may be if ``is_padded``; source: as for ``DraftNetwork.feature``."""
        kept = source if self._keeps_aux else self._network.feature(source)
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
        if not self._keeps_aux:
            return kept
        return self._network.feature(kept).masked_fill((slots < 0)[:, None], 0)


@dataclass(frozen=True, slots=True)
class _AuxBuffer:
    """Memory for the auxiliary hidden states of a step."""

    joined: torch.Tensor
    """[num_tokens, len(aux_layers) * aux_size]"""
    by_layer: Mapping[int, torch.Tensor]
    """Views of it by layer: [num_tokens, aux_size] each."""


class AuxBuffers:
    """The memory that all executors of a model copy auxiliary hidden states to."""

    def __init__(self, network: DraftNetwork, features: FeatureCache) -> None:
        self._layers = network.aux_layers
        width = len(self._layers) * network.aux_size
        self._memory = features.blocks.new_empty(_MAX_BUFFERED_TOKENS if width else 0, width)
        """For steps that are not too long: [num_tokens, width]"""
        self._buffers: dict[int, _AuxBuffer] = {}
        """By the number of tokens: parts of that memory."""

    def of(self, num_tokens: int) -> _AuxBuffer:
        buffer = self._buffers.get(num_tokens)
        if buffer is not None:
            return buffer
        memory, is_small = self._memory, num_tokens <= len(self._memory)
        joined = memory[:num_tokens] if is_small else memory.new_empty(num_tokens, memory.shape[1])
        parts = joined.chunk(len(self._layers), -1)
        buffer = _AuxBuffer(joined, dict(zip(self._layers, parts, strict=True)))
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
        buffers: AuxBuffers,
        *,
        is_padded: bool,
    ) -> None:
        """is_padded: steps may have padding, as recorded ones have."""
        super().__init__(executor.model)
        self._executor = executor
        self._has_aux = bool(network.aux_layers)
        self._features = features
        self._buffers = buffers
        self._is_padded = is_padded

    def serves(self, step: StepContext) -> bool:
        if not self._has_aux:
            return self._executor.serves(replace(step, wanted=None))
        return self._executor.serves(
            replace(step, aux_hidden_states=self._buffers.of(len(step.positions)).by_layer)
        )

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        slots = step.groups[0].slots
        if not self._has_aux:
            hidden = self._executor.hidden_states(token_ids, replace(step, wanted=None))
            self._features.keep(slots, hidden, is_padded=self._is_padded)
            return step.kept(hidden)
        buffer = self._buffers.of(len(token_ids))
        hidden = self._executor.hidden_states(
            token_ids, replace(step, aux_hidden_states=buffer.by_layer)
        )
        self._features.keep(slots, buffer.joined, is_padded=self._is_padded)
        return hidden


def watched(executors: Executors, network: DraftNetwork, features: FeatureCache) -> Executors:
    """The executors of the target, which keep features whenever they run it."""
    buffers = AuxBuffers(network, features)

    def watch(executor: Executor, *, is_padded: bool) -> Executor:
        return WatchedExecutor(executor, network, features, buffers, is_padded=is_padded)

    return Executors(
        eager=watch(executors.eager, is_padded=False),
        recorded=watch(executors.recorded, is_padded=True),
        fused=None if executors.fused is None else watch(executors.fused, is_padded=True),
        resting=executors,
    )
