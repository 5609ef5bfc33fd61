"""The interface of attention backends: each prepares a step once, for all its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from kernels.cuda import SharedPrefixes


FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class KVScales:
    """The scales of a layer's keys and values in an FP8 cache: [num_kv_heads] float32 each.

    A key is the stored number times its head's scale. Where one tensor caches both (MLA), ``k`` and
    ``v`` are the same scales.
    """

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What a layer's attention does with the products of queries and keys."""

    scale: float
    window: int | None = None
    """Tokens that a query sees, its own included; None: all."""
    softcap: float | None = None
    """Scores become ``softcap * tanh(score / softcap)``."""
    kv_scales: KVScales | None = None
    """Of a cache in FP8."""
    sinks: torch.Tensor | None = None
    """[num_q_heads] float32: scores that take part in the softmax and have no value. Only backends
    that do not refuse them get them (``AttentionShape.has_sinks``)."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The model's attention and its cache, as far as the choice of a backend depends on them."""

    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    max_num_seqs: int
    window: int | None = None
    """The narrowest window of a layer that has one."""
    softcap: float | None = None
    has_sinks: bool = False
    kv_dtype: torch.dtype | None = None
    """Of the cache; None: ``dtype``."""
    max_num_parts: int = 0
    """The most sequences of a step where parts count, see ``DeviceBatch.in_parts``; 0: no sequence
    is cut into parts."""

    @property
    def is_fp8(self) -> bool:
        """Keys and values are stored in FP8."""
        return self.kv_dtype == FP8


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """The sequences of one step in device memory: nothing here needs the host."""

    seq_lens: torch.Tensor
    """[batch] int32, the step's tokens included; 0 for padding."""
    cu_queries: torch.Tensor
    """[batch + 1] int32: prefix sums of the step's tokens."""
    block_table: torch.Tensor
    """[batch, max_blocks] int32; entries past a sequence's end mean nothing."""
    shared: SharedPrefixes | None = None
    """Prefixes that several sequences have in common, to be read once; only for a backend with
    ``sharing``."""
    group: int = 0
    """The layer group that ``block_table`` belongs to."""
    in_parts: bool = False
    """Whether some sequences are parts of one, which read keys of each other's tokens: these must
    be stored before attention begins."""


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """What attention needs to know of the sequences of one step."""

    query_lens: npt.NDArray[np.int64]
    """[batch], on the host: the step's tokens of each sequence, at least 1."""
    seq_lens: npt.NDArray[np.int64]
    """[batch], on the host: known tokens of each sequence, the step's included."""
    rows: npt.NDArray[np.int64]
    """[batch], on the host: each sequence's row of the block table."""
    block_table: torch.Tensor
    """[num_rows, max_blocks] int32; entries past a sequence's end mean nothing."""
    on_device: DeviceBatch | None = None
    """The same for backends that read device memory; None where there are no CUDA kernels."""
    window: int | None = None
    """The widest window of the layers that use these block tables. Blocks further back may belong
    to other requests by now, and must not be read. None: no block was given back."""


class StepAttention(Protocol):
    """Attention of one step, callable once per layer."""

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        """Attend causally to the cache, the step's own keys included, which it holds already.

        q: [num_tokens, num_q_heads, head_dim], heads contiguous; returns that shape, contiguous.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]; they may be one tensor.
        """


class FusedRotationAttention(StepAttention, Protocol):
    """Attention whose kernel can also do the work of ``ops.rope_and_cache``: one launch less."""

    def can_store(self, cos_sin: torch.Tensor) -> bool:
        """Whether ``store_and_attend`` serves this step, with this table of the rotation."""

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
        """Rotate queries and keys, store keys and values in the cache, and attend.

        The result is that of ``ops.rope_and_cache`` and a call, but ``q`` is left unrotated. q, k,
        v: [num_tokens, heads, head_dim], views of one fused projection of all the step's tokens;
        the cache has their dtype. The other arguments are as for a call.
        """


def fused_rotation(attend: StepAttention) -> FusedRotationAttention | None:
    """``attend`` if it is of that kind. (``isinstance`` with a protocol takes too long: this is
    asked for every layer.)"""
    can = hasattr(attend, "store_and_attend")
    return cast(FusedRotationAttention, attend) if can else None


def plain_batch(attend: StepAttention) -> DeviceBatch | None:
    """The sequences of a decode step that another kernel could attend to instead, for instance one
    for all layers: equally many tokens of each, no shared prefixes, and a cache of the queries'
    dtype.

    None for other steps, and for backends that do not offer it.
    """
    batch: DeviceBatch | None = getattr(attend, "plain_batch", None)
    return batch


class AttentionBackend(Protocol):
    """One way to attend. ``block_size_multiple`` must divide the cache's block size."""

    name: str
    block_size_multiple: int

    def prepare(self, batch: AttentionBatch, block_size: int) -> StepAttention:
        """Build what the layers of a step share: masks, tiles, schedules."""


@runtime_checkable
class CapturableBackend(AttentionBackend, Protocol):
    """A backend whose decode steps can live in a CUDA graph."""

    sharing: AttentionShape | None
    """The shape that it was made for, if ``prepare_decode`` takes batches with ``shared``; else
    None."""

    max_decode_queries: int
    """The most tokens of a sequence that ``prepare_decode`` takes."""

    def prepare_decode(
        self, batch: DeviceBatch, block_size: int, num_queries: int = 1
    ) -> StepAttention:
        """Like ``prepare`` for ``num_queries`` tokens of each sequence. It reads nothing from the
        device, so a graph that was captured with it serves any lengths."""


@runtime_checkable
class PromptBackend(AttentionBackend, Protocol):
    """A backend whose attention of a prompt can be captured in a CUDA graph."""

    @property
    def captures_prompts(self) -> bool:
        """Whether it can be for the shape that the backend was made for."""
        ...

    def prepare_prompt(self, batch: DeviceBatch, max_num_tokens: int) -> StepAttention:
        """Attention of the batch's first sequence, of whose tokens the step computes at most
        ``max_num_tokens`` and more than ``max_num_tokens - 128``. It reads nothing from the device.
        Rows of the output that belong to other tokens are not written.

        The first call for a ``max_num_tokens`` allocates memory and must not be captured.
        """
