"""Granite 4 hybrid (IBM, 2025), dense: Granite with Mamba 2 in most layers, and attention that does
not know positions in the others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from engine.layers.mamba import Mamba, MambaConfig
from engine.layers.mlp import GatedMLP
from engine.layers.recurrent import Recurrence
from engine.models import granite, llama
from engine.models.base import ModelConfig, RecurrentLayers
from engine.models.config import Count

_NEW_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


class ConfigFile(granite.ConfigFile, kw_only=True):
    num_local_experts: int = 8
    shared_intermediate_size: Count = 1024
    position_embedding_type: str | None = None
    layer_types: list[str] | None = None
    layers_block_type: list[str] | None = None
    """The first name of ``layer_types``."""
    mamba_n_heads: Count = 128
    mamba_n_groups: Count = 1
    mamba_d_state: Count = 256
    mamba_d_head: int | Literal["auto"] = "auto"
    mamba_d_conv: Count = 4
    mamba_expand: Count = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False

    def adapt(self, config: ModelConfig) -> ModelConfig:
        if self.num_local_experts:
            raise ValueError(f"num_local_experts: not supported: {self.num_local_experts}, only 0")
        width, heads = self.mamba_expand * self.hidden_size, self.mamba_n_heads
        if width % heads or self.mamba_d_head not in ("auto", width // heads):
            raise ValueError(f"mamba_n_heads: {heads} heads do not make up a width of {width}")
        if heads % self.mamba_n_groups:
            raise ValueError(f"mamba_n_groups: {self.mamba_n_groups} do not divide {heads} heads")
        mamba = MambaConfig(
            num_heads=heads,
            head_dim=width // heads,
            num_groups=self.mamba_n_groups,
            state_dim=self.mamba_d_state,
            kernel_size=self.mamba_d_conv,
            conv_bias=self.mamba_conv_bias,
            bias=self.mamba_proj_bias,
            norm_eps=self.rms_norm_eps,
        )
        types = self.layer_types or self.layers_block_type or []
        types = [_NEW_NAMES.get(kind, kind) for kind in types]
        rope = config.rope
        if self.position_embedding_type != "rope":
            rope = replace(rope, theta=math.inf)
        return replace(
            super().adapt(config),
            intermediate_size=self.shared_intermediate_size,
            rope=rope,
            recurrent=RecurrentLayers(self.recurrent_layers(types, "linear_attention"), mamba),
        )


class SharedMLP(GatedMLP):
    names = {"gate_up_proj": "input_linear", "down_proj": "output_linear"}  # noqa: RUF012


class GraniteHybridDecoderLayer(granite.GraniteDecoderLayer):
    names = {"mlp": "shared_mlp"}  # noqa: RUF012

    def _add_recurrent(self, hidden_size: int, recurrence: Recurrence, place: int) -> llama.Mixer:
        assert isinstance(recurrence, MambaConfig)
        self.mamba = Mamba(place, recurrence, hidden_size, dtype=self._dtype, device=self._device)
        return self.mamba

    def _add_feed_forward(self, config: ModelConfig, layer: int) -> None:
        self.mlp = SharedMLP(
            config.hidden_size,
            config.intermediate_size,
            bias=False,
            fused_checkpoint=True,
            dtype=self._dtype,
            device=self._device,
        )


class ForCausalLM(llama.ForCausalLM):
    layer_class = GraniteHybridDecoderLayer
