"""Attention on a GPU. Sequences with few tokens in a step go through our CUDA decode kernel, prompt
chunks through our prefill kernel on Hopper, and through Triton's elsewhere.

The decode kernel splits the keys of a step evenly over all CTAs, whatever the lengths of sequences.
The split is computed on the device, once a step, and all layers use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
from engine.attention.hopper import CopiedStepAttention, Fp8Copies, HopperStepAttention
from engine.attention.triton import TritonAttention, TritonStepAttention
from kernels import cuda
from kernels.tiles import tile_list
from kernels.transfer import to_device

MAX_QUERIES = 8
"""The most tokens of a sequence in a step for the decode kernel."""
MAX_FUSED_BATCH = 16
"""Up to this batch the decode kernel also rotates and stores (``store_and_attend``). In larger ones
a CTA has many sequences, and waits for the new keys of each: at 64 that is slower than a kernel
before it."""
MIN_DIRTY_TOKENS = 1024
"""Prompt tokens in a step whose projections and outputs fill the L2: they are written back while
the decode kernel reads (``cuda.decode_schedule``)."""
LEAST_CAPTURED_WINDOW = 128
"""Prompts are captured only for windows of at least this. A captured prompt has up to 127 tokens
more than the real one, so a tile past the real end still sees a key of it. A tile that sees no key
would wait for one forever."""
MAX_FUSED_ROWS = 8
"""Query tokens times query heads per KV head for which the decode kernel has registers left to
rotate keys."""


class CudaAttention:
    """bfloat16 and float16 on GPUs of compute capability 8.0 or later."""

    name = "cuda"
    block_size_multiple = 16

    def __init__(self, device: torch.device, shape: AttentionShape) -> None:
        self._device = device
        self._shape = shape
        self._triton = TritonAttention(device, shape)
        self._group = shape.num_heads // shape.num_kv_heads
        self._own_prefill = cuda.has_prefill(device, shape.head_dim, shape.dtype)
        self._copies = Fp8Copies(device, shape) if shape.is_fp8 and self._own_prefill else None
        shares = cuda.has_shared_prefix(device, shape.head_dim, shape.dtype)
        # The kernel for shared prefixes reads 16-bit keys only.
        plain = shape.window is None and shape.softcap is None and not shape.is_fp8
        self.sharing: AttentionShape | None = shape if shares and plain else None
        self._prompt_tiles: dict[int, torch.Tensor] = {}
        """Tiles of the graphs of lone prompts, by the most tokens of the prompt."""
        self._max_queries = min(MAX_QUERIES, cuda.max_decode_rows(shape.head_dim))
        # A schedule depends on the window, and holds block ids: each layer group and window has its
        # own.
        self._workspaces: dict[_WorkspaceKey, cuda.DecodeWorkspace] = {}

    @staticmethod
    def refusal(device: torch.device, shape: AttentionShape) -> str | None:
        """Why this backend cannot serve ``shape`` on ``device``; None if it can."""
        if device.type != "cuda":
            return "it needs a GPU"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "it needs a GPU of compute capability 8.0 or later"
        if shape.dtype not in cuda.DECODE_DTYPES:
            return f"it serves bfloat16 and float16, not {shape.dtype}"
        if shape.head_dim not in cuda.DECODE_HEAD_DIMS:
            sizes = ", ".join(map(str, sorted(cuda.DECODE_HEAD_DIMS)))
            return f"it serves head sizes {sizes}, not {shape.head_dim}"
        return TritonAttention.refusal(device, shape)

    def prepare(self, batch: AttentionBatch, block_size: int) -> StepAttention:
        assert batch.on_device is not None
        short = batch.query_lens <= self._max_queries
        if not short.any():
            return self._prepare_long(batch, np.arange(len(short)))
        max_queries = int(batch.query_lens[short].max())
        if short.all():
            is_uniform = bool((batch.query_lens == max_queries).all())
            return self._prepare_short(
                batch.on_device, max_queries, block_size, is_uniform=is_uniform
            )
        # Length 0 makes the long sequences padding for the decode kernel.
        seq_lens = to_device(np.where(short, batch.seq_lens, 0).astype(np.int32), self._device)
        on_device = replace(batch.on_device, seq_lens=seq_lens)
        dirty_l2 = int(batch.query_lens[~short].sum()) >= MIN_DIRTY_TOKENS
        return _MixedStepAttention(
            self._prepare_long(batch, np.flatnonzero(~short)),
            self._prepare_short(on_device, max_queries, block_size, dirty_l2=dirty_l2),
        )

    @property
    def max_decode_queries(self) -> int:
        return self._max_queries

    def prepare_decode(
        self, batch: DeviceBatch, block_size: int, num_queries: int = 1
    ) -> StepAttention:
        return self._prepare_short(
            batch, num_queries, block_size, is_uniform=True, schedules_early=True
        )

    @property
    def captures_prompts(self) -> bool:
        window = self._shape.window
        sees = window is None or window >= LEAST_CAPTURED_WINDOW
        return self._own_prefill and self._copies is None and sees

    def prepare_prompt(self, batch: DeviceBatch, max_num_tokens: int) -> HopperStepAttention:
        assert self.captures_prompts
        if max_num_tokens not in self._prompt_tiles:
            # What tiles past the end of a shorter prompt compute is dropped.
            most = np.array([max_num_tokens])
            tiles = tile_list(most, most, self._group, cuda.PREFILL_ROWS)
            self._prompt_tiles[max_num_tokens] = to_device(tiles, self._device)
        return HopperStepAttention(batch, self._prompt_tiles[max_num_tokens])

    def _prepare_long(self, batch: AttentionBatch, sequences: cuda.Ints) -> LongStepAttention:
        assert batch.on_device is not None
        if not self._own_prefill:
            return self._triton.prepare_some(batch, sequences)
        if self._copies is not None:
            copied = self._copies.prepare(batch, sequences)
            return copied or self._triton.prepare_some(batch, sequences)
        return HopperStepAttention.of(batch, batch.on_device, sequences, self._group)

    def _prepare_short(
        self,
        batch: DeviceBatch,
        max_queries: int,
        block_size: int,
        *,
        is_uniform: bool = False,
        schedules_early: bool = False,
        dirty_l2: bool = False,
    ) -> _ShortStepAttention:
        return _ShortStepAttention(
            *(batch, max_queries, is_uniform, block_size, self._shape, self._workspaces),
            schedules_early=schedules_early,
            dirty_l2=dirty_l2,
        )


_WorkspaceKey = tuple[int, int | None, int]


@dataclass(frozen=True, slots=True)
class _ShortStepAttention:
    batch: DeviceBatch
    max_queries: int
    is_uniform: bool
    """Whether each sequence has ``max_queries`` tokens, and not fewer."""
    block_size: int
    shape: AttentionShape
    workspaces: dict[_WorkspaceKey, cuda.DecodeWorkspace]
    """By layer group, window and CTAs per SM; all steps share them. The first layer of a step that
    uses a workspace computes its schedule."""
    schedules_early: bool
    """Whether the operation right before a layer's attention makes neither lengths nor blocks."""
    dirty_l2: bool
    """Whether the L2 is full of what the operations before a layer's attention have written."""
    scheduled: set[int | None] = field(default_factory=set)
    """Windows whose schedule was computed in this step."""

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.attend_into(out, q, k_cache, v_cache, how)
        return out

    @property
    def plain_batch(self) -> DeviceBatch | None:
        able = self._is_plain and self.is_uniform and not self.batch.in_parts
        return self.batch if able else None

    def can_store(self, cos_sin: torch.Tensor) -> bool:
        few = len(self.batch.seq_lens) <= MAX_FUSED_BATCH and self._rows <= MAX_FUSED_ROWS
        able = few and self._is_plain and not self.batch.in_parts
        return able and cos_sin.shape[1] == self.shape.head_dim

    def store_and_attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        fresh = self._schedule_once(how.window, q.device)
        caches = k_cache, v_cache
        new = {"new_k": k, "new_v": v, "cos_sin": cos_sin}
        self._decode(out, q, caches, how, wait_first=fresh, **new)
        return out

    def attend_into(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> None:
        fresh = self._schedule_once(how.window, q.device)
        batch = self.batch
        if batch.shared is not None:
            cuda.shared_prefix(
                q,
                k_cache,
                v_cache,
                batch.block_table,
                batch.seq_lens,
                batch.cu_queries,
                shared=batch.shared,
                scale=how.scale,
            )
        self._decode(
            out,
            q,
            (k_cache, v_cache),
            how,
            soft_cap=how.softcap or 0.0,
            wait_first=fresh,
            k_scale=None if how.kv_scales is None else how.kv_scales.k,
            v_scale=None if how.kv_scales is None else how.kv_scales.v,
        )

    def _decode(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        caches: tuple[torch.Tensor, torch.Tensor],
        how: AttentionOptions,
        **options: Any,
    ) -> None:
        """options: the arguments of ``cuda.paged_decode`` that do not follow from the step, the
        scale, the window and the sinks."""
        cuda.paged_decode(
            out,
            q,
            *caches,
            self.batch.block_table,
            self.batch.seq_lens,
            self.batch.cu_queries,
            workspace=self.workspaces[self._workspace_key(how.window)],
            max_queries=self.max_queries,
            scale=how.scale,
            window=how.window or 0,
            sinks=how.sinks,
            shared=self.batch.shared,
            clusters=self._clusters,
            **options,
        )

    @property
    def _is_plain(self) -> bool:
        return self.batch.shared is None and not self.shape.is_fp8

    @property
    def _clusters(self) -> bool:
        return self._is_plain and self.shape.softcap is None

    @property
    def _rows(self) -> int:
        return self.max_queries * self.shape.num_heads // self.shape.num_kv_heads

    def _workspace_key(self, window: int | None) -> _WorkspaceKey:
        ctas = cuda.decode_ctas_per_sm(self.shape.head_dim, self._rows, fp8=self.shape.is_fp8)
        return self.batch.group, window, ctas

    def _schedule_once(self, window: int | None, device: torch.device) -> bool:
        """Compute the schedule for a window, unless a layer before did; returns whether it was
        computed now."""
        if window in self.scheduled:
            return False
        key = self._workspace_key(window)
        if key not in self.workspaces:
            self.workspaces[key] = cuda.DecodeWorkspace.create(
                max(self.shape.max_num_seqs, self.shape.max_num_parts),
                self.shape.num_heads,
                self.shape.head_dim,
                device,
                rows=self._rows,
                fp8=self.shape.is_fp8,
            )
        cuda.decode_schedule(
            self.workspaces[key],
            self.batch.seq_lens,
            self.batch.cu_queries,
            self.batch.block_table,
            block_size=self.block_size,
            num_q_heads=self.shape.num_heads,
            num_kv_heads=self.shape.num_kv_heads,
            head_dim=self.shape.head_dim,
            max_queries=self.max_queries,
            window=window or 0,
            shared=self.batch.shared,
            clusters=self._clusters,
            wait_first=not self.schedules_early,
            dirty_l2=self.dirty_l2,
        )
        self.scheduled.add(window)
        return True


LongStepAttention = HopperStepAttention | CopiedStepAttention | TritonStepAttention


@dataclass(frozen=True, slots=True)
class _MixedStepAttention:
    """A step with long and short chunks: the prefill kernel, then the decode kernel. (Side by side
    on two streams was measured to be slower.)"""

    long: LongStepAttention
    short: _ShortStepAttention

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        out = self.long(q, k_cache, v_cache, how)
        self.short.attend_into(out, q, k_cache, v_cache, how)
        return out
