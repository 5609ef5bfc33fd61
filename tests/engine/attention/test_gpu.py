"""The backends of a GPU, through the port, against attention in float64."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionOptions,
    AttentionShape,
    DeviceBatch,
    KVScales,
    fused_rotation,
)
from engine.attention.cuda import CudaAttention
from engine.attention.select import select_backend
from engine.runner.graphs.prompt import prompt_sizes
from tests.kernels.attention.paged_cases import Case, NewKeys, make_case

pytestmark = pytest.mark.gpu
BACKENDS = [
    "cuda",
    "triton",
    pytest.param(
        "flash_attn",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("flash_attn") is None, reason="flash-attn is not installed"
        ),
    ),
]
MIXED = [600, 33, 1, 257, 90], [256, 33, 1, 1, 4]
DECODE = [600, 33, 1, 257, 1000], [1] * 5


def backend_for(name: str, case: Case, window: int, soft_cap: float) -> AttentionBackend:
    shape = AttentionShape(
        dtype=case.q.dtype,
        num_heads=case.q.shape[1],
        num_kv_heads=case.k_cache.shape[2],
        head_dim=case.q.shape[2],
        block_size=case.k_cache.shape[1],
        max_num_seqs=len(case.seq_lens),
        window=window or None,
        softcap=soft_cap or None,
        kv_dtype=case.k_cache.dtype,
    )
    return select_backend(name, case.q.device, shape)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lens", [MIXED, DECODE], ids=["mixed", "decode"])
@pytest.mark.parametrize(
    ("window", "soft_cap"), [(0, 0.0), (100, 0.0), (0, 5.0), (100, 5.0)], ids=str
)
def test_windows_and_soft_caps(
    backend: str, lens: tuple[list[int], list[int]], window: int, soft_cap: float
) -> None:
    seq_lens, query_lens = lens
    case = make_case(seq_lens, query_lens, block_size=256, window=window, soft_cap=soft_cap)
    how = backend_for(backend, case, window, soft_cap)
    on_device = DeviceBatch(case.seq_lens, case.cu_queries, case.block_table)
    batch = AttentionBatch(
        np.array(query_lens),
        np.array(seq_lens),
        np.arange(len(seq_lens)),
        case.block_table,
        on_device,
    )
    step = how.prepare(batch, 256)
    options = AttentionOptions(128**-0.5, window or None, soft_cap or None)
    for _ in range(2):  # as two layers do
        out = step(case.q, case.k_cache, case.v_cache, options)
        error = (out.double() - case.expected).norm() / case.expected.norm()
        assert error < 1e-2


@pytest.mark.parametrize(("prompt", "displaces"), [(1500, True), (200, False)])
def test_keys_push_out_what_a_long_prompt_has_written(prompt: int, displaces: bool) -> None:
    seq_lens, query_lens = [700] * 160 + [prompt], [1] * 160 + [prompt]
    case = make_case(seq_lens, query_lens, heads=8, kv_heads=2)
    how = backend_for("cuda", case, 0, 0.0)
    assert isinstance(how, CudaAttention)
    on_device = DeviceBatch(case.seq_lens, case.cu_queries, case.block_table)
    batch = AttentionBatch(
        *(np.array(query_lens), np.array(seq_lens), np.arange(161), case.block_table, on_device)
    )
    out = how.prepare(batch, 16)(case.q, case.k_cache, case.v_cache, AttentionOptions(128**-0.5))
    error = (out.double() - case.expected).norm() / case.expected.norm()
    assert error < 1e-2
    (workspace,) = how._workspaces.values()
    assert bool(workspace.schedule[0, 3] > 0) == displaces


LONG = [900, 33, 40, 257, 90], [700, 33, 9, 250, 12]


@pytest.mark.parametrize("backend", ["cuda", "triton", "torch"])
@pytest.mark.parametrize("lens", [MIXED, DECODE, LONG], ids=["mixed", "decode", "long"])
@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (100, 5.0)], ids=str)
@pytest.mark.parametrize("copied_tokens", [32_768, 64])
def test_a_cache_in_fp8(
    backend: str,
    lens: tuple[list[int], list[int]],
    window: int,
    soft_cap: float,
    copied_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts over copies in 16 bits; over the cache itself where they see too much for that."""
    monkeypatch.setattr("engine.attention.hopper.MAX_COPIED_TOKENS", copied_tokens)
    seq_lens, query_lens = lens
    case = make_case(seq_lens, query_lens, window=window, soft_cap=soft_cap, fp8=True)
    how = backend_for(backend, case, window, soft_cap)
    on_device = DeviceBatch(case.seq_lens, case.cu_queries, case.block_table)
    rows = np.arange(len(seq_lens))
    batch = AttentionBatch(
        np.array(query_lens), np.array(seq_lens), rows, case.block_table, on_device
    )
    step = how.prepare(batch, 16)
    scales = KVScales(case.scales["k_scale"], case.scales["v_scale"])
    options = AttentionOptions(128**-0.5, window or None, soft_cap or None, scales)
    for _ in range(2):  # as two layers do
        out = step(case.q, case.k_cache, case.v_cache, options)
        error = (out.double() - case.expected).norm() / case.expected.norm()
        assert error < 1e-2


