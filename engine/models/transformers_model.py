"""A model of transformers behind our interface, which attends over our paged cache.

transformers' attention interface lets a caller replace attention by its own function. Ours writes
keys and values to the cache, and uses the same backends as the native families. For the model, all
sequences of a step are one row of tokens. They differ by their positions, and by the step's tables,
which our attention uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from engine.attention.base import AttentionOptions, KVScales
from engine.layers.attention import StepContext
from engine.models.base import Model
from kernels import ops
from kernels.reference import store_heads

NAME = "sluice"
"""The name of our function in transformers' attention interface."""
SOFTCAPS = ("softcap", "logits_soft_cap", "attn_logit_softcapping")
"""The names that models have for the soft cap of attention scores."""


class CallRecorder(Protocol):
    """Replaces attention to record its calls."""

    def record(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **how: Any
    ) -> None:
        """Shapes as in ``_attention``. ``how``: its other arguments."""


_current: ContextVar[StepContext | CallRecorder] = ContextVar("current")


class TransformersModel(Model):
    """A loaded model of transformers behind our interface. It is not packed: its weights are its
    own."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._decoder = model.get_decoder()
        self._compute: Callable[..., Any] = self._decoder.forward
        self._given: torch.Tensor | None = None
        self._outputs: Callable[..., Any] | None = None
        self._decoder.forward = self._forward
        # transformers' check for padding, which does not occur here, would make the host wait for
        # the tokens.
        self._decoder.warn_if_padding_and_no_attention_mask = _say_nothing
        self.dtype: torch.dtype = next(model.parameters()).dtype

    def release(self) -> None:
        """Restore the model's original attention."""
        self._decoder.forward = self._compute
        del self._decoder.warn_if_padding_and_no_attention_mask

    def set_kv_scales(self, scales: Sequence[KVScales]) -> None:
        for module in self._decoder.modules():
            layer = getattr(module, "layer_idx", None)
            if layer is not None:
                module.kv_scales = scales[layer]

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        with attending(step):
            outputs = self._decoder(
                input_ids=token_ids.unsqueeze(0),
                position_ids=step.positions.unsqueeze(0),
                use_cache=False,
            )
        self._outputs = type(outputs)
        hidden: torch.Tensor = outputs[0]
        return step.kept(hidden.squeeze(0))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The part of the model after its decoder: the head, scales, soft caps."""
        self._given = hidden.unsqueeze(0)
        try:
            outputs = self._model(inputs_embeds=self._given, use_cache=False)
        finally:
            self._given = None
        logits: torch.Tensor = outputs.logits
        return logits.squeeze(0)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._given is not None:
            assert self._outputs is not None, "logits before hidden_states"
            return self._outputs(last_hidden_state=self._given)
        return self._compute(*args, **kwargs)


def _say_nothing(*_inputs: object) -> None:
    pass


def register() -> None:
    """Register ``NAME`` in transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)


@contextmanager
def attending(context: StepContext | CallRecorder) -> Iterator[None]:
    """A block in which models attend with this context."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **how: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. query: [1, num_heads, num_tokens, head_dim]; key, value:
    [1, num_kv_heads, num_tokens, head_dim]; returns [1, num_tokens, num_heads, head_dim]."""
    context = _current.get()
    if not isinstance(context, StepContext):
        context.record(module, query, key, value, attention_mask=attention_mask, **how)
        return torch.zeros_like(query).transpose(1, 2), None
    k_cache, v_cache = context.kv_cache[module.layer_idx]
    slots, attend = context.of(module.layer_idx)
    scales: KVScales | None = getattr(module, "kv_scales", None)
    num_heads, num_kv_heads = query.shape[1], key.shape[1]
    by_token = [heads[0].transpose(0, 1) for heads in (query, key, value)]
    q, k, v = torch.cat(by_token, 1).split_with_sizes((num_heads, num_kv_heads, num_kv_heads), 1)
    k_scale, v_scale = (None, None) if scales is None else (scales.k, scales.v)
    if is_whole(q.shape[2], q.dtype):
        # transformers has rotated queries and keys already.
        angles = torch.empty(1, 0, device=q.device)
        stored = q, k, v, k_cache, v_cache, angles, context.positions, slots
        ops.rope_and_cache(*stored, k_scale=k_scale, v_scale=v_scale)
    else:
        store_heads(k_cache, slots, k, k_scale)
        store_heads(v_cache, slots, v, v_scale)
    scaling = how.get("scaling")
    options = AttentionOptions(
        q.shape[2] ** -0.5 if scaling is None else float(scaling),
        how.get("sliding_window"),
        softcap_of(how),
        scales,
    )
    attended = attend(q, k_cache, v_cache, options)
    return attended.unsqueeze(0), None


def is_whole(head_dim: int, dtype: torch.dtype) -> bool:
    """Whether our kernels, which handle padding, can store a head: its size is a multiple of 16
    bytes."""
    return head_dim * dtype.itemsize % 16 == 0


def softcap_of(how: dict[str, Any]) -> float | None:
    return next((how[name] for name in SOFTCAPS if how.get(name) is not None), None)
