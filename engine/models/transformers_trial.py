"""Tests whether a model of transformers computes the right results on our paged cache.

Models that keep state elsewhere, or whose attention does something that the attention interface
does not report, would compute wrong results. Every function here raises ``ValueError`` with the
reason.
"""

from __future__ import annotations

import textwrap
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from engine.attention.base import AttentionBatch
from engine.attention.torch_ref import TorchAttention
from engine.layers.attention import GroupStep, StepContext
from engine.models.base import CacheLayout
from engine.models.transformers_model import (
    NAME,
    SOFTCAPS,
    TransformersModel,
    attending,
    is_whole,
    softcap_of,
)

_NUM_TOKENS = 3
# Arguments of the interface that we implement, or that do not change results here.
_KNOWN = frozenset(
    {
        *("scaling", "sliding_window", "is_causal", *SOFTCAPS),
        *("dropout", "position_ids", "cache_position", "position_embeddings", "use_cache"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        *("logits_to_keep",),
    }
)
_LIMITS = {torch.float32: 1e-3}
_LIMIT = 0.1
"""The largest difference from transformers' own results, relative to their norm. In 16 bits
rounding alone makes some hundredths, and a token that attention misses several tenths."""


class TrialFailed(ValueError):
    """The model raised an error of its own."""


@dataclass(slots=True)
class Calls:
    """Records how the layers call attention. A ``CallRecorder``."""

    layouts: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """(query heads, KV heads, head size) by layer."""
    windows: dict[int, int | None] = field(default_factory=dict)
    """Window by layer."""
    softcap: float | None = None

    def record(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **how: Any
    ) -> None:
        _refuse(module, key, value, how)
        self.layouts[module.layer_idx] = query.shape[1], key.shape[1], key.shape[3]
        self.softcap = softcap_of(how)
        self.windows[module.layer_idx] = how.get("sliding_window")

    def cache_layout(self, num_layers: int) -> CacheLayout:
        if sorted(self.layouts) != list(range(num_layers)):
            raise ValueError(
                f"{len(self.layouts)} of its {num_layers} layers attend through the attention "
                "interface; the others keep state that is no KV cache"
            )
        kinds = set(self.layouts.values())
        if len(kinds) > 1:
            raise ValueError(f"its layers differ in heads or head size: {sorted(kinds)}")
        ((num_heads, num_kv_heads, head_dim),) = kinds
        if num_heads % num_kv_heads:
            raise ValueError(f"{num_heads} query heads share {num_kv_heads} key heads unevenly")
        return CacheLayout(num_layers, num_kv_heads, head_dim)


@torch.inference_mode()
def probe(model: Any, device: torch.device) -> Calls:
    """Run a few tokens through the decoder, without a cache."""
    calls = Calls()
    ids = torch.zeros(1, _NUM_TOKENS, dtype=torch.int64, device=device)
    positions = torch.arange(_NUM_TOKENS, device=device).unsqueeze(0)
    try:
        with attending(calls):
            model.get_decoder()(input_ids=ids, position_ids=positions, use_cache=False)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        raise TrialFailed(f"a trial run fails: {one_line(error)}") from error
    return calls


@torch.inference_mode()
def check_results(model: Any, layout: CacheLayout, device: torch.device) -> None:
    """Compute a few tokens in two chunks over a cache, and all at once with transformers'
    attention, and compare.

    This finds what the arguments of the interface do not show: convolutions over tokens, and
    positions that are counted instead of read.
    """
    length, cut, block_size = 8, 5, 4
    dtype = next(model.parameters()).dtype
    ids = torch.arange(1, length + 1, device=device)
    ours = TransformersModel(model)
    shape = (2, block_size, layout.num_kv_heads, layout.head_dim)
    memory = torch.zeros(layout.num_layers, 2, *shape, dtype=dtype, device=device)
    cache = [(layer[0], layer[1]) for layer in memory]
    table = torch.arange(2, dtype=torch.int32, device=device).unsqueeze(0)
    chunks = []
    for start, end in ((0, cut), (cut, length)):
        batch = AttentionBatch(
            np.array([end - start]), np.array([end]), np.zeros(1, np.int64), table
        )
        attend = TorchAttention(device, dtype).prepare(batch, block_size)
        positions = torch.arange(start, end, device=device)
        step = StepContext(positions, [GroupStep(positions, attend)], cache)
        chunks.append(ours.hidden_states(ids[start:end], step))
    ours.release()
    model.set_attn_implementation("eager")
    expected = model.get_decoder()(input_ids=ids.unsqueeze(0), use_cache=False)[0][0].float()
    model.set_attn_implementation(NAME)
    distance = (torch.cat(chunks).float() - expected).norm() / expected.norm()
    if not distance < _LIMITS.get(dtype, _LIMIT):
        raise ValueError(
            f"its results differ from transformers' own by {float(distance):.2g}: it keeps state "
            "that is no KV cache, or attends in a way that the attention interface does not tell"
        )


@torch.inference_mode()
def waits_for_nothing(ours: TransformersModel, layout: CacheLayout, device: torch.device) -> bool:
    """Whether a step on a GPU never makes the host wait, so that CUDA graphs can capture it.

    A model may wait to read which experts tokens go to, or the largest position.
    """
    ids = torch.ones(2, dtype=torch.int64, device=device)
    empty = torch.zeros(1, 1, layout.num_kv_heads, layout.head_dim, dtype=ours.dtype, device=device)
    if not is_whole(layout.head_dim, ours.dtype):
        return False

    def attend(q: torch.Tensor, *_caches: object, **_how: object) -> torch.Tensor:
        return torch.zeros_like(q)

    groups = [GroupStep(torch.full_like(ids, -1), attend)]
    step = StepContext(ids, groups, [(empty, empty)] * layout.num_layers)
    before = torch.cuda.get_sync_debug_mode()
    ours.logits(ours.hidden_states(ids, step))  # what is made at first use
    try:
        with warnings.catch_warnings():  # that it does not see everything
            warnings.simplefilter("ignore", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        ours.logits(ours.hidden_states(ids, step))
    except RuntimeError:
        return False
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return True


def _refuse(module: Any, key: torch.Tensor, value: torch.Tensor, how: dict[str, Any]) -> None:
    if how.pop("attention_mask") is not None:
        raise ValueError("its attention needs a mask of its own making")
    if how.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise ValueError("its attention is not causal")
    if getattr(module, "layer_idx", None) is None:
        raise ValueError("its attention modules have no layer_idx")
    if key.shape != value.shape:
        raise ValueError(f"keys {list(key.shape)} and values {list(value.shape)} differ in shape")
    for name, given in how.items():
        if given is not None and given is not False and name not in _KNOWN:
            raise ValueError(f"its attention needs {name!r}")


def one_line(error: Exception) -> str:
    """A library's message as one short line, to be quoted in ours."""
    return textwrap.shorten(str(error), 400)
