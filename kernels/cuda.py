"""Python face of the CUDA kernels: loading, workspaces and the ops' contracts."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels import build, cuda_sampling, ops

MAX_DECODE_ROWS = 32
"""Query tokens times query heads per KV head that one pass of the decode kernel takes."""

_START_INTS = 24  # sizeof(DecodeStart) / 4

_logger = logging.getLogger(__name__)
Ints = npt.NDArray[np.int64]
MAX_SKINNY_TOKENS = 16
SKINNY_WARPS = (4, 8, 16)
"""Of a CTA of a skinny product: how many CTAs fill a GPU evenly depends on the weight's shape."""
DECODE_HEAD_DIMS = frozenset({64, 96, 128, 256})
PREFILL_HEAD_DIMS = frozenset({64, 128, 256})
PREFILL_ROWS = 128
"""Query tokens times query heads per KV head in a tile of the prefill kernel."""
DECODE_DTYPES = frozenset({torch.bfloat16, torch.float16})
FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})


@functools.cache
def load() -> None:
    """Build if needed and register ``torch.ops.sluice_cuda``. Raises ``build.BuildError``."""
    torch.ops.load_library(str(build.library()))  # type: ignore[no-untyped-call]


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
        rms_norm,
        silu_mul,
        gelu_tanh_mul,
        rope_and_cache,
        store_latents,
        cuda_sampling.apply_token_bitmask,
        cuda_sampling.sample_rows,
        cuda_sampling.token_logprobs,
    ):
        ops.register(op.__name__, "cuda", op, dtypes=FLOATS)
    penalties = cuda_sampling.apply_penalties
    ops.register("apply_penalties", "cuda", penalties, dtypes={torch.float32})


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
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor,
    block_table: torch.Tensor,
    *,
    block_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_queries: int = 1,
    window: int = 0,
    min_span: int = 1,
    shared: SharedPrefixes | None = None,
    clusters: bool = False,
    wait_first: bool = True,
    dirty_l2: bool = False,
) -> None:
    """Deal out the work of a step; once per step and kind of layer, shared by all its layers.

    seq_lens: [batch] int32, the step's query tokens included, 0 for padding.
    cu_queries: [batch + 1] int32, prefix sums of the query tokens. window: 0 = unlimited.
    block_table: [batch, max_blocks] int32, the one ``paged_decode`` will get.
    min_span: KV tiles (of 64 tokens) that a CTA takes at least.
    shared: the keys in it are left out, ``shared_prefix`` attends to them.
    clusters: where lengths are alike, the CTAs that share a sequence and group of heads may merge
    their results without memory: pairs where these fill the GPU, more where the GPU has room for
    twice as many; on Hopper, up to 16 rows (queries times query heads per KV head).
    wait_first: False lets it begin before the operation right before it has ended; that one then
    must make nothing that it reads.
    dirty_l2: what was written before attention fills the L2, as beside a prompt's chunk of 2,048
    tokens. Many keys push it out at once, those of long sequences always; others keep out of the
    way of what is there.
    """
    torch.ops.sluice_cuda.decode_schedule(
        workspace.schedule,
        workspace.tile_ends,
        seq_lens,
        cu_queries,
        block_table,
        block_size,
        num_q_heads,
        num_kv_heads,
        head_dim,
        max_queries,
        min_span,
        window,
        None if shared is None else shared.skipped,
        clusters,
        wait_first,
        dirty_l2,
    )


