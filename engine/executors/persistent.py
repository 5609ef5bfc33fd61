"""All layers of a decoder as one kernel on a GPU, for decode steps of few tokens.

Between kernels a GPU loads no weights, and a step of few tokens does little else than load them.
The kernel rounds where the layers do, but sums in another order.
"""

from __future__ import annotations

import logging

import torch

from engine.attention.base import plain_batch
from engine.executors.base import Executor
from engine.executors.dense import DenseLayer, dense_layers
from engine.layers.attention import StepContext
from engine.models.base import Model
from engine.models.llama import ForCausalLM
from kernels import cuda
from kernels.persistent_decoder import (
    MAX_DRAFTED_TOKENS,
    MAX_TOKENS,
    LayerWeights,
    PersistentDecoder,
    refusal,
)

logger = logging.getLogger(__name__)


class PersistentLayers(Executor):
    max_batch = MAX_TOKENS
    """Sequences of a step, of each one token."""
    max_drafted = MAX_DRAFTED_TOKENS
    """Tokens of a step with several of each sequence."""

    def __init__(self, model: ForCausalLM, decoder: PersistentDecoder) -> None:
        super().__init__(model)
        self._model, self._decoder = model.model, decoder

    @classmethod
    def of(cls, model: Model) -> PersistentLayers | None:
        """None where the kernel does not serve the packed model's layers."""
        layers = dense_layers(model)
        if layers is None or not isinstance(model, ForCausalLM):
            return None
        if not all(map(_is_served, layers)):
            return None
        weights, first, cos_sin = list(map(_weights, layers)), layers[0], model.model.cos_sin
        attention = first.attention
        shape = {
            "num_heads": attention.num_heads,
            "num_kv_heads": attention.num_kv_heads,
            "head_dim": attention.head_dim,
        }
        is_built = not cos_sin.is_cuda or cuda.available()
        turns_all = cos_sin.shape[1] == attention.head_dim
        if not (is_built and turns_all) or refusal(weights, **shape) is not None:
            return None
        eps = first.input_norm.eps
        head_eps = eps if attention.q_norm is None else attention.q_norm.eps
        decoder = PersistentDecoder(
            weights, **shape, eps=eps, head_eps=head_eps, scale=attention.options.scale
        )
        why = decoder.refused()
        if why is not None:
            logger.warning("Layers run one by one: this GPU launches no kernel for all (%s)", why)
            return None
        return cls(model, decoder)

    def serves(self, step: StepContext) -> bool:
        """Few tokens, of which all are wanted and none has an adapter or a picture. Steps with one
        token of each sequence that keep auxiliary hidden states are left to the layers."""
        if step.adapted or len(step.groups) > 1 or step.wanted or step.sight is not None:
            return False
        batch = plain_batch(step.groups[0].attend)
        if batch is None:
            return False
        num_tokens = len(step.positions)
        if num_tokens == len(batch.seq_lens):
            return num_tokens <= self.max_batch and not step.aux_hidden_states
        return num_tokens <= self.max_drafted

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        ((slots, attend),) = step.groups
        batch = plain_batch(attend)
        assert batch is not None
        hidden = self._decoder(
            self._model.embed_tokens(token_ids),
            step.kv_cache,
            self._model.cos_sin,
            step.positions,
            slots,
            batch.block_table,
            batch.seq_lens,
            step.aux_hidden_states,
        )
        return self._model.norm(hidden)


def _is_served(layer: DenseLayer) -> bool:
    """Whether ``_weights`` are all that it computes with, and it attends to all tokens with scores
    as they are."""
    _, *others = layer.linears
    how = layer.attention.options
    attends_to_all = how.window is None and how.softcap is None and how.sinks is None
    return (
        attends_to_all and layer.has_plain_weights and all(linear.bias is None for linear in others)
    )


def _weights(layer: DenseLayer) -> LayerWeights:
    attention = layer.attention
    qkv, output, gate_up, down = layer.linears
    return LayerWeights(
        input_norm=layer.input_norm.weight.data,
        qkv=qkv.weight.data,
        qkv_bias=None if qkv.bias is None else qkv.bias.data,
        q_norm=None if attention.q_norm is None else attention.q_norm.weight.data,
        k_norm=None if attention.k_norm is None else attention.k_norm.weight.data,
        output=output.weight.data,
        attended_norm=layer.attended_norm.weight.data,
        gate_up=gate_up.weight.data,
        down=down.weight.data,
    )
