"""The CUDA kernels: loading them, what they serve, and their workspaces.

``native`` has a function for each op of ``csrc/*/ops.cpp``. Its arguments, with shapes, dtypes and
meaning, are the fields of the struct that ``OP(op, struct)`` names there; an argument that it
does not take is a ValueError.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels import build, ops, reference

MAX_DECODE_ROWS = 32
"""Query tokens times query heads per KV head that one pass of the decode kernel takes."""

_START_INTS = 24  # sizeof(DecodeStart) / 4

_logger = logging.getLogger(__name__)
Ints = npt.NDArray[np.int64]
MAX_SKINNY_TOKENS = 16
SKINNY_WARPS = (4, 8, 16)
"""Of a CTA of a skinny GEMM: how many CTAs fill a GPU evenly depends on the weight's shape."""
DECODE_HEAD_DIMS = frozenset({64, 96, 128, 256})
PREFILL_HEAD_DIMS = frozenset({64, 128, 256})
PREFILL_ROWS = 128
"""Query tokens times query heads per KV head in a tile of the prefill kernel."""
DECODE_DTYPES = frozenset({torch.bfloat16, torch.float16})
FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})


@functools.cache
def load() -> ModuleType:
    """Build if needed and import the module of ``native``. Raises ``build.BuildError``."""
    return import_module(build.library())


