"""Llama (arXiv 2302.13971, 2407.21783). Module names follow the checkpoint's tensor names."""

from __future__ import annotations

import torch
from torch import nn

from engine.attention.base import StepAttention
from engine.layers.attention import KVCache, SelfAttention, StepContext
from engine.layers.embedding import Embedding
from engine.layers.linear import Linear, TiedLinear
from engine.layers.mlp import GatedMLP
from engine.layers.norm import RMSNorm
from engine.layers.rope import RotaryEmbedding
from engine.models.base import ModelConfig


class LlamaDecoderLayer(nn.Module):
    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
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

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and residual are added by the next norm; the layer's input is their sum."""
        x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(x, step), residual)
        return self.mlp(x), residual


class LlamaModel(nn.Module):
    def __init__(
        self, config: ModelConfig, max_model_len: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, dtype=dtype, device=device
        )
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(config, i, dtype=dtype, device=device)
            for i in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.rotary = RotaryEmbedding(
            config.rope, config.head_dim, max_model_len, dtype=dtype, device=device
        )

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: StepAttention,
        kv_cache: KVCache,
    ) -> torch.Tensor:
        cos, sin = self.rotary(positions)
        step = StepContext(cos, sin, attend, kv_cache)
        x: torch.Tensor = self.embed_tokens(token_ids)
        residual: torch.Tensor | None = None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        x, _ = self.norm(x, residual)
        return x


class LlamaForCausalLM(nn.Module):
    """Implements ``engine.models.base.Model``."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.model = LlamaModel(config, max_model_len, dtype=dtype, device=device)
        self.lm_head: nn.Module = (
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

    def hidden_states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: StepAttention,
        kv_cache: KVCache,
    ) -> torch.Tensor:
        out: torch.Tensor = self.model(token_ids, positions, attend, kv_cache)
        return out

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lm_head(hidden)
        return out.float()
