"""Cases for paged attention: scattered and poisoned caches, and the answers in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels import reference


@dataclass
class Case:
    """One batch: the paged inputs and the float64 answer."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    cu_queries: torch.Tensor
    expected: torch.Tensor
    max_queries: int
    scales: dict[str, Any]
    """k_scale and v_scale of caches in FP8."""


def make_case(
    seq_lens: list[int],
    query_lens: list[int],
    *,
    heads: int = 32,
    kv_heads: int = 8,
    dim: int = 128,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    window: int = 0,
    soft_cap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: float = 1.0,
    fp8: bool = False,
    seed: int = 0,
    device: str = "cuda",
) -> Case:
    """fp8: the caches are, with scales of each head; the answer follows from what they hold."""
    gen = torch.Generator(device=device).manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, device=device).to(dtype)

    needed = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(needed) + 7
    order = torch.randperm(num_blocks, generator=gen, device=device).to(torch.int32)
    # Unused blocks, slots past a sequence's end and table entries past it are all poison.
    k_cache = torch.full((num_blocks, block_size, kv_heads, dim), float("nan"), device=device)
    k_cache = k_cache.to(torch.float8_e4m3fn if fp8 else dtype)
    v_cache = k_cache.clone()
    scales = fp8_scales(kv_heads, device) if fp8 else {}
    table = torch.full((len(seq_lens), max([*needed, 1]) + 3), 2**30, dtype=torch.int32)
    table = table.to(device)
    num_tokens = sum(query_lens)
    q = randn(num_tokens, heads, dim) * q_scale
    expected = torch.zeros(num_tokens, heads, dim, dtype=torch.float64, device=device)
    taken = row = 0
    for i, (length, queries) in enumerate(zip(seq_lens, query_lens, strict=True)):
        k, v = randn(length, kv_heads, dim), randn(length, kv_heads, dim)
        blocks = order[taken : taken + needed[i]]
        taken += needed[i]
        table[i, : needed[i]] = blocks
        if length:
            at = torch.arange(length, device=device)
            slots = blocks[at // block_size].long() * block_size + at % block_size
            reference.store_heads(k_cache, slots, k, scales.get("k_scale"))
            reference.store_heads(v_cache, slots, v, scales.get("v_scale"))
            if fp8:
                k = stored_float64(k, scales["k_scale"])
                v = stored_float64(v, scales["v_scale"])
            expected[row : row + queries] = attention_float64(
                q[row : row + queries], k, v, window, soft_cap, alibi_slopes, sinks
            )
        row += queries
    cu = torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0).to(device, torch.int32)
    lens = torch.tensor(seq_lens, dtype=torch.int32, device=device)
    return Case(q, k_cache, v_cache, table, lens, cu, expected, max([*query_lens, 1]), scales)