def paged_decode(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor,
    workspace: DecodeWorkspace,
    *,
    scale: float,
    max_queries: int = 1,
    window: int = 0,
    soft_cap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    shared: SharedPrefixes | None = None,
    wait_first: bool = True,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    new_k: torch.Tensor | None = None,
    new_v: torch.Tensor | None = None,
    cos_sin: torch.Tensor | None = None,
    clusters: bool = False,
) -> None:
    """Causal attention of up to ``max_queries`` last tokens of each sequence, into ``out``.

    q, out: [num_tokens, num_q_heads, head_dim] bfloat16 or float16; head_dim 64, 96, 128 or 256.
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], block_size a multiple of 16.
    block_table: [batch, max_blocks] int32. ``decode_schedule`` must have run with the same lengths,
    heads, max_queries, window, shared and clusters. Rows of padding sequences are left untouched.
    shared: ``shared_prefix`` has run; without a window, a soft cap, slopes or FP8. wait_first:
    False lets it begin before the operation right before it has ended; that one then must make
    nothing but the queries and the step's own keys and values. k_scale, v_scale: [num_kv_heads]
    float32, of caches in float8_e4m3fn. scale: positive.

    new_k, new_v, cos_sin: the step's own keys and values are not in the cache yet. They and ``q``
    are views of one fused projection, and it does what ``rope_and_cache`` would have done before,
    but leaves ``q`` as it is: the tokens of a sequence stand at positions 0, 1, 2 and so on,
    cos_sin is [max_positions, head_dim]. Without FP8, shared, soft_cap and slopes. clusters:
    without shared, soft_cap and slopes.
    """
    torch.ops.sluice_cuda.paged_decode(
        out,
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        cu_queries,
        workspace.schedule,
        workspace.partial_out,
        workspace.partial_stats,
        alibi_slopes,
        None if shared is None else shared.skipped,
        None if shared is None else shared.splits,
        None if shared is None else shared.partial_out,
        None if shared is None else shared.partial_stats,
        max_queries,
        window,
        scale,
        soft_cap,
        wait_first,
        k_scale,
        v_scale,
        new_k,
        new_v,
        cos_sin,
        clusters,
    )


def has_prefill(device: torch.device, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether ``paged_prefill`` serves this: Hopper, 16-bit floats, blocks of 16 or a multiple."""
    hopper = torch.cuda.get_device_capability(device) == (9, 0)
    return hopper and head_dim in PREFILL_HEAD_DIMS and dtype in DECODE_DTYPES


def paged_prefill(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor,
    tiles: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> None:
    """Causal attention of any number of query tokens, of the sequences in ``tiles``, into ``out``.

    As ``paged_decode``, where ``has_prefill``. tiles: [num_tiles, 2] int32 of ``tiles.tile_list``
    with ``PREFILL_ROWS``; other sequences' tokens are left untouched, nothing past a sequence's
    end is read.
    """
    torch.ops.sluice_cuda.paged_prefill(
        out,
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        cu_queries,
        tiles,
        window,
        scale,
        soft_cap,
    )


def has_shared_prefix(device: torch.device, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether ``shared_prefix`` serves this."""
    return has_prefill(device, head_dim, dtype) and head_dim <= 128


def shared_prefix(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor,
    shared: SharedPrefixes,
    *,
    scale: float,
) -> None:
    """Attend to the shared keys, reading them once for all members of a group.

    As ``paged_decode``, which adds the rest; one query token a sequence. cu_queries: of row i of
    the batch the query token is cu_queries[i].
    """
    torch.ops.sluice_cuda.shared_prefix(
        shared.partial_out,
        shared.partial_stats,
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        cu_queries,
        shared.tiles,
        shared.tile_splits,
        shared.num_tiles,
        shared.members,
        scale,
    )


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    inner: torch.Tensor | None = None,
) -> torch.Tensor:
    """See ``reference.rms_norm``; rows are multiples of 16 bytes and at most 64 KiB."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.ops.sluice_cuda.rms_norm(out, x, residual, weight, eps, inner)
    return out


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """See ``reference.silu_mul``; rows are multiples of 16 bytes."""
    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    torch.ops.sluice_cuda.silu_mul(out, x)
    return out


def gelu_tanh_mul(x: torch.Tensor) -> torch.Tensor:
    """See ``reference.gelu_tanh_mul``; rows are multiples of 16 bytes."""
    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    torch.ops.sluice_cuda.gelu_tanh_mul(out, x)
    return out


def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Rotate q in place and k on its way into the paged cache, next to v.

    q, k, v: [tokens, heads, head_dim], views of one fused projection.
    cos_sin: [max_positions, rotary_dim] float32, cosines then sines (halves convention).
    positions, slots: [tokens] int64; slot = block * block_size + offset, -1 writes nothing.
    q_norm, k_norm: [head_dim] weights of a per-head RMSNorm before the rotation. k_scale, v_scale:
    of caches in FP8, see ``reference.quantize_heads``.
    """
    torch.ops.sluice_cuda.rope_and_cache(
        q, k, v, k_cache, v_cache, cos_sin, positions, slots, q_norm, k_norm, eps, k_scale, v_scale
    )


