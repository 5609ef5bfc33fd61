"""The decode kernel against attention in float64, on scattered and poisoned caches."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.kernels.attention.paged_cases import (
    RAGGED,
    check,
    check_beside,
    make_case,
    run,
    schedule,
    scheduled,
)

pytestmark = pytest.mark.gpu


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


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("window", [0, 128])
def test_sinks(window: int, fp8: bool, clusters: bool) -> None:
    sinks = torch.linspace(-3, 6, 64, device="cuda")
    gpt_oss = partial(make_case, heads=64, kv_heads=8, dim=64)
    case = gpt_oss([300, 2049], [1, 1], window=window, sinks=sinks, fp8=fp8)
    check(case, window=window, sinks=sinks, clusters=clusters)


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


@pytest.mark.parametrize(("batch", "clusters"), [(4, False), (2, True)])
def test_replays_in_a_cuda_graph_with_new_lengths(batch: int, clusters: bool) -> None:
    """With clusters, which of them share an item and which have a line changes, too."""
    from kernels import cuda

    small = make_case([64, 300, 0, 0][:batch], [1] * batch)
    large = make_case([4000, 5, 900, 17][:batch], [1] * batch, seed=1)
    lens, cu = small.seq_lens.clone(), small.cu_queries.clone()
    width = max(small.block_table.shape[1], large.block_table.shape[1])
    table = torch.zeros(batch, width, dtype=torch.int32, device="cuda")
    q, out = small.q.clone(), torch.empty_like(small.q)
    workspace = cuda.DecodeWorkspace.create(batch, 32, 128, q.device)

    def step() -> None:
        cuda.decode_schedule(
            *(workspace, lens, cu, table),
            block_size=16,
            num_q_heads=32,
            num_kv_heads=8,
            head_dim=128,
            clusters=clusters,
        )
        caches = large.k_cache, large.v_cache
        cuda.paged_decode(
            *(out, q, *caches, table, lens, cu),
            workspace=workspace,
            scale=128**-0.5,
            clusters=clusters,
        )

    table[:, : large.block_table.shape[1]] = large.block_table
    lens.copy_(torch.tensor([16, 5, 0, 0][:batch], dtype=torch.int32))
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
    with pytest.raises(ValueError, match="k_cache must be"):
        run(case)
    case = make_case([64], [1])
    case.seq_lens = case.seq_lens.long()
    with pytest.raises(ValueError, match="seq_lens must be"):
        run(case)


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
        cuda.native.rope_and_cache(
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
        cuda.native.rope_and_cache(q, k, v, case.k_cache, case.v_cache, unrotated, positions, slots)
        schedule(workspace, case, wait_first=False)
        check_beside(case, case.q, workspace, wait_first=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize(
    "lens", [[1], [700], [1000, 1100], [640] * 8, [640] * 13, [64, 0, 63, 5]], ids=len
)
@pytest.mark.parametrize("fp8", [False, True])
def test_clusters(lens: list[int], dim: int, dtype: torch.dtype, fp8: bool) -> None:
    case = make_case(lens, [1] * len(lens), dim=dim, dtype=dtype, fp8=fp8)
    check(case, clusters=True)


def test_clusters_where_lengths_differ() -> None:
    check(make_case([5000, 1, 17, 300], [1] * 4), clusters=True)
    check(make_case([5000, 1], [1] * 2), clusters=True)
    check(make_case([40_000], [1]), clusters=True)
    check(make_case([300, 280], [5, 3]), clusters=True)  # too many rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize(
    "lens", [[4], [5000], [1000, 1100], [700, 640, 650], [640] * 7, [640] * 16, [64, 0, 63, 5]],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("fp8", [False, True])
def test_clusters_of_several_query_tokens(
    lens: list[int], dim: int, dtype: torch.dtype, fp8: bool
) -> None:
    queries = [min(4 - i % 2, length) for i, length in enumerate(lens)]
    case = make_case(lens, [max(n, 1) for n in queries], dim=dim, dtype=dtype, fp8=fp8)
    check(case, clusters=True)


@pytest.mark.parametrize("queries", [1, 4])
def test_many_keys_of_long_sequences(queries: int) -> None:
    """Their first ones push out what the L2 holds."""
    case = make_case([2100] * 40 + [900] * 20, [queries] * 60)
    workspace = scheduled(case)
    assert workspace.schedule[0, 3] > 0
    check(case)


def test_short_sequences_push_out_what_has_been_written() -> None:
    case = make_case([700] * 160, [1] * 160)
    workspace = scheduled(case)
    assert workspace.schedule[0, 3] == 0
    schedule(workspace, case, dirty_l2=True)
    assert workspace.schedule[0, 3] > 0
    check(case, dirty_l2=True)
