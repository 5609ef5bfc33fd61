"""From the hidden states that a prompt ends in to a vector or a score: the head of models that
pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional as F

from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.models.base import ModelConfig
from engine.pooling import PoolingModel


class PoolingHead(Module):
    """In the place of a decoder's language model head; encoders end with it, too."""

    def __init__(
        self,
        pooling: PoolingModel,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._pooling = pooling
        self.score: Linear | None = None
        if pooling.task == "score" and not pooling.is_encoder:
            self.score = Linear(
                hidden_size, {"": pooling.size}, bias=False, dtype=dtype, device=device
            )

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [num_prompts, hidden_size]. Returns [num_prompts, size] float32."""
        return self.finish(hidden if self.score is None else self.score(hidden))

    def finish(self, result: torch.Tensor) -> torch.Tensor:
        """What becomes of vectors or of a classifier's numbers: [num_prompts, size]."""
        result = result.float()
        if self._pooling.task == "score":
            return result.sigmoid() if self._pooling.activation == "sigmoid" else result
        return F.normalize(result, dim=-1) if self._pooling.normalize else result


def without_head(config: ModelConfig) -> ModelConfig:
    """The config of a decoder whose head is a ``PoolingHead``."""
    return replace(config, tie_word_embeddings=True, logits_divisor=1.0, logits_softcap=None)


def names_of(place_of: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """``Model.place_of`` of a decoder whose head is a ``PoolingHead``. Checkpoints of embedding
    models lack the prefix "model." if they were saved without a head."""

    def place(name: str) -> str | None:
        if name.startswith("lm_head."):
            return None
        if name.startswith("score."):
            return f"lm_head.{name}"
        return place_of(name if name.startswith("model.") else f"model.{name}")

    return place
