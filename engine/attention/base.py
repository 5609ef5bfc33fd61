"""The attention port: a backend prepares a step once, all layers of the step share the result."""

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
    """What a layer's keys and values, stored in FP8, are multiplied with: [num_kv_heads] float32.

    One tensor twice where keys and values are one.
    """

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a backend must be able to serve."""

    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    max_num_seqs: int
    window: int | None = None
    """The narrowest window of a layer that has one."""
    softcap: float | None = None
    kv_dtype: torch.dtype | None = None
    """Of the cache; None: ``dtype``."""

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
    """Keys to be read once for several sequences, of a backend with ``sharing``."""
    group: int = 0
    """Of the layers that this block table is for."""


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The sequences of one step, as far as attention cares."""

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
    """The widest of the layers that these block tables are for: what is further back may be
    somebody else's by now, and is not read. None: there is nothing like that."""


class StepAttention(Protocol):
    """Attention of one step, callable once per layer."""

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
        kv_scales: KVScales | None = None,
    ) -> torch.Tensor:
        """Attend causally to the cache, the step's own keys included, which it holds already.

        q: [num_tokens, num_q_heads, head_dim], heads contiguous; returns that shape, contiguous.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]; they may be one tensor.
        window: tokens a query sees, its own included; None: all. softcap: scores become
        ``softcap * tanh(score / softcap)``. kv_scales: of a cache in FP8.
        """


class StoringStepAttention(StepAttention, Protocol):
    """Attention that can also do what ``ops.rope_and_cache`` does before others: a launch less."""

    def stores(self, cos_sin: torch.Tensor) -> bool:
        """Whether it can, in this step, with this table."""

    def store_and_attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        scale: float,
        *,
        window: int | None = None,
    ) -> torch.Tensor:
        """As a call after ``ops.rope_and_cache``, but ``q`` stays as it is.

        q, k, v: views of one fused projection, of all the step's tokens. Only for a cache of their
        dtype.
        """


def storing(attend: StepAttention) -> StoringStepAttention | None:
    """``attend`` if it is of that kind. For every layer, where ``isinstance`` takes too long."""
    can = hasattr(attend, "store_and_attend")
    return cast(StoringStepAttention, attend) if can else None


class PlainStepAttention(StepAttention, Protocol):
    """Attention whose whole work another kernel could do."""

    @property
    def plain_batch(self) -> DeviceBatch | None:
        """The sequences of a step with equally many tokens of each, if all that layers tell is the
        whole of it: nothing is shared, and the cache has the queries' dtype."""


def plain_batch(attend: StepAttention) -> DeviceBatch | None:
    """That of ``attend``, if it is of that kind, and has one."""
    batch: DeviceBatch | None = getattr(attend, "plain_batch", None)
    return batch


class AttentionBackend(Protocol):
    """One way to attend. ``block_size_multiple`` must divide the cache's block size."""

    name: str
    block_size_multiple: int

    def prepare(self, batch: AttentionBatch, block_size: int) -> StepAttention:
        """Build whatever the layers of a step share."""


@runtime_checkable
class CapturableBackend(AttentionBackend, Protocol):
    """A backend whose decode steps can live in a CUDA graph."""

    sharing: AttentionShape | None
    """What it serves, if ``prepare_decode`` takes a batch with ``shared``."""

    max_decode_queries: int
    """Tokens of a sequence that ``prepare_decode`` takes."""

    def prepare_decode(
        self, batch: DeviceBatch, block_size: int, num_queries: int = 1
    ) -> StepAttention:
        """Like ``prepare`` for so many tokens of each sequence, without looking at the data."""


@runtime_checkable
class PromptBackend(AttentionBackend, Protocol):
    """A backend whose prompts can live in a CUDA graph, too, where it ``captures_prompts``."""

    @property
    def captures_prompts(self) -> bool: ...

    def prepare_prompt(self, batch: DeviceBatch, max_num_tokens: int) -> StepAttention:
        """Attention of at most so many tokens of the batch's first sequence, and more than so many
        minus 128, without looking at the data. It leaves the rows of all other tokens as it finds
        them, whatever they hold.

        What it needs besides is made by the first call for ``max_num_tokens``, which must not be
        captured.
        """
