"""Attention through the package flash-attn (FlashAttention-2, arXiv 2307.08691), to compare."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.attention.base import (
    AttentionBatch,
    AttentionOptions,
    AttentionShape,
    DeviceBatch,
    StepAttention,
)
from kernels import cuda
from kernels.transfer import to_device

MAX_HEAD_DIM = 256


class FlashAttention:
    """Decode steps go through the function that splits keys, others through the one for prompts."""

    name = "flash_attn"
    block_size_multiple = 256
    sharing = None
    max_decode_queries = 1

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @staticmethod
    def refusal(device: torch.device, shape: AttentionShape) -> str | None:
        """Why this backend cannot serve ``shape`` on ``device``; None if it can."""
        if device.type != "cuda":
            return "it needs a GPU"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "it needs a GPU of compute capability 8.0 or later"
        if shape.dtype not in cuda.DECODE_DTYPES:
            return f"it serves bfloat16 and float16, not {shape.dtype}"
        if shape.kv_dtype not in (None, shape.dtype):
            return f"its KV cache has the model's dtype, not {shape.kv_dtype}"
        if shape.head_dim > MAX_HEAD_DIM or shape.head_dim % 8:
            return f"it serves head sizes up to {MAX_HEAD_DIM} in steps of 8, not {shape.head_dim}"
        if shape.has_sinks:
            return "it has no attention sinks"
        if importlib.util.find_spec("flash_attn") is None:
            return "the package flash-attn is not installed"
        if not cuda.available():
            return "the CUDA kernels beside it cannot be built"
        return None

    def prepare(self, batch: AttentionBatch, block_size: int) -> StepAttention:
        assert batch.on_device is not None
        if (batch.query_lens == 1).all():
            return _DecodeStep(batch.on_device)
        ends = np.concatenate(([0], batch.seq_lens.cumsum())).astype(np.int32)
        return _PromptStep(
            batch.on_device,
            to_device(ends, self._device),
            int(batch.query_lens.max()),
            int(batch.seq_lens.max()),
        )

    def prepare_decode(
        self, batch: DeviceBatch, block_size: int, num_queries: int = 1
    ) -> StepAttention:
        assert num_queries <= self.max_decode_queries
        return _DecodeStep(batch)


def _options(how: AttentionOptions) -> dict[str, Any]:
    """What both functions take. Their window counts the keys before the query's own."""
    return {
        "softmax_scale": how.scale,
        "causal": True,
        "window_size": (-1, -1) if how.window is None else (how.window - 1, 0),
        "softcap": how.softcap or 0.0,
    }


@dataclass(frozen=True, slots=True)
class _DecodeStep:
    batch: DeviceBatch

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        assert how.kv_scales is None, "refused when the backend was chosen"
        from flash_attn import flash_attn_with_kvcache

        out: torch.Tensor = flash_attn_with_kvcache(
            q[:, None],
            k_cache,
            v_cache,
            cache_seqlens=self.batch.seq_lens,
            block_table=self.batch.block_table,
            **_options(how),
        )
        return out[:, 0]


@dataclass(frozen=True, slots=True)
class _PromptStep:
    batch: DeviceBatch
    cu_keys: torch.Tensor
    max_queries: int
    max_keys: int

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        assert how.kv_scales is None, "refused when the backend was chosen"
        from flash_attn import flash_attn_varlen_func

        out: torch.Tensor = flash_attn_varlen_func(
            q,
            k_cache,
            v_cache,
            cu_seqlens_q=self.batch.cu_queries,
            cu_seqlens_k=self.cu_keys,
            max_seqlen_q=self.max_queries,
            max_seqlen_k=self.max_keys,
            block_table=self.batch.block_table,
            **_options(how),
        )
        return out
