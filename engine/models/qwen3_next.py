"""Qwen3-Next (Qwen, 2025): gated delta networks in three of four layers, gated attention in the
others, and mixtures of experts with a gated shared one.

The layers for predicting several tokens, which checkpoints hold beside the decoder's own, are not
loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from engine.layers.gated_attention import GatedAttention
from engine.layers.gated_delta import GatedDelta, GatedDeltaConfig
from engine.layers.moe import GatedSharedMoE, RouterConfig
from engine.layers.norm import OffsetRMSNorm
from engine.layers.recurrent import Recurrence
from engine.models import config, llama
from engine.models.base import ModelConfig, MoEConfig, RecurrentLayers, place_in_text_model
from engine.models.config import Count
from engine.models.qwen3_moe import dense_layers

_STATE, _FULL = "linear_attention", "full_attention"


class DenseConfigFile(config.ConfigFile, kw_only=True):
    """Of all families with these layers, without experts."""

    interleaved: ClassVar[bool] = False

    head_dim: Count | None = 256
    max_position_embeddings: Count = 32_768
    partial_rotary_factor: float = 0.25
    attn_output_gate: bool = True
    layer_types: list[str] | None = None
    full_attention_interval: Count = 4
    linear_conv_kernel_dim: Count = 4
    linear_key_head_dim: Count = 128
    linear_value_head_dim: Count = 128
    linear_num_key_heads: Count = 16
    linear_num_value_heads: Count = 32

    def adapt(self, config: ModelConfig) -> ModelConfig:
        if not self.attn_output_gate:
            raise ValueError("attn_output_gate: not supported: False, only True")
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise ValueError(
                f"linear_num_value_heads {self.linear_num_value_heads} is no multiple of "
                f"linear_num_key_heads {self.linear_num_key_heads}"
            )
        delta = GatedDeltaConfig(
            num_key_heads=self.linear_num_key_heads,
            num_value_heads=self.linear_num_value_heads,
            key_dim=self.linear_key_head_dim,
            value_dim=self.linear_value_head_dim,
            kernel_size=self.linear_conv_kernel_dim,
            norm_eps=self.rms_norm_eps,
            interleaved=self.interleaved,
        )
        types = self.layer_types or [
            _STATE if (i + 1) % self.full_attention_interval else _FULL
            for i in range(self.num_hidden_layers)
        ]
        layers = self.recurrent_layers(types, _STATE)
        return replace(config, qk_norm=True, recurrent=RecurrentLayers(layers, delta))


class ConfigFile(DenseConfigFile, kw_only=True):
    interleaved: ClassVar[bool] = True

    intermediate_size: Count = 5632
    num_key_value_heads: Count | None = 2
    num_experts: Count = 512
    num_local_experts: Count | None = None
    """transformers 5's name for ``num_experts``."""
    num_experts_per_tok: Count = 10
    moe_intermediate_size: Count = 512
    shared_expert_intermediate_size: Count = 512
    norm_topk_prob: bool = True
    decoder_sparse_step: Count = 1
    mlp_only_layers: list[int] | None = None

    def adapt(self, config: ModelConfig) -> ModelConfig:
        router = RouterConfig(
            num_experts=self.num_local_experts or self.num_experts,
            top_k=self.num_experts_per_tok,
            renormalize=self.norm_topk_prob,
        )
        dense = dense_layers(self.num_hidden_layers, self.decoder_sparse_step, self.mlp_only_layers)
        sizes = self.moe_intermediate_size, dense, self.shared_expert_intermediate_size
        return replace(super().adapt(config), moe=MoEConfig(router, *sizes))


class Qwen3NextDecoderLayer(llama.LlamaDecoderLayer):
    norm_class = OffsetRMSNorm
    attention_class = GatedAttention

    def _add_recurrent(self, hidden_size: int, recurrence: Recurrence, place: int) -> llama.Mixer:
        assert isinstance(recurrence, GatedDeltaConfig)
        self.linear_attn = GatedDelta(
            place, recurrence, hidden_size, dtype=self._dtype, device=self._device
        )
        return self.linear_attn

    def _add_feed_forward(self, config: ModelConfig, layer: int) -> None:
        moe = config.moe
        if moe is None or layer in moe.dense_layers:
            super()._add_feed_forward(config, layer)
            return
        assert moe.shared_size is not None
        self.mlp = GatedSharedMoE(
            moe.router,
            config.hidden_size,
            moe.intermediate_size,
            moe.shared_size,
            group=config.group,
            dtype=self._dtype,
            device=self._device,
        )


class ForCausalLM(llama.ForCausalLM):
    layer_class = Qwen3NextDecoderLayer

    def place_of(self, name: str) -> str | None:
        other_parts = ("mtp.", "visual.", "model.visual.")
        return None if name.startswith(other_parts) else place_in_text_model(name)