@dataclass
class NewKeys:
    """A case's queries, newest keys and values as their projection makes them: not rotated, not in
    the cache."""

    arguments: dict[str, torch.Tensor]
    """new_k, new_v and cos_sin"""
    slots: torch.Tensor
    stored: tuple[torch.Tensor, torch.Tensor]
    """The caches as they are to be."""

    @classmethod
    def of(cls, case: Case, window: int = 0, sinks: torch.Tensor | None = None) -> NewKeys:
        """Takes what is new out of the case's cache; the answer becomes that of rotated heads."""
        device, dim = case.q.device, case.q.shape[2]
        counts = case.cu_queries.diff().long()
        row = torch.repeat_interleave(counts)
        first = (case.seq_lens - counts)[row]
        positions = first + torch.arange(len(row), device=device) - case.cu_queries[:-1][row]
        live = case.seq_lens[row] > 0
        block_size, kv_heads = case.k_cache.shape[1:3]
        at = torch.where(live, positions, 0)
        blocks = case.block_table[row, at // block_size].long()
        slots = torch.where(live, blocks * block_size + at % block_size, -1)
        k, v = (cache.view(-1, kv_heads, dim)[slots] for cache in (case.k_cache, case.v_cache))
        heads = case.q.shape[1], kv_heads, kv_heads
        fused = torch.cat((case.q, k, v), 1)
        case.q, new_k, new_v = fused.split_with_sizes(heads, 1)
        gen = torch.Generator(device=device).manual_seed(1)
        angles = torch.rand(int(case.seq_lens.max()), dim // 2, generator=gen, device=device) * 6.3
        cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
        q = case.q.clone()
        reference.rope_and_cache(q, k, v, case.k_cache, case.v_cache, cos_sin, at, slots)
        for i, length in enumerate(case.seq_lens.tolist()):
            known = torch.arange(length, device=device)
            used = case.block_table[i, known // block_size].long() * block_size + known % block_size
            queries = slice(int(case.cu_queries[i]), int(case.cu_queries[i + 1]))
            if length:
                all_k, all_v = case.k_cache.flatten(0, 1)[used], case.v_cache.flatten(0, 1)[used]
                case.expected[queries] = attention_float64(
                    q[queries], all_k, all_v, window, sinks=sinks
                )
        stored = case.k_cache.clone(), case.v_cache.clone()
        slots = slots[slots >= 0]
        for cache in (case.k_cache, case.v_cache):
            cache.view(-1, kv_heads, dim)[slots] = float("nan")
        return cls({"new_k": new_k, "new_v": new_v, "cos_sin": cos_sin}, slots, stored)

    def check_stored(self, case: Case) -> None:
        """Nothing but the new keys and values has changed in the case's cache."""
        k, v = (cache.flatten(0, 1) for cache in (case.k_cache, case.v_cache))
        stored_k, stored_v = (cache.flatten(0, 1) for cache in self.stored)
        assert torch.equal(v[self.slots], stored_v[self.slots])
        # The last bit depends on whether a product is rounded before it is added.
        torch.testing.assert_close(k[self.slots], stored_k[self.slots], rtol=2**-7, atol=2**-9)
        stored_k[self.slots] = k[self.slots]
        torch.testing.assert_close(k, stored_k, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(v, stored_v, rtol=0, atol=0, equal_nan=True)


def fp8_scales(kv_heads: int, device: str) -> dict[str, torch.Tensor]:
    """They differ by head and between keys and values, and are no powers of two."""
    return {
        "k_scale": torch.linspace(0.011, 0.07, kv_heads, device=device),
        "v_scale": torch.linspace(0.09, 0.013, kv_heads, device=device),
    }


def stored_float64(heads: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    stored = reference.quantize_heads(heads, scale).float()
    return stored.double() * scale.double().unsqueeze(-1)


def attention_float64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int,
    soft_cap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    queries, heads, dim = q.shape
    keys, group = k.shape[0], heads // k.shape[1]
    k64 = k.double().repeat_interleave(group, 1)
    v64 = v.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k64) * dim**-0.5
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    at = torch.arange(keys - queries, keys, device=q.device)[:, None]
    key = torch.arange(keys, device=q.device)[None]
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.double()[:, None, None] * (key - at)
    seen = key <= at
    if window:
        seen &= key > at - window
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        sink = sinks.double()[:, None, None].expand(heads, queries, 1)
        scores = torch.cat((scores, sink), -1)
    weights = scores.softmax(-1)[..., :keys]
    return torch.einsum("hqk,khd->qhd", weights, v64)


def run(
    case: Case,
    *,
    min_span: int = 1,
    clusters: bool = False,
    dirty_l2: bool = False,
    **options: Any,
) -> torch.Tensor:
    from kernels import cuda

    workspace = cuda.DecodeWorkspace.create(
        case.seq_lens.numel(),
        case.q.shape[1],
        case.q.shape[2],
        case.q.device,
        rows=case.max_queries * case.q.shape[1] // case.k_cache.shape[2],
        fp8=bool(case.scales),
    )
    window = int(options.get("window", 0))
    cuda.decode_schedule(
        workspace,
        case.seq_lens,
        case.cu_queries,
        case.block_table,
        block_size=case.k_cache.shape[1],
        num_q_heads=case.q.shape[1],
        num_kv_heads=case.k_cache.shape[2],
        head_dim=case.q.shape[2],
        max_queries=case.max_queries,
        window=window,
        min_span=min_span,
        clusters=clusters,
        dirty_l2=dirty_l2,
    )
    out = torch.full(case.q.shape, float("nan"), dtype=case.q.dtype, device=case.q.device)
    for _ in range(2):  # twice: what was handed over must be gone
        out.fill_(float("nan"))
        cuda.paged_decode(
            out,
            case.q,
            case.k_cache,
            case.v_cache,
            case.block_table,
            case.seq_lens,
            case.cu_queries,
            workspace=workspace,
            scale=case.q.shape[2] ** -0.5,
            max_queries=case.max_queries,
            clusters=clusters,
            **case.scales,
            **options,
        )
    torch.cuda.synchronize()
    for handed in (workspace.partial_out, workspace.partial_stats):
        assert (handed.view(torch.int32) == -1).all()
    return out


def check(case: Case, **options: Any) -> None:
    out = run(case, **options)
    live = torch.repeat_interleave(case.seq_lens > 0, case.cu_queries.diff().long())
    got, want = out[live].double(), case.expected[live]
    error = (got - want).norm() / want.norm()
    limit = 6e-3 if out.dtype == torch.bfloat16 else 1e-3
    assert error < limit, f"relative error {error:.2e}"
    assert torch.isnan(out[~live]).all(), "padding rows must stay untouched"


RAGGED = [1, 15, 16, 17, 63, 64, 65, 127, 1000, 4097]


def check_beside(case: Case, q: torch.Tensor, workspace: Any, **options: Any) -> None:
    """Of one token of each sequence, beside the kernel that has just been launched."""
    from kernels import cuda

    out = torch.empty(q.shape, device="cuda", dtype=q.dtype)
    cuda.paged_decode(
        out,
        q,
        case.k_cache,
        case.v_cache,
        case.block_table,
        case.seq_lens,
        case.cu_queries,
        workspace=workspace,
        scale=128**-0.5,
        **{"wait_first": False, **options},
    )
    error = (out.double() - case.expected).norm() / case.expected.norm()
    assert error < 6e-3


def scheduled(case: Case) -> Any:
    """A workspace for ``check_beside``."""
    from kernels import cuda

    workspace = cuda.DecodeWorkspace.create(len(case.seq_lens), 32, 128, case.q.device)
    schedule(workspace, case)
    return workspace


def schedule(
    workspace: Any, case: Case, *, wait_first: bool = True, dirty_l2: bool = False
) -> None:
    from kernels import cuda

    cuda.decode_schedule(
        workspace,
        case.seq_lens,
        case.cu_queries,
        case.block_table,
        block_size=16,
        num_q_heads=32,
        num_kv_heads=8,
        head_dim=128,
        wait_first=wait_first,
        dirty_l2=dirty_l2,
    )