def import_module(path: Path) -> ModuleType:
    """The module that ``build.library`` built."""
    loader = ExtensionFileLoader("sluice_kernels", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def is_loaded() -> bool:
    """Whether ``load`` was called."""
    return load.cache_info().currsize > 0


class _Native:
    """The functions of the module, which is loaded when the first of them is asked for."""

    def __getattr__(self, op: str) -> Any:
        if not torch.cuda.is_available():
            raise AttributeError(f"{op} needs a GPU")
        function = getattr(load(), op)
        setattr(self, op, function)  # next time it is found without asking
        return function


native: Any = _Native()


@functools.cache
def available() -> bool:
    """Whether the kernels are built and loaded here, building them if needed."""
    if not torch.cuda.is_available():
        return False
    try:
        load()
    except build.BuildError as error:
        _logger.warning("CUDA kernels are off: %s", error)
        return False
    return True


def max_decode_rows(head_dim: int) -> int:
    """Query tokens times query heads per KV head that one pass of the decode kernel takes."""
    return 16 if head_dim == 256 else MAX_DECODE_ROWS


def decode_ctas_per_sm(head_dim: int, rows: int, *, fp8: bool) -> int:
    """Resident CTAs of the decode kernel, as ``decode_launch.cuh`` has them.

    rows: query tokens times query heads per KV head in one pass. fp8: of the cache; tiles take half
    the memory then, and widening them wants more warps.
    """
    if not fp8:
        return 1 if head_dim == 256 else 2
    if head_dim == 256 or rows > 16:
        return 2
    return 4 if head_dim == 128 and rows <= 8 else 3


def register() -> None:
    """Serve tensors on GPUs with these kernels wherever ``ops`` is called."""
    load()
    for op in (
        *("rms_norm", "silu_mul", "gelu_tanh_mul", "rope_and_cache", "store_latents"),
        *("apply_token_bitmask", "sample_rows"),
    ):
        ops.register(op, "cuda", getattr(native, op), dtypes=FLOATS)
    ops.register("token_logprobs", "cuda", token_logprobs, dtypes=FLOATS)
    ops.register("apply_penalties", "cuda", apply_penalties, dtypes={torch.float32})


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """Scratch memory of ``paged_decode``, shared by all layers and steps of one stream."""

    schedule: torch.Tensor
    """[1 + num_ctas, 24] int32: where each span of work starts, see ``decode_schedule``."""
    tile_ends: torch.Tensor
    """[max_batch] int32, scratch of ``decode_schedule``"""
    partial_out: torch.Tensor
    """[num_ctas, 2, MAX_DECODE_ROWS, head_dim] float32; ones in all bits between launches, which
    say that nobody has handed anything over yet."""
    partial_stats: torch.Tensor
    """[num_ctas, 2, MAX_DECODE_ROWS, head_dim / 32, 2] float32, likewise"""

    @classmethod
    def create(
        cls,
        max_batch: int,
        num_q_heads: int,
        head_dim: int,
        device: torch.device,
        *,
        rows: int = MAX_DECODE_ROWS,
        fp8: bool = False,
    ) -> DecodeWorkspace:
        """Work is dealt out to as many CTAs as can be resident, see ``decode_ctas_per_sm``."""
        load()
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        num_ctas = sms * decode_ctas_per_sm(head_dim, rows, fp8=fp8)
        slots = (num_ctas, 2, MAX_DECODE_ROWS)
        return cls(
            schedule=torch.zeros(1 + num_ctas, _START_INTS, dtype=torch.int32, device=device),
            tile_ends=torch.zeros(max_batch, dtype=torch.int32, device=device),
            partial_out=_nothing_yet(*slots, head_dim, device=device),
            partial_stats=_nothing_yet(*slots, head_dim // 32, 2, device=device),
        )


def _nothing_yet(*shape: int, device: torch.device) -> torch.Tensor:
    """float32 that no kernel computes, as ``csrc/common/exchange.cuh`` says."""
    return torch.full(shape, -1, dtype=torch.int32, device=device).view(torch.float32)


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Keys that several sequences of a decode step have in common, and the results for them.

    A tile is up to ``PREFILL_ROWS`` rows (members of a group times query heads per KV head) by a
    range of the group's keys; each range makes one partial result of every member.
    """

    skipped: torch.Tensor
    """[batch] int32: leading keys that are shared, a multiple of 64 below seq_len; 0 = none."""
    splits: torch.Tensor
    """[batch] int32: into how many ranges they are cut; 0 where none are shared."""
    members: torch.Tensor
    """[batch] int32: the sequences that share, those of a group in a row."""
    num_tiles: torch.Tensor
    """[1] int32"""
    tiles: torch.Tensor
    """[max_tiles, 4] int32: first member (an index of ``members``), how many, first key, end."""
    tile_splits: torch.Tensor
    """[max_tiles] int32: which of its members' partial results a tile makes."""
    partial_out: torch.Tensor
    """[max_splits * batch, num_q_heads, head_dim] float32"""
    partial_stats: torch.Tensor
    """[max_splits * batch, num_q_heads, 2] float32"""


def decode_schedule(
    workspace: DecodeWorkspace,
    *batch: torch.Tensor,
    shared: SharedPrefixes | None = None,
    **options: float,
) -> None:
    """``native.decode_schedule``. batch: seq_lens, cu_queries, block_table. shared: its keys are
    left out, ``shared_prefix`` attends to them."""
    skipped = None if shared is None else shared.skipped
    native.decode_schedule(
        workspace.schedule, workspace.tile_ends, *batch, skipped=skipped, **options
    )


def paged_decode(
    *tensors: torch.Tensor,
    workspace: DecodeWorkspace,
    shared: SharedPrefixes | None = None,
    **options: torch.Tensor | float | None,
) -> None:
    """``native.paged_decode``. tensors: its first seven. shared: ``shared_prefix`` has run."""
    if shared is not None:
        options |= {
            "skipped": shared.skipped,
            "splits": shared.splits,
            "shared_out": shared.partial_out,
            "shared_stats": shared.partial_stats,
        }
    scratch = workspace.schedule, workspace.partial_out, workspace.partial_stats
    native.paged_decode(*tensors, *scratch, **options)


def has_prefill(device: torch.device, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether ``paged_prefill`` serves this: Hopper, 16-bit floats, blocks of 16 or a multiple."""
    hopper = torch.cuda.get_device_capability(device) == (9, 0)
    return hopper and head_dim in PREFILL_HEAD_DIMS and dtype in DECODE_DTYPES


def has_shared_prefix(device: torch.device, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether ``shared_prefix`` serves this."""
    return has_prefill(device, head_dim, dtype) and head_dim <= 128


def shared_prefix(*tensors: torch.Tensor, shared: SharedPrefixes, scale: float) -> None:
    """``native.shared_prefix``. tensors: from q to cu_queries."""
    tiles = shared.tiles, shared.tile_splits, shared.num_tiles, shared.members
    results = shared.partial_out, shared.partial_stats
    native.shared_prefix(*results, *tensors, *tiles, scale=scale)


MAX_TOP_LOGPROBS = 512
"""Most top tokens that the kernel of ``token_logprobs`` reports."""
PENALTY_CTAS = 64
"""Rows that ``apply_penalties`` processes at the same time; each has counters of its own."""


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> reference.Logprobs:
    """See ``reference.token_logprobs``."""
    if num_top > MAX_TOP_LOGPROBS:
        return reference.token_logprobs(logits, token_ids, num_top)
    found: reference.Logprobs = native.token_logprobs(logits, token_ids, num_top)
    return found


def apply_penalties(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    where: torch.Tensor,
    strengths: torch.Tensor,
    *,
    max_len: int,
) -> None:
    """See ``reference.apply_penalties``; only on one stream at a time."""
    counts = _penalty_counts(logits.device, logits.shape[1])
    native.apply_penalties(logits, tokens, where, strengths, counts)


@functools.cache
def _penalty_counts(device: torch.device, vocab_size: int) -> torch.Tensor:
    """The counters of ``apply_penalties``: zero between launches."""
    return torch.zeros(PENALTY_CTAS, vocab_size, dtype=torch.int32, device=device)
