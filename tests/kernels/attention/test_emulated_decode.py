"""The decode kernel's own source without a GPU (``emulated``), against attention in float64."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.kernels import emulated
from tests.kernels.attention.paged_cases import Case, NewKeys, make_case
from tests.pairs import each_value, every_pair

MAX_ROWS = 32
POINTERS = (
    *("out", "q", "k_cache", "v_cache", "seq_lens", "cu_queries", "blocks"),
    *("k_scale", "v_scale", "alibi_slopes", "sinks", "new_k", "new_v", "cos_sin"),
    *("tile_ends", "partial_out", "partial_stats"),
)
INTS = (
    *("batch", "table_width", "block_size", "kv_heads", "parts", "group", "columns"),
    *("head_dim", "max_rows", "spans", "window", "q_stride", "cluster", "displacing", "few_spans"),
)


class Call(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_void_p) for name in POINTERS]
        + [(name, ctypes.c_int) for name in INTS]
        + [("scale", ctypes.c_float), ("soft_cap", ctypes.c_float)]
    )


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    made = emulated.library("decode", (), ctas=16)
    made.decode.restype = ctypes.c_bool
    return made


def decode(
    library: ctypes.CDLL,
    case: Case,
    spans: int,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    new: NewKeys | None = None,
    cluster: int = 1,
    clustered: bool | None = False,
    displacing: int = 0,
    few_spans: int | None = None,
) -> torch.Tensor:
    """The kernel's answer; what nobody wrote is NaN. clustered: whether ``cluster`` CTAs are to
    share an item, which they do where lengths are alike; None: either. displacing: so many first
    tiles of a CTA push out what the L2 holds. few_spans: how many are used where they are short;
    None: all."""
    batch, (_, heads, dim) = len(case.seq_lens), case.q.shape
    _, block_size, kv_heads, _ = case.k_cache.shape
    group = heads // kv_heads
    columns = max(n for n in range(1, 9) if kv_heads % n == 0)
    out = torch.full(case.q.shape, float("nan"), dtype=case.q.dtype)
    tile_ends = torch.zeros(batch, dtype=torch.int32)
    slots = spans * columns * 2 * MAX_ROWS
    partial = torch.full((slots * (dim + dim // 16),), -1, dtype=torch.int32)  # empty
    tensors = {
        "out": out,
        "q": case.q,
        "k_cache": case.k_cache,
        "v_cache": case.v_cache,
        "seq_lens": case.seq_lens,
        "cu_queries": case.cu_queries,
        "blocks": case.block_table,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "tile_ends": tile_ends,
        "partial_out": partial,
        "partial_stats": partial[slots * dim :],
        **case.scales,
        **({} if new is None else new.arguments),
    }
    pointers = {name: t.data_ptr() for name, t in tensors.items() if t is not None}
    numbers = {
        "batch": batch,
        "table_width": case.block_table.stride(0),
        "block_size": block_size,
        "kv_heads": kv_heads,
        "parts": 1,
        "group": group,
        "columns": columns,
        "head_dim": dim,
        "max_rows": group * case.max_queries,
        "spans": spans,
        "window": window,
        "q_stride": case.q.stride(0),
        "cluster": cluster,
        "displacing": displacing,
        "few_spans": spans if few_spans is None else few_spans,
        "scale": dim**-0.5,
        "soft_cap": soft_cap,
    }
    found = library.decode(ctypes.byref(Call(**pointers, **numbers)))
    assert clustered in (found, None)
    assert (partial == -1).all(), "what was handed over must be empty again"
    return out


def check(case: Case, out: torch.Tensor) -> None:
    live = torch.repeat_interleave(case.seq_lens > 0, case.cu_queries.diff().long())
    error = (out[live].double() - case.expected[live]).norm() / case.expected[live].norm()
    assert error < 4e-3, f"relative error {error:.2e}"
    assert torch.isnan(out[~live]).all(), "padding rows must stay untouched"


@pytest.mark.parametrize(("spans", "dim", "fp8"), every_pair([1, 4, 20], [96, 128], [False, True]))
def test_ragged_lengths(library: ctypes.CDLL, spans: int, dim: int, fp8: bool) -> None:
    """Spans of many items, of a part of one, and so short that the ring is never full."""
    case = make_case(
        [1, 17, 64, 300, 0], [1] * 5, heads=8, kv_heads=2, dim=dim, fp8=fp8, device="cpu"
    )
    check(case, decode(library, case, spans))


@pytest.mark.parametrize(("spans", "fp8"), each_value([1, 5], [False, True]))
def test_more_than_one_look_up(library: ctypes.CDLL, spans: int, fp8: bool) -> None:
    """More sequences, padding among them, and more tiles of one than are looked up at once."""
    lens = [*range(1, 40), 0, 0, *range(60, 100), 2300, 5]
    case = make_case(lens, [1] * len(lens), heads=2, kv_heads=1, dim=96, fp8=fp8, device="cpu")
    check(case, decode(library, case, spans))


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("query_lens", [[1, 1], [3, 1], [4, 1]])
def test_many_parts_of_an_item(library: ctypes.CDLL, query_lens: list[int], fp8: bool) -> None:
    """More than are loaded at a time; the next item begins in the span that merges them."""
    case = make_case([1200, 70], query_lens, heads=8, kv_heads=2, fp8=fp8, device="cpu")
    check(case, decode(library, case, 21))


def test_spans_of_several_heads_scales(library: ctypes.CDLL) -> None:
    """A span that ends one KV head's item goes on with another one's before it merges the parts."""
    case = make_case([300, 200], [1, 1], heads=10, kv_heads=10, fp8=True, device="cpu")
    check(case, decode(library, case, 7))


def test_not_a_number_is_handed_over(library: ctypes.CDLL) -> None:
    """Ones in all bits are a NaN, too, and mean that nothing is there yet."""
    case = make_case([300], [1], heads=8, kv_heads=2, device="cpu")
    case.v_cache.view(torch.int16).fill_(-1)
    assert torch.isnan(decode(library, case, 5)).all()


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("block_size", [16, 48])
def test_several_query_tokens(library: ctypes.CDLL, block_size: int, fp8: bool) -> None:
    case = make_case(
        [4, 130, 67], [4, 1, 3], heads=8, kv_heads=2, block_size=block_size, fp8=fp8, device="cpu"
    )
    check(case, decode(library, case, 3))


@pytest.mark.parametrize("window", [1, 100])
def test_sliding_window(library: ctypes.CDLL, window: int) -> None:
    case = make_case([5, 300], [2, 1], heads=8, kv_heads=2, window=window, device="cpu")
    check(case, decode(library, case, 4, window=window))


def test_soft_cap_and_alibi(library: ctypes.CDLL) -> None:
    options: dict[str, Any] = {"soft_cap": 5.0, "alibi_slopes": torch.logspace(-1, -3, 8)}
    case = make_case([5, 200], [2, 1], heads=8, kv_heads=2, device="cpu", **options)
    check(case, decode(library, case, 3, **options))


SINKS = torch.tensor([-80.0, -3.0, 0.0, 1.0, 2.0, 5.0, 9.0, 90.0])
"""Some that take no part, and one that leaves nothing to the values."""


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(
    ("window", "soft_cap", "spans", "cluster"),
    [(0, 0.0, 1, 1), (100, 0.0, 5, 1), (0, 5.0, 21, 1), (0, 0.0, 8, 4)],
    ids=["whole items", "parts", "scores", "clusters"],
)
def test_sinks(
    library: ctypes.CDLL, window: int, soft_cap: float, spans: int, cluster: int, fp8: bool
) -> None:
    options: dict[str, Any] = {"window": window, "soft_cap": soft_cap, "sinks": SINKS}
    case = make_case([300, 270], [2, 1], heads=8, kv_heads=2, fp8=fp8, device="cpu", **options)
    made = decode(library, case, spans, cluster=cluster, clustered=cluster > 1, **options)
    check(case, made)


def test_sinks_beside_new_keys(library: ctypes.CDLL) -> None:
    case = make_case([5, 300], [2, 1], heads=8, kv_heads=2, device="cpu")
    new = NewKeys.of(case, sinks=SINKS)
    check(case, decode(library, case, 4, sinks=SINKS, new=new))


@pytest.mark.parametrize(
    ("lens", "spans", "dim"),
    every_pair(
        [
            ([1, 17, 64, 300, 0, 5], [1, 1, 1, 1, 1, 1], 16),
            ([4, 130, 0, 67, 66], [4, 1, 2, 3, 4], 48),  # two tiles' new keys, two warps'
        ],
        [1, 4, 20],
        [96, 128],
    ),
)
def test_new_keys_are_rotated_and_stored(
    library: ctypes.CDLL, lens: tuple[list[int], list[int], int], spans: int, dim: int
) -> None:
    seq_lens, query_lens, block_size = lens
    case = make_case(
        seq_lens, query_lens, heads=8, kv_heads=2, dim=dim, block_size=block_size, device="cpu"
    )
    new = NewKeys.of(case)
    check(case, decode(library, case, spans, new=new))
    new.check_stored(case)


def test_new_keys_under_a_window(library: ctypes.CDLL) -> None:
    case = make_case([5, 300], [2, 1], heads=8, kv_heads=2, window=100, device="cpu")
    new = NewKeys.of(case, window=100)
    check(case, decode(library, case, 4, window=100, new=new))
    new.check_stored(case)


@pytest.mark.parametrize(
    ("displacing", "tiles"), [(0, 0), (2, 2 * 4), (3, 3 + 3 + 3 + 2), (99, 11)]
)
def test_the_first_tiles_of_a_cta_displace(
    library: ctypes.CDLL, displacing: int, tiles: int
) -> None:
    """Eleven tiles of one head in spans of three; each lane copies 16 pieces of a tile."""
    case = make_case([320, 384], [1, 1], heads=4, kv_heads=1, device="cpu")
    check(case, decode(library, case, 4, displacing=displacing))
    assert library.displacing_copies() == tiles * 128 * 16


@pytest.mark.parametrize(
    ("sequences", "tiles", "dirty_l2", "displaces"),
    [
        (256, 10, True, True),
        (256, 10, False, False),  # short sequences
        (64, 64, False, True),
        (8, 64, True, False),  # few keys
    ],
)
def test_many_keys_displace_what_has_been_written_and_those_of_long_sequences_always(
    library: ctypes.CDLL, sequences: int, tiles: int, dirty_l2: bool, displaces: bool
) -> None:
    assert (library.displacing(sequences, tiles, dirty_l2) > 0) == displaces


@pytest.mark.parametrize(
    ("sequences", "tiles", "spans"),
    [(4, 16, 16), (8, 64, 16), (8, 66, 32), (4, 1024, 32)],
    ids=["short", "the longest short ones", "just longer", "long"],
)
def test_short_spans_are_on_fewer_ctas(
    library: ctypes.CDLL, sequences: int, tiles: int, spans: int
) -> None:
    assert library.spans_with_work(sequences, tiles) == spans


@pytest.mark.parametrize("cluster", [1, 2])
def test_ctas_beyond_the_few_have_no_part_in_a_result(library: ctypes.CDLL, cluster: int) -> None:
    case = make_case([700, 90, 500], [4, 1, 2], heads=8, kv_heads=2, device="cpu")
    check(case, decode(library, case, 12, few_spans=5, cluster=cluster, clustered=cluster == 2))


def test_a_result_does_not_depend_on_the_run(library: ctypes.CDLL) -> None:
    case = make_case([300, 77], [1, 1], heads=8, kv_heads=2, device="cpu")
    first, second = (decode(library, case, 6) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(
    ("seq_lens", "cluster", "spans"),
    [
        ([300], 4, 4),
        ([300], 16, 16),  # more CTAs than tiles
        ([130, 0, 129, 191], 2, 9),  # padding; a span that no cluster has
        ([64, 1, 5], 4, 12),  # whole items
        ([1000, 900], 8, 16),
        ([1100], 2, 2),  # more tiles than are looked up ahead
    ],
)
def test_clusters_share_items(
    library: ctypes.CDLL, seq_lens: list[int], cluster: int, spans: int, fp8: bool
) -> None:
    queries = [1] * len(seq_lens)
    case = make_case(seq_lens, queries, heads=8, kv_heads=2, fp8=fp8, device="cpu")
    spans -= spans % cluster
    check(case, decode(library, case, spans, cluster=cluster, clustered=True))


@pytest.mark.parametrize(
    ("query_lens", "cluster", "dim"), every_pair([[4, 3], [1, 4]], [2, 8, 16], [96, 128])
)
def test_clusters_share_items_of_two_tiles_of_rows(
    library: ctypes.CDLL, query_lens: list[int], cluster: int, dim: int
) -> None:
    case = make_case([500, 460], query_lens, heads=8, kv_heads=2, dim=dim, device="cpu")
    check(case, decode(library, case, 2 * cluster, cluster=cluster, clustered=True))


@pytest.mark.parametrize("dim", [96, 128])
@pytest.mark.parametrize(("cluster", "spans"), [(4, 8), (8, 16)])
def test_clusters_rotate_and_store(
    library: ctypes.CDLL, cluster: int, spans: int, dim: int
) -> None:
    case = make_case([300, 258], [1, 2], heads=8, kv_heads=2, dim=dim, device="cpu")
    new = NewKeys.of(case)
    out = decode(library, case, spans, new=new, cluster=cluster, clustered=True)
    check(case, out)
    new.check_stored(case)


def test_a_window_within_clusters(library: ctypes.CDLL) -> None:
    case = make_case([500, 300], [2, 1], heads=8, kv_heads=2, window=200, device="cpu")
    check(case, decode(library, case, 4, window=200, cluster=2, clustered=True))


@pytest.mark.parametrize("seq_lens", [[2000, 10], [300, 300, 300]], ids=["uneven", "many"])
def test_clusters_do_not_share_what_a_line_divides_better(
    library: ctypes.CDLL, seq_lens: list[int]
) -> None:
    case = make_case(seq_lens, [1] * len(seq_lens), heads=8, kv_heads=2, device="cpu")
    check(case, decode(library, case, 8, cluster=4))


@settings(max_examples=25, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(0, 260), st.integers(1, 4)), min_size=1, max_size=5),
    spans=st.integers(1, 24),
    cluster=st.sampled_from([1, 2, 4, 8, 16]),
    projected=st.booleans(),
)
def test_any_batch(
    library: ctypes.CDLL,
    sequences: list[tuple[int, int]],
    spans: int,
    cluster: int,
    projected: bool,
) -> None:
    queries = [count for _, count in sequences]
    lens = [length and max(length, count) for length, count in sequences]
    assume(any(lens))
    case = make_case(lens, queries, heads=8, kv_heads=2, device="cpu")
    new = NewKeys.of(case) if projected else None
    spans = max(spans // cluster, 1) * cluster
    check(case, decode(library, case, spans, new=new, cluster=cluster, clustered=None))
    if new is not None:
        new.check_stored(case)