@pytest.mark.parametrize("window", [0, 100])
def test_new_keys_are_stored_on_the_way(window: int) -> None:
    seq_lens, query_lens = [600, 33, 4, 257, 1000], [1, 2, 1, 1, 2]
    case = make_case(seq_lens, query_lens, window=window)
    new = NewKeys.of(case, window=window)
    how = backend_for("cuda", case, window, 0.0)
    on_device = DeviceBatch(case.seq_lens, case.cu_queries, case.block_table)
    batch = AttentionBatch(
        np.array(query_lens), np.array(seq_lens), np.arange(5), case.block_table, on_device
    )
    step = fused_rotation(how.prepare(batch, 16))
    assert step is not None
    cos_sin = new.arguments["cos_sin"]
    assert step.can_store(cos_sin)
    assert not step.can_store(cos_sin[:, :64])
    in_parts = replace(batch, on_device=replace(on_device, in_parts=True))
    of_parts = fused_rotation(how.prepare(in_parts, 16))
    assert of_parts is not None
    assert not of_parts.can_store(cos_sin), "a part reads what the one before stores"
    for _ in range(2):  # as two layers do
        out = step.store_and_attend(
            case.q,
            new.arguments["new_k"],
            new.arguments["new_v"],
            cos_sin,
            case.k_cache,
            case.v_cache,
            AttentionOptions(128**-0.5, window or None),
        )
        error = (out.double() - case.expected).norm() / case.expected.norm()
        assert error < 1e-2
        new.check_stored(case)


def test_layers_of_different_windows_share_a_step() -> None:
    narrow = make_case(*DECODE, block_size=16, window=64)
    whole = make_case(*DECODE, block_size=16)
    how = backend_for("cuda", whole, 64, 0.0)
    assert torch.equal(narrow.q, whole.q)
    on_device = DeviceBatch(whole.seq_lens, whole.cu_queries, whole.block_table)
    step = how.prepare(
        AttentionBatch(
            np.array(DECODE[1]), np.array(DECODE[0]), np.arange(5), whole.block_table, on_device
        ),
        16,
    )
    for window, case in ((64, narrow), (None, whole), (64, narrow)):
        out = step(case.q, case.k_cache, case.v_cache, AttentionOptions(128**-0.5, window))
        assert (out.double() - case.expected).norm() / case.expected.norm() < 1e-2


@pytest.mark.parametrize("window", [0, 128, 300])
@pytest.mark.parametrize(
    ("query_len", "seq_len"), [(9, 9), (65, 65), (129, 129), (257, 257), (257, 600), (384, 384)]
)
def test_a_prompt_in_place_of_a_longer_one(query_len: int, seq_len: int, window: int) -> None:
    case = make_case([seq_len], [query_len], window=window)
    how = backend_for("cuda", case, window, 0.0)
    assert isinstance(how, CudaAttention)
    if not how.captures_prompts:
        pytest.skip("prompts are captured on Hopper")
    size = next(size for size in prompt_sizes(384) if size >= query_len)
    q = torch.full((size, *case.q.shape[1:]), torch.nan, dtype=case.q.dtype, device=case.q.device)
    q[:query_len] = case.q
    table = torch.cat([case.block_table, torch.full_like(case.block_table, 2**30)])
    starts = torch.tensor([0, query_len, size]).to(case.cu_queries)
    filled = DeviceBatch(torch.tensor([seq_len, 0]).to(case.seq_lens), starts, table)
    step = how.prepare_prompt(filled, size)
    out = step(q, case.k_cache, case.v_cache, AttentionOptions(128**-0.5, window or None))[
        :query_len
    ]
    error = (out.double() - case.expected).norm() / case.expected.norm()
    assert error < 1e-2


def test_prompts_that_a_tile_might_see_nothing_of_are_not_captured() -> None:
    case = make_case([40], [40])
    how = backend_for("cuda", case, 127, 0.0)
    assert isinstance(how, CudaAttention)
    assert not how.captures_prompts
