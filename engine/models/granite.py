"""Granite 3 (IBM, 2024): Llama with four multipliers."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.layers.attention import StepContext
from engine.models import config, llama
from engine.models.base import ModelConfig
from engine.parallel.group import Output, whole


class ConfigFile(config.ConfigFile, kw_only=True):
    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0

    def adapt(self, config: ModelConfig) -> ModelConfig:
        return replace(
            config,
            embedding_multiplier=self.embedding_multiplier,
            attention_scale=self.attention_multiplier,
            residual_multiplier=self.residual_multiplier,
            logits_divisor=self.logits_scaling,
        )


class GraniteDecoderLayer(llama.LlamaDecoderLayer):
    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(config, layer, dtype=dtype, device=device)
        self.residual_multiplier = config.residual_multiplier

    def __call__(
        self,
        x: Output,
        residual: torch.Tensor | None,
        cos_sin: torch.Tensor,
        step: StepContext,
    ) -> tuple[Output, torch.Tensor]:
        normed = self.input_layernorm(x, residual)
        residual = step.kept(whole(x) if residual is None else residual)
        attended = whole(self._mixer(normed, cos_sin, step)).mul_(self.residual_multiplier)
        normed = self.post_attention_layernorm(attended, residual)
        return whole(self.feed_forward(normed)).mul_(self.residual_multiplier), residual


class ForCausalLM(llama.ForCausalLM):
    layer_class = GraniteDecoderLayer
