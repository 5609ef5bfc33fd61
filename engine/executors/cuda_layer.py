"""Each decoder layer on a GPU as two calls, one before and one after attention.

For steps that are not in a CUDA graph: there a slow host keeps the GPU waiting, and each operation
of its own takes the host several microseconds.

The results are bitwise those of the layer, except for few tokens with adapters, which the layer
adds inside of its products."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.executors.dense import DenseLayer, dense_layers
from engine.executors.layers import LayerByLayer
from engine.layers.attention import StepContext
from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm
from engine.models.base import Model
from engine.models.llama import ForCausalLM
from engine.parallel.group import Output
from kernels import cuda, cuda_layer
from kernels.cuda_layer import NO_HEAD_NORMS, HeadNorms, Matrix, Norm


class CudaLayers(LayerByLayer):
    """Serves every step: the few with adapters that only the layers can add go through these."""

    def __init__(self, model: ForCausalLM, layers: Sequence[DenseLayer]) -> None:
        super().__init__(model)
        self._decoder, self._layers = model.model, list(map(CudaLayer, layers))

    @classmethod
    def of(cls, model: Model) -> CudaLayers | None:
        """None unless all layers are dense, and on a GPU that has the kernels."""
        layers = dense_layers(model)
        if layers is None or not isinstance(model, ForCausalLM):
            return None
        weight = layers[0].input_norm.weight.data
        is_served = weight.is_cuda and weight.dtype in cuda.FLOATS and cuda.available()
        is_served &= all(layer.has_plain_weights for layer in layers)
        return cls(model, layers) if is_served else None

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        if all(layer.serves(step) for layer in self._layers):
            return self._decoder(token_ids, step, self._layers)
        return super().hidden_states(token_ids, step)


class CudaLayer:
    """Calls the kernels of a layer; the weights are the layer's own."""

    def __init__(self, layer: DenseLayer) -> None:
        self._layer = layer
        self._input_norm, self._attended_norm = _norm(layer.input_norm), _norm(layer.attended_norm)
        self._head_norms = NO_HEAD_NORMS
        q_norm, k_norm = layer.attention.q_norm, layer.attention.k_norm
        if q_norm is not None and k_norm is not None:
            self._head_norms = HeadNorms(q_norm.weight.data, k_norm.weight.data, q_norm.eps)

    def serves(self, step: StepContext) -> bool:
        """Whether it can run a step: any, unless it has adapters that only the layer can add."""
        if not step.adapted:
            return True
        linears, num_tokens = self._layer.linears, len(step.positions)
        return all(_adapters(linear, num_tokens) is not None for linear in linears)

    def __call__(
        self,
        x: Output,
        residual: torch.Tensor | None,
        cos_sin: torch.Tensor,
        step: StepContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``LlamaDecoderLayer``, in a step that it ``serves``."""
        assert isinstance(x, torch.Tensor), "several ranks run the layers themselves"
        attention = self._layer.attention
        qkv_proj, o_proj, gate_up_proj, down_proj = self._layer.linears
        slots, attend = step.of(attention.layer)
        scales = attention.options.kv_scales
        q = cuda_layer.attention_inputs(
            x,
            residual,
            self._input_norm,
            _matrix(qkv_proj, x.shape[0]),
            self._head_norms,
            step.kv_cache[attention.layer],
            (None, None) if scales is None else (scales.k, scales.v),
            cos_sin,
            step.positions,
            slots,
        )
        residual = step.kept(x if residual is None else residual)
        attended = attention.attend(attend, q, step)
        del q  # with the whole projection: the feed-forward block takes most of a step's memory
        rows = attended.shape[0]
        fed = cuda_layer.feed_forward(
            attended,
            residual,
            _matrix(o_proj, rows),
            self._attended_norm,
            _matrix(gate_up_proj, rows, gated=True),
            _matrix(down_proj, rows),
        )
        return fed, residual


def _norm(norm: RMSNorm) -> Norm:
    return Norm(norm.weight.data, norm.eps)


def _matrix(linear: Linear, rows: int, *, gated: bool = False) -> Matrix:
    weight, bias, adapters = linear.weight.data, linear.bias, _adapters(linear, rows)
    assert adapters is not None
    code = linear.gemms.code(rows, weight, gated=gated and not adapters)
    return Matrix(weight, None if bias is None else bias.data, code, adapters)


def _adapters(linear: Linear, rows: int) -> tuple[torch.Tensor, ...] | None:
    return () if linear.addition is None else linear.addition.operands(rows)
