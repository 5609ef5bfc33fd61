"""The layers that fused executors can run."""

from __future__ import annotations

from typing import NamedTuple

from engine.layers.attention import SelfAttention
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.norm import RMSNorm
from engine.models.base import Model
from engine.models.llama import ForCausalLM, LlamaDecoderLayer


class DenseLayer(NamedTuple):
    """The parts of a layer that computes what ``LlamaDecoderLayer`` does, with a feed-forward block
    gated by SiLU."""

    input_norm: RMSNorm
    attention: SelfAttention
    attended_norm: RMSNorm
    mlp: GatedMLP

    @property
    def linears(self) -> tuple[Linear, Linear, Linear, Linear]:
        attention, mlp = self.attention, self.mlp
        return attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj

    @property
    def has_plain_weights(self) -> bool:
        """No weight is quantized, or packed for the kernels of a CPU."""
        return all(linear.quantized is None and linear.packed is None for linear in self.linears)


def dense_layers(model: Model) -> list[DenseLayer] | None:
    """The layers of a packed model; None unless all of them are such."""
    if not isinstance(model, ForCausalLM) or model.stage.count > 1:
        return None
    layers = [found for layer in model.model.layers if (found := _dense(layer)) is not None]
    return layers if len(layers) == len(model.model.layers) else None


def _dense(layer: LlamaDecoderLayer) -> DenseLayer | None:
    # In some families a mixture of experts has another name than ``mlp``.
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    computes_the_same = type(layer).__call__ is LlamaDecoderLayer.__call__
    if not computes_the_same or type(attention) is not SelfAttention:
        return None
    if attention.growth is not None:
        return None  # No fused kernel multiplies queries by it.
    if not (isinstance(mlp, GatedMLP) and mlp.activation == "silu"):
        return None
    if attention.o_proj.reduces.size > 1:
        return None  # Fused kernels know of no other rank.
    return DenseLayer(layer.input_layernorm, attention, layer.post_attention_layernorm, mlp)
