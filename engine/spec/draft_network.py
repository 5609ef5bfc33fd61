"""The port of the networks that draft: what the runner needs to know of each."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from engine.layers.attention import StepContext
from engine.layers.module import Module
from engine.models.base import ModelConfig


class DraftNetwork(Module, ABC):
    """Foresees what a target model says, at most from what that computes anyway.

    The runner keeps, beside the target's keys, the *feature* of every token that the target has
    computed: ``feature_size`` numbers, made by ``feature``.
    """

    feature_size: int = 0
    tapped_layers: tuple[int, ...] = ()
    """Layers of the target whose inputs ``feature`` is made of, ``tapped_size`` wide each."""
    tapped_size: int = 0

    def feature(self, source: torch.Tensor) -> torch.Tensor:
        """[num_tokens, feature_size] from what was tapped, side by side: [num_tokens,
        len(tapped_layers) * tapped_size]; without taps, from the target's last hidden states,
        normed."""
        return source


class ChainNetwork(DraftNetwork):
    """Drafts one token after another, with a KV cache of its own.

    It is run on the token of each place beside the feature of the place before (zeros for the
    first place of all), and so says the next token. Behind the known tokens, what it returned for
    the place before stands in for the feature.
    """

    config: ModelConfig
    """Of its own layers."""

    @abstractmethod
    def hidden_states(
        self, token_ids: torch.Tensor, features: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        """token_ids: [num_tokens] int64; features: [num_tokens, feature_size]; returns
        [num_tokens, n], of which the first ``feature_size`` columns are fed back."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [num_rows, n]; returns [num_rows, the target's vocab], -inf for tokens that it
        cannot draft."""


class ParallelNetwork(DraftNetwork):
    """Drafts several tokens at once from the feature of the last computed token."""

    num_heads: int

    @abstractmethod
    def all_logits(self, features: torch.Tensor) -> list[torch.Tensor]:
        """features: [num_rows, feature_size]; returns [num_rows, vocab] of each head: the first
        foresees the token after the one that the target says itself."""
