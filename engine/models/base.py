"""What every model offers the runner, and what it is built from: its checked config."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from engine.layers.attention import StepContext
from engine.layers.module import Module
from engine.layers.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The parts of a checkpoint's config.json that the code needs."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: torch.dtype
    """The checkpoint's own."""
    eos_token_ids: frozenset[int]


class Model(Module, ABC):
    """A decoder."""

    @abstractmethod
    def __init__(
        self,
        config: ModelConfig,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Lay the weights out, without values yet."""

    @abstractmethod
    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        """token_ids: [num_tokens] int64; returns [num_tokens, hidden], normed."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [num_rows, hidden]; returns [num_rows, vocab] of the model's dtype."""
