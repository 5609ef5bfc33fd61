"""Gemma 2 (arXiv 2408.00118): norms before and after each block, windows on every other layer, soft
caps on attention scores and logits."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from engine.layers.attention import StepContext
from engine.layers.norm import OffsetRMSNorm
from engine.models import config, llama
from engine.models.base import ModelConfig
from engine.parallel.group import Output, whole


class ConfigFile(config.ConfigFile, kw_only=True):
    num_key_value_heads: config.Count | None = 4
    head_dim: config.Count | None = 256
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_activation: str | None = "gelu_pytorch_tanh"
    max_position_embeddings: config.Count = 8192
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: config.Positive = 256
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None
    attn_logit_softcapping: config.Positive | None = 50.0
    final_logit_softcapping: config.Positive | None = 30.0

    sliding_window_pattern: config.Count = 2
    """Without ``layer_types``: one in this many layers has no window."""

    def adapt(self, config: ModelConfig) -> ModelConfig:
        if self.hidden_activation not in (None, "gelu_pytorch_tanh"):
            raise ValueError(
                f"hidden_activation: not supported: {self.hidden_activation!r}, only "
                "'gelu_pytorch_tanh'"
            )
        types = self.layer_types or [
            "sliding_attention" if (i + 1) % self.sliding_window_pattern else "full_attention"
            for i in range(self.num_hidden_layers)
        ]
        return replace(
            config,
            activation="gelu_pytorch_tanh",
            attention_scale=self.query_pre_attn_scalar**-0.5,
            attention_softcap=self.attn_logit_softcapping,
            logits_softcap=self.final_logit_softcapping,
            windows=self.windows(self.sliding_window, types),
            embedding_multiplier=math.sqrt(self.hidden_size),
        )


class Gemma2DecoderLayer(llama.LlamaDecoderLayer):
    norm_class = OffsetRMSNorm

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(config, layer, dtype=dtype, device=device)
        self.pre_feedforward_layernorm = self._norm(config)
        self.post_feedforward_layernorm = self._norm(config)

    def __call__(
        self,
        x: Output,
        residual: torch.Tensor | None,
        cos_sin: torch.Tensor,
        step: StepContext,
    ) -> tuple[Output, torch.Tensor]:
        normed = self.input_layernorm(x, residual)
        residual = step.kept(whole(x) if residual is None else residual)
        attended = self.self_attn(normed, cos_sin, step)
        fed = self.feed_forward(
            self.pre_feedforward_layernorm(attended, residual, self.post_attention_layernorm)
        )
        return self.post_feedforward_layernorm(fed), residual


class ForCausalLM(llama.ForCausalLM):
    layer_class = Gemma2DecoderLayer
