"""All layers of a decoder as one kernel, for short chunks on a CPU.

The results are bitwise those of the layers, and the weights are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention.cpu import CpuStepAttention
from engine.executors.base import Executor
from engine.executors.dense import DenseLayer, dense_layers
from engine.layers.attention import StepContext
from engine.models.base import Model
from engine.models.llama import ForCausalLM
from kernels import cpu
from kernels.cpu_decoder import Decoder, LayerWeights

MAX_TOKENS = 256
"""``kRowBlock`` of kernels/csrc/cpu/linear.h: rows that a GEMM takes at once."""


class FusedCpu(Executor):
    """Runs all layers and the final norm by ``kernels.cpu_decoder``, and steps that it does not
    serve layer by layer."""

    def __init__(self, model: ForCausalLM, decoder: Decoder, layers: Sequence[DenseLayer]) -> None:
        super().__init__(model)
        self._embed = model.model.embed_tokens
        self._decoder = decoder
        self._attentions = [layer.attention for layer in layers]

    @classmethod
    def of(cls, model: Model) -> FusedCpu | None:
        """The packed model's layers as one kernel; None if it does not support them."""
        layers = dense_layers(model)
        if layers is None or not isinstance(model, ForCausalLM):
            return None
        weights = [found for layer in layers if (found := _weights(layer)) is not None]
        if len(weights) < len(layers):
            return None
        attention, norm, cos_sin = layers[0].attention, model.model.norm, model.model.cos_sin
        if attention.head_dim > cpu.MAX_HEAD_DIM or attention.head_dim != cos_sin.shape[1]:
            return None
        decoder = Decoder(
            weights,
            norm.weight.data,
            cos_sin,
            num_q_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            eps=norm.eps,
            scale=attention.options.scale,
        )
        return cls(model, decoder, layers)

    def runs_as_one(self, step: StepContext) -> bool:
        """Whether one kernel can run a step: few tokens, in short chunks, without adapters
        or pictures."""
        if step.adapted or len(step.groups) > 1 or step.sight is not None:
            return False
        attend = step.groups[0].attend
        short = isinstance(attend, CpuStepAttention) and not attend.is_cut
        return short and len(step.positions) <= MAX_TOKENS

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        if not self.runs_as_one(step):
            return self.model.hidden_states(token_ids, step)
        ((slots, attend),) = step.groups
        assert isinstance(attend, CpuStepAttention)
        scales = [a.options.kv_scales for a in self._attentions if a.options.kv_scales is not None]
        hidden = self._decoder(
            self._embed(token_ids),  # which are overwritten
            step.kv_cache,
            attend.struct,
            step.positions,
            slots,
            step.aux_hidden_states,
            [(scale.k, scale.v) for scale in scales] or None,
        )
        return step.kept(hidden)


def _weights(layer: DenseLayer) -> LayerWeights | None:
    if not layer.attention.is_plain:
        return None
    qkv, output, gate_up, down = (linear.packed for linear in layer.linears)
    if (
        isinstance(qkv, cpu.PackedLinear)
        and isinstance(output, cpu.PackedLinear)
        and isinstance(gate_up, cpu.PackedLinear)
        and isinstance(down, cpu.PackedLinear)
    ):
        norms = layer.input_norm.weight.data, layer.attended_norm.weight.data
        return LayerWeights(*norms, qkv, output, gate_up, down)
    return None