def store_latents(
    q: torch.Tensor,
    q_turned: torch.Tensor,
    kv: torch.Tensor,
    norm: torch.Tensor,
    cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    eps: float,
    interleaved: bool,
    scale: torch.Tensor | None = None,
) -> None:
    """See ``reference.store_latents``; q and kv are contiguous."""
    torch.ops.sluice_cuda.store_latents(
        q, q_turned, kv, norm, cache, cos_sin, positions, slots, eps, interleaved, scale
    )


def dequantize_blocks(
    k_out: torch.Tensor,
    v_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    blocks: torch.Tensor,
    *,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Copies, in 16 bits, of blocks of a cache in FP8: ``out[i] = cache[blocks[i]] * scale``.

    k_out, v_out: [at least num_blocks, block_size, num_kv_heads, head_dim] bfloat16 or float16;
    blocks: [num_blocks] int32.
    """
    torch.ops.sluice_cuda.dequantize_blocks(
        k_out, v_out, k_cache, v_cache, k_scale, v_scale, blocks
    )


def copy_blocks(
    tensors: torch.Tensor,
    rows: torch.Tensor,
    blocks: torch.Tensor,
    *,
    out: bool,
    max_ctas: int,
) -> None:
    """Copy blocks of a cache of many tensors to rows (``out``) or back, all in one launch.

    tensors: [num_tensors, 3] int64: the address of each, the bytes of one of its blocks, and where
    in a row they go. rows: [num_copies] int64, addresses of device memory or of ``mapped_address``;
    blocks: [num_copies] int32. All in multiples of 16 bytes. max_ctas: how much of the GPU it may
    take.
    """
    torch.ops.sluice_cuda.copy_blocks(tensors, rows, blocks, out, max_ctas)


def copy_leading_slots(tensors: torch.Tensor, copies: torch.Tensor, *, block_size: int) -> None:
    """Copy the first slots of blocks to other blocks, in each tensor of a cache, all in one launch.

    tensors: [num_tensors, 2] int64: the address of each, and the bytes of one of its slots, both
    multiples of 16. copies: [num_copies, 3] int32: block to read, block to write, number of slots.
    No block that is written is read.
    """
    torch.ops.sluice_cuda.copy_leading_slots(tensors, copies, block_size)


def mapped_address(host: torch.Tensor) -> int:
    """Where kernels find pinned host memory."""
    address: int = torch.ops.sluice_cuda.mapped_address(host)
    return address


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    warps: int = 8,
) -> torch.Tensor:
    """``x @ weight.T + bias`` of at most ``MAX_SKINNY_TOKENS`` rows, read at the speed of memory.

    x: [tokens, k] bfloat16 or float16; weight: [features, k], k a multiple of 64, features of 16.
    gated: the features are [gate | up], and the result is ``silu(gate) * up``. warps: of
    ``SKINNY_WARPS``.
    """
    out = product_output(x, weight, gated)
    torch.ops.sluice_cuda.skinny_linear(out, x, weight, bias, gated, warps)
    return out


def product_output(x: torch.Tensor, weight: torch.Tensor, gated: bool) -> torch.Tensor:
    """Memory for the result of a product."""
    features = weight.shape[0] // 2 if gated else weight.shape[0]
    return x.new_empty(x.shape[0], features)


def step_inputs(
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    rows: torch.Tensor,
    computed: torch.Tensor,
    cu_queries: torch.Tensor,
    *,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    seq_lens: torch.Tensor,
    batch_table: torch.Tensor,
    block_size: int,
    sent_rows: torch.Tensor | None = None,
) -> None:
    """Look up the tokens ``[computed, computed + queries)`` of each of ``rows``.

    tokens: [num_rows, max_len] int64; block_table: [num_rows, max_blocks] int32. rows (-1 =
    padding), computed: [batch] int32, on the device, or both in the host's memory, and sent along;
    cu_queries: [batch + 1] int32. Written: token_ids, positions, slots [num_tokens] int64; seq_lens
    [batch] int32; batch_table [batch, max_blocks] int32; sent_rows, if any, [batch] int32: the
    rows.
    """
    torch.ops.sluice_cuda.step_inputs(
        tokens,
        block_table,
        rows,
        computed,
        cu_queries,
        token_ids,
        positions,
        slots,
        seq_lens,
        batch_table,
        block_size,
        sent_rows,
    )
