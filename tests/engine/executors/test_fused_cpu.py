"""All layers as one kernel against the layers one by one, and both against plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.cpu import CpuAttention
from engine.executors import fused_cpu
from engine.executors.fused_cpu import FusedCpu
from engine.executors.layers import LayerByLayer
from engine.layers.attention import StepContext
from engine.models.llama import ForCausalLM
from kernels import cpu, ops
from tests.engine.executors.example import assert_same, make_step, model, run

pytestmark = pytest.mark.skipif(not cpu.available(), reason="no compiler for CPU kernels")

SIZES = {"hidden_size": 42, "intermediate_size": 75, "num_heads": 6, "head_dim": 16}
"""They fill no vectors."""


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    before = dict(ops._registry)
    cpu.register()
    yield
    ops._registry.clear()
    ops._registry.update(before)
    ops.resolve.cache_clear()


def packed(**changes: Any) -> FusedCpu:
    made = model(**{**SIZES, **changes})
    made.pack()
    executor = FusedCpu.of(made)
    assert executor is not None
    return executor


def assert_same_bits(executor: FusedCpu, shapes: list[tuple[int, int]]) -> torch.Tensor:
    fused = run(executor, shapes, backend=CpuAttention())
    assert_same(fused, run(LayerByLayer(executor.model), shapes, backend=CpuAttention()))
    return fused[0]


@pytest.mark.parametrize("head_dim", [6, 16, 32])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shapes", [[(1, 0)], [(1, 9), (1, 30), (8, 0)], [(3, 2)] * 8])
def test_equals_plain_torch(head_dim: int, bias: bool, shapes: list[tuple[int, int]]) -> None:
    changes: dict[str, Any] = SIZES | {"head_dim": head_dim}
    changes |= {"attention_bias": bias, "mlp_bias": bias}
    plain, _ = run(LayerByLayer(model(**changes)), shapes)
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


def test_what_goes_into_a_layer_can_be_kept() -> None:
    fused = packed()
    shapes = [(2, 3), (8, 0), (1, 20)]
    found = []
    for executor in (fused, LayerByLayer(fused.model)):
        states = dict(zip((0, 2), torch.full((11, 84), torch.nan).chunk(2, -1), strict=True))
        run(executor, shapes, backend=CpuAttention(), aux_hidden_states=states)
        found.append(states)
    for layer in (0, 2):
        assert torch.equal(found[0][layer], found[1][layer])
    assert isinstance(fused.model, ForCausalLM)
    token_ids, _ = make_step(fused.model, shapes)
    assert torch.equal(found[0][0], fused._embed(token_ids)), "the embeddings"


def test_a_new_cache_is_noticed() -> None:
    executor = packed()
    first, _ = run(executor, [(1, 9)], backend=CpuAttention())
    second, cache = run(executor, [(1, 9)], backend=CpuAttention())
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
    run(executor, [(8, 0), (1, 9)], backend=CpuAttention())
    run(executor, [(9, 0), (1, 9)], backend=CpuAttention())
    run(executor, [(1, 9)])
    monkeypatch.setattr(fused_cpu, "MAX_TOKENS", 8)
    run(executor, [(8, 0), (1, 9)], backend=CpuAttention())
    assert served == [True, False, False, False]


def test_what_cannot_be_fused_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    half = model(dtype=torch.bfloat16)
    half.pack()
    assert FusedCpu.of(half) is None
    monkeypatch.setattr(cpu, "available", lambda: False)
    without_compiler = model()
    without_compiler.pack()
    assert FusedCpu.of(without_compiler) is None
