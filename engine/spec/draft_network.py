"""The interface of draft networks to the runner."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from engine.layers.attention import StepContext
from engine.layers.module import Module
from engine.models.base import ModelConfig


class DraftNetwork(Module, ABC):
    """Predicts the next tokens of a target model, from tokens and from the target's hidden states.

    For every token that the target has computed, the runner keeps a *feature*, beside the keys:
    ``feature_size`` numbers that ``feature`` computes from hidden states.
    """

    feature_size: int = 0
    """0: the network needs tokens only."""
    aux_layers: tuple[int, ...] = ()
    """Indices of the target's layers whose inputs ``feature`` reads."""
    aux_size: int = 0
    """Width of the input of each of these layers."""

    def feature(self, source: torch.Tensor) -> torch.Tensor:
        """The features of tokens: [num_tokens, feature_size].

        source: the inputs of these layers, concatenated: [num_tokens, len(aux_layers) *
        aux_size]; or, without such layers, the target's final, normed hidden states.
        """
        return source


class ChainNetwork(DraftNetwork):
    """Drafts one token after another, with a KV cache of its own.

    Its input at a position is the token there and the feature of the position before (zeros at
    position 0); its output predicts the next token. Behind the known tokens there are no features:
    there, its own output at the position before takes their place.
    """

    config: ModelConfig
    """The config of the network's own layers."""

    @abstractmethod
    def hidden_states(
        self, token_ids: torch.Tensor, features: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        """token_ids: [num_tokens] int64; features: [num_tokens, feature_size]. Returns [num_tokens,
        n]; the first ``feature_size`` columns are the features that are fed back."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [num_rows, n]; returns [num_rows, the target's vocab], -inf for tokens that it
        cannot draft."""


class ParallelNetwork(DraftNetwork):
    """Drafts several tokens at once from the feature of the last computed token."""

    num_heads: int
    """The most tokens that it drafts at once."""

    @abstractmethod
    def all_logits(self, features: torch.Tensor) -> list[torch.Tensor]:
        """features: [num_rows, feature_size]. Returns [num_rows, vocab] for each head. The target
        itself predicts the next token; the first head predicts the one after it, and so on."""
