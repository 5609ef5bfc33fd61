"""A smaller model of the same vocabulary that drafts for a larger one (arXiv 2211.17192)."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.executors.select import plain_executor
from engine.layers.attention import StepContext
from engine.models.base import Model, ModelConfig
from engine.models.registry import create_model, read_config
from engine.spec.checkpoint import mismatch
from engine.spec.draft_network import ChainNetwork
from engine.weights.dummy import draw_weights
from engine.weights.load import load_weights


class DraftModel(ChainNetwork):
    """Needs nothing of the target but its tokens."""

    def __init__(self, model: Model, config: ModelConfig) -> None:
        self.model = model
        self.config = config
        self._executor = plain_executor(model)

    def hidden_states(
        self, token_ids: torch.Tensor, features: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        return self._executor.hidden_states(token_ids, step)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden)


def load_draft_model(
    folder: Path,
    vocab_size: int,
    *,
    dummy: bool = False,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> DraftModel:
    """vocab_size: the target's. ``dummy`` draws the weights. Raises ``ModelLoadError`` naming what
    does not fit."""
    config = read_config(folder)
    if config.vocab_size != vocab_size:
        raise mismatch(folder, "vocab_size", config.vocab_size, vocab_size)
    if config.max_position_embeddings < max_model_len:
        raise mismatch(
            folder, "max_position_embeddings", config.max_position_embeddings, max_model_len
        )
    model = create_model(config, max_model_len=max_model_len, dtype=dtype, device=device)
    with torch.inference_mode():
        if dummy:
            draw_weights(model, seed=1)
        else:
            load_weights(model, folder, tied=config.tie_word_embeddings)
        model.pack()
    return DraftModel(model, config)
