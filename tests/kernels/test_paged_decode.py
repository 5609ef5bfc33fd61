"""The decode kernel against attention in float64, on scattered and poisoned caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels import reference

pytestmark = pytest.mark.gpu


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
                q[row : row + queries], k, v, window, soft_cap, alibi_slopes
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
    def of(cls, case: Case, window: int = 0) -> NewKeys:
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
                    q[queries], all_k, all_v, window, 0.0, None
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
    soft_cap: float,
    alibi_slopes: torch.Tensor | None,
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
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v64)


def run(case: Case, *, min_span: int = 1, clusters: bool = False, **options: Any) -> torch.Tensor:
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
            workspace,
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
def test_ragged_lengths(dim: int, dtype: torch.dtype) -> None:
    check(make_case(RAGGED, [1] * len(RAGGED), dim=dim, dtype=dtype))


@pytest.mark.parametrize("queries", [1, 2, 3, 4, 5, 8])
def test_several_query_tokens(queries: int) -> None:
    lens = [max(n, queries) for n in RAGGED]
    check(make_case(lens, [queries] * len(lens), seed=queries))


def test_mixed_query_counts_and_padding() -> None:
    check(make_case([5, 0, 200, 77, 0, 3000], [1, 1, 8, 4, 2, 3]))


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (12, 2), (14, 2), (32, 1), (64, 8)])
@pytest.mark.parametrize("queries", [1, 4])
def test_head_groups(heads: int, kv_heads: int, queries: int) -> None:
    check(make_case([300, 2049, 64], [queries] * 3, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("block_size", [16, 32, 256])
def test_block_sizes(block_size: int) -> None:
    check(make_case([300, 2049, 64, 511], [1, 2, 1, 4], block_size=block_size))


@pytest.mark.parametrize("window", [1, 16, 100, 1024])
@pytest.mark.parametrize("queries", [1, 4])
def test_sliding_window(window: int, queries: int) -> None:
    lens = [5, 100, 101, 1024, 3000]
    case = make_case(lens, [queries] * len(lens), window=window)
    check(case, window=window)


@pytest.mark.parametrize("min_span", [2, 5, 64])
def test_minimum_span(min_span: int) -> None:
    check(make_case([300, 2049, 64, 9000], [1, 4, 8, 1]), min_span=min_span)


def test_soft_cap() -> None:
    check(make_case([300, 2049], [1, 4], soft_cap=5.0), soft_cap=5.0)


def test_alibi() -> None:
    slopes = torch.logspace(-1, -4, 32, device="cuda")
    check(make_case([300, 2049], [1, 4], alibi_slopes=slopes), alibi_slopes=slopes)


def test_one_long_sequence_is_split() -> None:
    check(make_case([65_536], [1]))
    check(make_case([40_000, 1], [4, 1]))


def test_many_sequences() -> None:
    gen = torch.Generator().manual_seed(1)
    lens = torch.randint(1, 700, (1500,), generator=gen).tolist()
    check(make_case(lens, [1] * len(lens), heads=8, kv_heads=2))


def test_random_batches() -> None:
    gen = torch.Generator().manual_seed(2)
    for seed in range(30):
        batch = int(torch.randint(1, 40, (1,), generator=gen))
        queries = torch.randint(1, 9, (batch,), generator=gen).tolist()
        lens = [q + int(torch.randint(0, 2500, (1,), generator=gen)) for q in queries]
        check(make_case(lens, queries, seed=seed))


def test_strided_rows_of_a_fused_projection() -> None:
    case = make_case([100, 200], [1, 1])
    fused = torch.zeros(2, 48 * 128, device="cuda", dtype=torch.bfloat16)
    fused[:, : 32 * 128] = case.q.view(2, -1)
    case.q = fused[:, : 32 * 128].view(2, 32, 128)
    check(case)


def test_replays_in_a_cuda_graph_with_new_lengths() -> None:
    from kernels import cuda

    small = make_case([64, 300, 0, 0], [1, 1, 1, 1])
    large = make_case([4000, 5, 900, 17], [1, 1, 1, 1], seed=1)
    lens, cu = small.seq_lens.clone(), small.cu_queries.clone()
    width = max(small.block_table.shape[1], large.block_table.shape[1])
    table = torch.zeros(4, width, dtype=torch.int32, device="cuda")
    q, out = small.q.clone(), torch.empty_like(small.q)
    workspace = cuda.DecodeWorkspace.create(4, 32, 128, q.device)

    def step() -> None:
        cuda.decode_schedule(
            workspace, lens, cu, table, block_size=16, num_q_heads=32, num_kv_heads=8, head_dim=128
        )
        cuda.paged_decode(
            out, q, large.k_cache, large.v_cache, table, lens, cu, workspace, scale=128**-0.5
        )

    table[:, : large.block_table.shape[1]] = large.block_table
    lens.copy_(torch.tensor([16, 5, 0, 0], dtype=torch.int32))
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    lens.copy_(large.seq_lens)
    q.copy_(large.q)
    graph.replay()
    torch.cuda.synchronize()
    error = (out.double() - large.expected).norm() / large.expected.norm()
    assert error < 6e-3


def test_not_a_number_is_handed_over() -> None:
    """What a CTA hands over to another one is never the NaN that means that nothing is there."""
    case = make_case([2000, 64], [1, 1])
    case.v_cache.view(torch.int16).fill_(-1)
    assert torch.isnan(run(case)).all()
    case.q.view(torch.int16).fill_(-1)
    assert torch.isnan(run(case)).all()


def test_wrong_arguments_are_refused_by_name() -> None:
    case = make_case([64], [1])
    case.k_cache = case.k_cache.to(torch.float16)
    with pytest.raises(RuntimeError, match="caches must be"):
        run(case)
    case = make_case([64], [1])
    case.seq_lens = case.seq_lens.long()
    with pytest.raises(RuntimeError, match="seq_lens must be"):
        run(case)


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
        workspace,
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


def schedule(workspace: Any, case: Case, *, wait_first: bool = True) -> None:
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
    )


def test_begins_before_the_newest_keys_are_written() -> None:
    """With ``wait_first=False`` it runs beside the kernel that writes them and the queries."""
    from kernels import cuda

    lens = [1, 16, 17, 300, 2049, *range(500, 530)]
    case = make_case(lens, [1] * len(lens))
    batch = len(lens)
    last = case.seq_lens.long() - 1
    slots = case.block_table.gather(1, (last // 16)[:, None])[:, 0].long() * 16 + last % 16
    k, v = case.k_cache.view(-1, 8, 128)[slots], case.v_cache.view(-1, 8, 128)[slots]
    fused = torch.cat((case.q, k, v), 1)
    unrotated = torch.cat((torch.ones(1, 64), torch.zeros(1, 64)), 1).cuda()
    positions = torch.zeros(batch, dtype=torch.int64, device="cuda")
    workspace = scheduled(case)
    for _ in range(20):
        case.k_cache.view(-1, 8, 128)[slots] = float("nan")
        case.v_cache.view(-1, 8, 128)[slots] = float("nan")
        made = fused.clone()
        q, new_k, new_v = made.split_with_sizes((32, 8, 8), 1)
        cuda.rope_and_cache(
            q, new_k, new_v, case.k_cache, case.v_cache, unrotated, positions, slots
        )
        check_beside(case, q, workspace)


def test_a_schedule_made_beside_the_kernel_that_writes_the_keys() -> None:
    """It ends after that kernel, so that attention, which waits for it, sees what both made."""
    from kernels import cuda

    lens = [1, 16, 17, 300, 2049, *range(500, 530)]
    case = make_case(lens, [1] * len(lens))
    slots = torch.arange(case.k_cache.shape[0] * 16, device="cuda")
    keys, values = case.k_cache.view(-1, 8, 128).clone(), case.v_cache.view(-1, 8, 128).clone()
    queries = torch.zeros(len(slots), 32, 128, dtype=keys.dtype, device="cuda")
    unrotated = torch.cat((torch.ones(1, 64), torch.zeros(1, 64)), 1).cuda()
    positions = torch.zeros_like(slots)
    workspace = scheduled(case)
    for _ in range(20):
        case.k_cache.fill_(float("nan"))
        case.v_cache.fill_(float("nan"))
        workspace.schedule.fill_(-1)
        made = torch.cat((queries, keys, values), 1)
        q, k, v = made.split_with_sizes((32, 8, 8), 1)
        # All keys take it long to write; the schedule needs none of them.
        cuda.rope_and_cache(q, k, v, case.k_cache, case.v_cache, unrotated, positions, slots)
        schedule(workspace, case, wait_first=False)
        check_beside(case, case.q, workspace, wait_first=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("queries", [1, 4])
def test_new_keys(dim: int, dtype: torch.dtype, queries: int) -> None:
    lens = [max(n, queries) for n in RAGGED]
    case = make_case(lens, [queries] * len(lens), dim=dim, dtype=dtype)
    new = NewKeys.of(case)
    check(case, **new.arguments)
    new.check_stored(case)


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (12, 2), (14, 2), (32, 1), (64, 8)])
def test_new_keys_of_head_groups_and_padding(heads: int, kv_heads: int) -> None:
    lens = [300, 0, 2049, 64, 511]
    case = make_case(lens, [1, 2, 4, 8, 3], heads=heads, kv_heads=kv_heads, block_size=32)
    new = NewKeys.of(case)
    check(case, **new.arguments)
    new.check_stored(case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("lens", [[1], [700], [1000, 1100], [640] * 13, [64, 0, 63, 5]], ids=len)
@pytest.mark.parametrize("fp8", [False, True])
def test_clusters(lens: list[int], dim: int, dtype: torch.dtype, fp8: bool) -> None:
    case = make_case(lens, [1] * len(lens), dim=dim, dtype=dtype, fp8=fp8)
    check(case, clusters=True)


def test_clusters_where_lengths_differ() -> None:
    check(make_case([5000, 1, 17, 300], [1] * 4), clusters=True)
    check(make_case([300, 280], [4, 3]), clusters=True)  # too many rows


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (12, 2), (14, 2), (32, 1), (64, 8)])
def test_clusters_take_new_keys(heads: int, kv_heads: int) -> None:
    case = make_case([300, 280, 0, 320], [1] * 4, heads=heads, kv_heads=kv_heads)
    new = NewKeys.of(case)
    check(case, clusters=True, **new.arguments)
    new.check_stored(case)


def test_new_keys_under_a_window() -> None:
    case = make_case([5, 100, 101, 1024, 3000], [1, 4, 1, 4, 1], window=100)
    new = NewKeys.of(case, window=100)
    check(case, window=100, **new.arguments)
    new.check_stored(case)


def test_new_keys_begin_before_their_projection_is_made() -> None:
    """With ``wait_first=False`` it runs beside the kernel that makes queries, keys and values."""
    from kernels import cuda

    lens = [1, 16, 17, 300, 2049, *range(500, 511)]
    case = make_case(lens, [1] * len(lens))
    batch = len(lens)
    new = NewKeys.of(case)
    made = torch.cat((case.q, new.arguments["new_k"], new.arguments["new_v"]), 1).view(batch, -1)
    eye = torch.eye(made.shape[1], device="cuda", dtype=torch.bfloat16)
    workspace = scheduled(case)
    for _ in range(20):
        for cache in (case.k_cache, case.v_cache):
            cache.view(-1, 8, 128)[new.slots] = float("nan")
        fused = cuda.skinny_linear(made, eye).view(batch, 48, 128)
        q, new_k, new_v = fused.split_with_sizes((32, 8, 8), 1)
        check_beside(
            *(case, q, workspace), new_k=new_k, new_v=new_v, cos_sin=new.arguments["cos_sin"]
        )
        new.check_stored(case)


# The answer follows from what the cache holds: what is left is the rounding of weights to float16,
# 2^-11, and of the result to its own dtype.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("queries", [1, 4])
def test_fp8_cache(dim: int, dtype: torch.dtype, queries: int) -> None:
    lens = [max(n, queries) for n in RAGGED]
    check(make_case(lens, [queries] * len(lens), dim=dim, dtype=dtype, fp8=True))


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (12, 2), (14, 2), (32, 1), (64, 8)])
def test_fp8_head_groups(heads: int, kv_heads: int) -> None:
    case = make_case([300, 2049, 64], [1, 4, 8], heads=heads, kv_heads=kv_heads, fp8=True)
    check(case)


@pytest.mark.parametrize("block_size", [16, 32, 256])
def test_fp8_block_sizes_and_padding(block_size: int) -> None:
    case = make_case([300, 0, 2049, 64, 511], [1, 1, 2, 1, 4], block_size=block_size, fp8=True)
    check(case)


def test_fp8_window_soft_cap_and_alibi() -> None:
    lens = [5, 100, 101, 1024, 3000], [1, 4, 1, 4, 1]
    check(make_case(*lens, window=100, fp8=True), window=100)
    check(make_case(*lens, soft_cap=5.0, fp8=True), soft_cap=5.0)
    slopes = torch.logspace(-1, -4, 32, device="cuda")
    check(make_case(*lens, alibi_slopes=slopes, fp8=True), alibi_slopes=slopes)


def test_fp8_long_and_many_sequences() -> None:
    check(make_case([65_536], [1], fp8=True))
    gen = torch.Generator().manual_seed(1)
    lens = torch.randint(1, 700, (1500,), generator=gen).tolist()
    check(make_case(lens, [1] * len(lens), heads=8, kv_heads=2, fp8=True))


def test_fp8_large_queries() -> None:
    """Beyond what float16 holds they are cut off: no infinities, no NaN."""
    case = make_case([300], [1], fp8=True)
    case.q = (case.q * 1e5).bfloat16()
    assert run(case).isfinite().all()


def test_a_cache_in_fp8_needs_scales() -> None:
    case = make_case([64], [1], fp8=True)
    case.scales = {}
    with pytest.raises(RuntimeError, match="caches must be"):
        run(case)
    case = make_case([64], [1])
    case.scales = fp8_scales(8, "cuda")
    with pytest.raises(RuntimeError, match="must be float8_e4m3fn"):
        run(case)
