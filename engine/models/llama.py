"""Llama (arXiv 2302.13971, 2407.21783). Module names follow the checkpoint's tensor names."""

from __future__ import annotations

import torch

from engine.layers.attention import SelfAttention, StepContext
from engine.layers.embedding import Embedding
from engine.layers.fused_decoder import FusedDecoder
from engine.layers.linear import Linear, TiedLinear
from engine.layers.mlp import GatedMLP
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from engine.layers.rope import cos_sin_table
from engine.models.base import Model, ModelConfig


class LlamaDecoderLayer(Module):
    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.self_attn = SelfAttention(
            layer,
            hidden,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            bias=config.attention_bias,
            dtype=dtype,
            device=device,
        )
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.mlp = GatedMLP(
            hidden, config.intermediate_size, bias=config.mlp_bias, dtype=dtype, device=device
        )

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cos_sin: torch.Tensor,
        step: StepContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's input is x + residual, its output the sum of the two results.

        So each addition is fused into the norm after it.
        """
        normed = self.input_layernorm(x, residual)
        residual = x if residual is None else residual
        attended = self.self_attn(normed, cos_sin, step)
        return self.mlp(self.post_attention_layernorm(attended, residual)), residual


class LlamaModel(Module):
    def __init__(
        self, config: ModelConfig, max_model_len: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, dtype=dtype, device=device
        )
        self.layers = [
            LlamaDecoderLayer(config, i, dtype=dtype, device=device)
            for i in range(config.num_layers)
        ]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.cos_sin = cos_sin_table(config.rope, config.head_dim, max_model_len, device)
        self._fused: FusedDecoder | None = None

    def pack(self) -> None:
        super().pack()
        self._fused = FusedDecoder.of(self.layers, self.norm, self.cos_sin)

    def __call__(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        x = self.embed_tokens(token_ids)
        if self._fused is not None and self._fused.serves(step):
            return self._fused(x, step)
        residual: torch.Tensor | None = None
        for layer in self.layers:
            x, residual = layer(x, residual, self.cos_sin, step)
        return self.norm(x, residual)


class LlamaForCausalLM(Model):
    def __init__(
        self,
        config: ModelConfig,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.model = LlamaModel(config, max_model_len, dtype=dtype, device=device)
        self.lm_head: Linear | TiedLinear = (
            TiedLinear(self.model.embed_tokens.weight)
            if config.tie_word_embeddings
            else Linear(
                config.hidden_size,
                {"": config.vocab_size},
                bias=False,
                dtype=dtype,
                device=device,
            )
        )

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        return self.model(token_ids, step)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)
