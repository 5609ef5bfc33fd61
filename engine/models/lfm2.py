"""LFM2 (arXiv 2511.23404): short convolutions in most layers, attention in the others."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.layers.attention import SelfAttention
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.recurrent import Recurrence
from engine.layers.short_conv import ShortConv, ShortConvConfig
from engine.models import config, llama
from engine.models.base import ModelConfig, RecurrentLayers
from engine.models.config import Count, Positive

_CONV, _FULL = "conv", "full_attention"


class ConfigFile(config.ConfigFile, kw_only=True):
    intermediate_size: Count = 12_288
    block_ff_dim: Count | None = None
    """The first name of ``intermediate_size``."""
    num_key_value_heads: Count | None = 8
    max_position_embeddings: Count = 128_000
    rope_theta: Positive = 1_000_000.0
    tie_word_embeddings: bool = True
    tie_embedding: bool | None = None
    """The first name of ``tie_word_embeddings``."""
    norm_eps: Positive = 1e-5
    conv_bias: bool = False
    conv_L_cache: Count = 3
    block_multiple_of: Count = 256
    block_ffn_dim_multiplier: float | None = 1.0
    block_auto_adjust_ff_dim: bool = True
    full_attn_idxs: list[int] | None = None
    layer_types: list[str] | None = None

    def adapt(self, config: ModelConfig) -> ModelConfig:
        conv = ShortConvConfig(
            channels=self.hidden_size, kernel_size=self.conv_L_cache, bias=self.conv_bias
        )
        indices = range(self.num_hidden_layers)
        full = indices if self.full_attn_idxs is None else self.full_attn_idxs
        types = self.layer_types or [_FULL if i in full else _CONV for i in indices]
        tied = self.tie_word_embeddings if self.tie_embedding is None else self.tie_embedding
        return replace(
            config,
            intermediate_size=self._width(),
            rms_norm_eps=self.norm_eps,
            tie_word_embeddings=tied,
            qk_norm=True,
            recurrent=RecurrentLayers(self.recurrent_layers(types, _CONV), conv),
        )

    def _width(self) -> int:
        """Of the feed-forward blocks, for which the checkpoint names the width before gating."""
        width = self.block_ff_dim or self.intermediate_size
        if not self.block_auto_adjust_ff_dim:
            return width
        width = int((self.block_ffn_dim_multiplier or 1.0) * int(2 * width / 3))
        return -(-width // self.block_multiple_of) * self.block_multiple_of


class Attention(SelfAttention):
    names = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}  # noqa: RUF012


class FeedForward(GatedMLP):
    names = {"down_proj": "w2"}  # noqa: RUF012

    def __init__(
        self, hidden_size: int, width: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(hidden_size, width, bias=False, dtype=dtype, device=device)
        parts = {"w1": width, "w3": width}
        self.gate_up_proj = Linear(hidden_size, parts, bias=False, dtype=dtype, device=device)


class Lfm2DecoderLayer(llama.LlamaDecoderLayer):
    names = {  # noqa: RUF012
        "input_layernorm": "operator_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp": "feed_forward",
    }
    attention_class = Attention

    def _add_recurrent(self, hidden_size: int, recurrence: Recurrence, place: int) -> llama.Mixer:
        assert isinstance(recurrence, ShortConvConfig)
        self.conv = ShortConv(place, recurrence, dtype=self._dtype, device=self._device)
        return self.conv

    def _add_feed_forward(self, config: ModelConfig, layer: int) -> None:
        width = config.intermediate_size
        self.mlp = FeedForward(config.hidden_size, width, dtype=self._dtype, device=self._device)


class ForCausalLM(llama.ForCausalLM):
    layer_class = Lfm2DecoderLayer

    def place_of(self, name: str) -> str | None:
        return "model.norm.weight" if name == "model.embedding_norm.weight" else name
