"""All layers as one kernel against the layers one by one, and both against plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.base import AttentionBackend, AttentionBatch
from engine.attention.cpu import CpuAttention
from engine.attention.torch_ref import TorchAttention
from engine.executors import fused_cpu
from engine.executors.base import Executor
from engine.executors.fused_cpu import FusedCpu
from engine.executors.layers import LayerByLayer
from engine.layers.attention import GroupStep, KVCache, SelfAttention, StepContext
from engine.layers.rope import RopeConfig
from engine.models.base import ModelConfig
from engine.models.llama import ForCausalLM
from kernels import cpu, ops

pytestmark = pytest.mark.skipif(not cpu.available(), reason="no compiler for CPU kernels")

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 4, 120, 48


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    before = dict(ops._registry)
    cpu.register()
    yield
    ops._registry.clear()
    ops._registry.update(before)
    ops.resolve.cache_clear()


def model(
    *, head_dim: int = 16, bias: bool = False, dtype: torch.dtype = torch.float32, hidden: int = 42
) -> ForCausalLM:
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=50,
        hidden_size=hidden,
        intermediate_size=75,
        num_layers=3,
        num_heads=6,
        num_kv_heads=2,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        max_position_embeddings=MAX_LEN,
        rope=RopeConfig(),
        tie_word_embeddings=True,
        attention_bias=bias,
        mlp_bias=bias,
        dtype=dtype,
        eos_token_ids=frozenset(),
    )
    made = ForCausalLM(config, max_model_len=MAX_LEN, dtype=dtype, device=CPU)
    gen = torch.Generator().manual_seed(0)
    for name, weight in made.named_weights():
        shift = 1.0 if "norm" in name else 0.0
        weight.data.copy_(torch.randn(weight.data.shape, generator=gen) * 0.3 + shift)
    return made


def packed(**changes: Any) -> FusedCpu:
    made = model(**changes)
    made.pack()
    executor = FusedCpu.of(made)
    assert executor is not None
    return executor


def run(
    executor: Executor,
    shapes: list[tuple[int, int]],
    backend: AttentionBackend,
    taps: dict[int, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, KVCache]:
    """shapes: (tokens of the step, tokens before it) of each sequence, at most 8 of them."""
    gen = torch.Generator().manual_seed(1)
    assert isinstance(executor.model, ForCausalLM)
    attention = executor.model.model.layers[0].self_attn
    assert isinstance(attention, SelfAttention)
    head_dim = attention.head_dim
    cache: KVCache = [
        (k, v) for k, v in torch.randn(3, 2, NUM_BLOCKS, BLOCK_SIZE, 2, head_dim, generator=gen)
    ]
    table = torch.randperm(NUM_BLOCKS, generator=gen)[:96].view(8, 12).to(torch.int32)
    query_lens, past = np.array(shapes).T.copy()
    rows = np.arange(len(shapes))[::-1].copy()
    positions = torch.cat([torch.arange(p, p + n) for n, p in shapes])
    token_rows = torch.from_numpy(rows.repeat(query_lens))
    slots = table[token_rows, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    batch = AttentionBatch(query_lens, query_lens + past, rows, table)
    attend = backend.prepare(batch, BLOCK_SIZE)
    step = StepContext(positions, [GroupStep(slots.long(), attend)], cache, taps or {})
    token_ids = torch.randint(50, (len(positions),), generator=gen)
    return executor.hidden_states(token_ids, step), cache


def assert_same_bits(executor: FusedCpu, shapes: list[tuple[int, int]]) -> torch.Tensor:
    fused, fused_cache = run(executor, shapes, CpuAttention())
    one_by_one, cache = run(LayerByLayer(executor.model), shapes, CpuAttention())
    assert torch.equal(fused, one_by_one)
    for ours, theirs in zip(fused_cache, cache, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
    return fused


@pytest.mark.parametrize("head_dim", [6, 16, 32])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shapes", [[(1, 0)], [(1, 9), (1, 30), (8, 0)], [(3, 2)] * 8])
def test_equals_plain_torch(head_dim: int, bias: bool, shapes: list[tuple[int, int]]) -> None:
    changes: dict[str, Any] = {"head_dim": head_dim, "bias": bias}
    plain, _ = run(LayerByLayer(model(**changes)), shapes, TorchAttention(CPU, torch.float32))
    fused = assert_same_bits(packed(**changes), shapes)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 40)), min_size=1, max_size=8),
    num_threads=st.integers(1, 4),
)
def test_gives_the_bits_of_the_layers_one_by_one(
    shapes: list[tuple[int, int]], num_threads: int
) -> None:
    executor = packed()
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert_same_bits(executor, shapes)
    finally:
        torch.set_num_threads(before)


def test_what_goes_into_a_layer_can_be_tapped() -> None:
    fused = packed()
    shapes = [(2, 3), (8, 0), (1, 20)]
    tapped = []
    for executor in (fused, LayerByLayer(fused.model)):
        taps = dict(zip((0, 2), torch.full((11, 84), torch.nan).chunk(2, -1), strict=True))
        run(executor, shapes, CpuAttention(), taps)
        tapped.append(taps)
    for layer in (0, 2):
        assert torch.equal(tapped[0][layer], tapped[1][layer])
    gen = torch.Generator().manual_seed(1)
    torch.randn(3, 2, NUM_BLOCKS, BLOCK_SIZE, 2, 16, generator=gen)
    torch.randperm(NUM_BLOCKS, generator=gen)
    token_ids = torch.randint(50, (11,), generator=gen)
    assert torch.equal(tapped[0][0], fused._embed(token_ids)), "the embeddings"


def test_a_new_cache_is_noticed() -> None:
    executor = packed()
    first, _ = run(executor, [(1, 9)], CpuAttention())
    second, cache = run(executor, [(1, 9)], CpuAttention())
    assert torch.equal(first, second)
    assert executor._decoder._cache is cache


def test_long_chunks_and_large_steps_go_through_the_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = packed()
    served: list[bool] = []
    runs_as_one = executor.runs_as_one

    def spy(step: StepContext) -> bool:
        served.append(runs_as_one(step))
        return served[-1]

    monkeypatch.setattr(executor, "runs_as_one", spy)
    run(executor, [(8, 0), (1, 9)], CpuAttention())
    run(executor, [(9, 0), (1, 9)], CpuAttention())
    run(executor, [(1, 9)], TorchAttention(CPU, torch.float32))
    monkeypatch.setattr(fused_cpu, "MAX_TOKENS", 8)
    run(executor, [(8, 0), (1, 9)], CpuAttention())
    assert served == [True, False, False, False]


def test_what_cannot_be_fused_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    half = model(dtype=torch.bfloat16)
    half.pack()
    assert FusedCpu.of(half) is None
    monkeypatch.setattr(fused_cpu, "MAX_WEIGHT_BYTES", 1000)
    large = model()
    large.pack()
    assert FusedCpu.of(large) is None
    monkeypatch.undo()
    monkeypatch.setattr(cpu, "available", lambda: False)
    without_compiler = model()
    without_compiler.pack()
    assert FusedCpu.of(without_compiler) is None
