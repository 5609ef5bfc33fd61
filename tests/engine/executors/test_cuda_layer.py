"""Layers as two calls each against the layers one by one: to the bit on a GPU; on a CPU with the
bindings' contracts written out, which shows that each argument comes to its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from engine.executors.base import Executor
from engine.executors.cuda_layer import CudaLayers
from engine.executors.dense import dense_layers
from engine.executors.layers import LayerByLayer
from engine.layers.attention import GroupStep, KVCache, SelfAttention, Wanted
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.moe import RouterConfig
from engine.lora.product import LoraAddition, StepAdapters
from engine.models.base import MoEConfig
from engine.models.gemma2 import Gemma2DecoderLayer
from engine.models.granite import GraniteDecoderLayer
from engine.models.llama import ForCausalLM, LlamaDecoderLayer
from engine.models.mixtral import MixtralDecoderLayer
from engine.models.qwen3_moe import MoEDecoderLayer
from engine.quant.fp8 import OnlineFp8Weight
from kernels import build, cuda, cuda_lora, ops
from kernels.gemm import Choice, Gemm, Gemms, Kind, has_wide
from kernels.lora import AdapterTiles, LoraMatrices
from tests.engine.executors.example import GPU, assert_same, make_step, model


def by_calls(of: ForCausalLM) -> CudaLayers:
    layers = dense_layers(of)
    assert layers is not None
    return CudaLayers(of, layers)


def run(
    executor: Executor, shapes: list[tuple[int, int]], **options: Any
) -> tuple[torch.Tensor, KVCache]:
    """As ``example.run``."""
    assert isinstance(executor.model, ForCausalLM)
    token_ids, step = make_step(executor.model, shapes, **options)
    ((slots, attend),) = step.groups
    # As a function: attention that also stores the keys may rotate them with other roundings.
    step = replace(step, groups=[GroupStep(slots, partial(attend))])
    return executor.hidden_states(token_ids, step), step.kv_cache


def schema(op: str) -> list[str]:
    """The names of an operation's arguments, in order."""
    text = "".join(re.findall(r'"(.*)"', (build.SOURCES / "binding" / "layer.cpp").read_text()))
    (found,) = re.findall(rf"{op}\(.*?\) -> Tensor", text)
    return [argument.name for argument in torch._C.parse_schema(f"sluice::{found}").arguments]


def contract(op: str, written_out: Callable[[SimpleNamespace], torch.Tensor]) -> SimpleNamespace:
    """A stand-in for the operation of a GPU, which is called with positions only."""
    names = schema(op)

    def call(*args: Any) -> torch.Tensor:
        return written_out(SimpleNamespace(**dict(zip(names, args, strict=True))))

    return SimpleNamespace(default=call)


def product(a: SimpleNamespace, name: str, x: torch.Tensor) -> torch.Tensor:
    out = F.linear(x, getattr(a, f"{name}_weight"), getattr(a, f"{name}_bias"))
    adapters = getattr(a, f"{name}_adapters")
    if adapters:
        down, up, ranks, ends, slots, tokens = adapters
        parts = tuple(ends.diff().tolist())
        matrices = LoraMatrices(down, up, ranks, ends, parts)
        tiles = AdapterTiles(len(x), slots, tokens)
        ops.expand_lora(out, ops.shrink_lora(x, matrices, tiles), matrices, tiles)
    return out


def attention_inputs(a: SimpleNamespace) -> torch.Tensor:
    x = ops.rms_norm(a.x, a.norm, a.eps, a.residual)
    heads = a.k_cache.shape[2]
    qkv = product(a, "qkv", x).view(len(x), -1, a.k_cache.shape[3])
    q, k, v = qkv.split_with_sizes((qkv.shape[1] - 2 * heads, heads, heads), 1)
    ops.rope_and_cache(
        *(q, k, v, a.k_cache, a.v_cache, a.cos_sin, a.positions, a.slots),
        q_norm=a.q_norm,
        k_norm=a.k_norm,
        eps=a.head_eps,
        k_scale=a.k_scale,
        v_scale=a.v_scale,
    )
    return q


def feed_forward(a: SimpleNamespace) -> torch.Tensor:
    x = product(a, "output", a.attended)
    x = ops.rms_norm(x, a.norm, a.eps, a.residual)
    return product(a, "down", ops.silu_mul(product(a, "gate_up", x)))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for op, written_out in (
        ("attention_inputs", attention_inputs),
        ("feed_forward", feed_forward),
    ):
        monkeypatch.setattr(torch.ops.sluice_cuda, op, contract(op, written_out), raising=False)


WANTED = Wanted(torch.tensor([1, 6, 7]))


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("wanted", [None, WANTED], ids=["all", "some"])
def test_every_argument_comes_to_its_place(
    qk_norm: bool, bias: bool, wanted: Wanted | None
) -> None:
    made = model(qk_norm=qk_norm, attention_bias=bias, mlp_bias=bias)
    plain = run(LayerByLayer(made), [(5, 0), (3, 7)], wanted=wanted)
    assert_same(run(by_calls(made), [(5, 0), (3, 7)], wanted=wanted), plain)


@pytest.mark.usefixtures("stand_ins")
def test_a_cache_in_fp8_has_its_scales() -> None:
    made = model()
    plain = run(LayerByLayer(made), [(5, 0), (3, 7)], fp8=True)
    assert_same(run(by_calls(made), [(5, 0), (3, 7)], fp8=True), plain)


@pytest.mark.usefixtures("stand_ins")
def test_queries_cut_down_to_wanted_tokens_attend_by_themselves() -> None:
    made = model()
    layers = LayerByLayer(made)
    plain = run(layers, [(8, 5)], last=3)
    torch.testing.assert_close(plain[0], run(layers, [(8, 5)])[0][5:])
    assert_same(run(by_calls(made), [(8, 5)], last=3), plain)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("chosen", [range(25), [3, 18, 22]], ids=["all", "some"])
def test_adapters_come_to_the_products_that_they_are_of(chosen: Sequence[int]) -> None:
    made = model(dtype=torch.bfloat16, attention_bias=True)
    wanted = None if len(chosen) == 25 else Wanted(torch.tensor(chosen))
    compute = partial(run, shapes=[(20, 0), (5, 7)], wanted=wanted)
    with adapters_for(made, 25, chosen):
        plain = compute(LayerByLayer(made), adapted=True)
        assert_same(compute(by_calls(made), adapted=True), plain)
    base = compute(by_calls(made))
    differs = (base[0] != plain[0]).any(1)
    assert differs.tolist() == [token < 20 for token in chosen]


@contextmanager
def adapters_for(
    of: ForCausalLM, num_tokens: int, wanted: Sequence[int] | None = None
) -> Iterator[None]:
    """One of all layers for all tokens but the last five, who have none."""
    weight = of.model.norm.weight.data
    gen = torch.Generator().manual_seed(2)
    slots = np.where(np.arange(num_tokens) < num_tokens - 5, 1, -1)
    step = StepAdapters()
    for linear in (module for module in of.model.modules() if isinstance(module, Linear)):
        ranks = torch.full((2, len(linear.parts)), 8, dtype=torch.int32, device=weight.device)
        parts = tuple(linear.parts.values())
        matrices = LoraMatrices.empty(ranks, linear.in_features, parts, 8, dtype=weight.dtype)
        for tensor in (matrices.down, matrices.up):
            tensor.copy_(torch.randn(tensor.shape, generator=gen) * 0.05)
        matrices.down[:, :, 8:], matrices.up[:, :, 8:] = 0, 0
        names = {name: slice(0) for name in linear.parts}
        linear.addition = LoraAddition(matrices, names, step)
    step.tiles = AdapterTiles.of(slots, weight.device)
    if wanted is not None:
        step.wanted = AdapterTiles.of(slots[wanted], weight.device)
    yield
    step.tiles = None


def test_adapters_that_only_the_layers_can_add_go_through_these() -> None:
    """There are no stand-ins here: a call of the operations fails. Adapters in float32 are none of
    the kernels'."""
    made = model()
    with adapters_for(made, 25):
        plain = run(LayerByLayer(made), [(25, 0)], adapted=True)
        assert_same(run(by_calls(made), [(25, 0)], adapted=True), plain)
    with pytest.raises((AttributeError, NotImplementedError), match="attention_inputs"):
        run(by_calls(made), [(4, 0)])


def test_layers_of_another_structure_are_not_dense() -> None:
    other_activation, quantized = model(), model()
    of_last = other_activation.model.layers[-1]
    assert isinstance(of_last.mlp, GatedMLP)
    of_last.mlp.activation = "gelu_pytorch_tanh"
    assert dense_layers(other_activation) is None
    attention = quantized.model.layers[-1].self_attn
    assert isinstance(attention, SelfAttention)
    attention.o_proj.quantize(partial(OnlineFp8Weight, activations=False))
    layers = dense_layers(quantized)
    assert layers is not None
    assert [layer.has_plain_weights for layer in layers] == [True, True, False]


@pytest.mark.parametrize("layer", [MixtralDecoderLayer, MoEDecoderLayer])
def test_experts_are_not_dense(layer: type[LlamaDecoderLayer]) -> None:
    """Whatever the layer calls them."""
    moe = MoEConfig(RouterConfig(num_experts=4, top_k=2, renormalize=True), 64)
    assert dense_layers(model(layer, moe=moe)) is None


def test_without_a_gpu_there_are_no_such_calls() -> None:
    made = model()
    made.pack()
    assert CudaLayers.of(made) is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("layer", "is_served"),
    [
        (LlamaDecoderLayer, True),
        (GraniteDecoderLayer, False),
        (Gemma2DecoderLayer, False),
    ],
)
def test_layers_that_compute_otherwise_are_left_alone(
    layer: type[LlamaDecoderLayer], is_served: bool
) -> None:
    made = model(layer, device=GPU, dtype=torch.bfloat16)
    made.pack()
    assert (CudaLayers.of(made) is not None) == is_served


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those that an engine registers: without them the layers one by one round as torch does."""
    monkeypatch.setattr(ops, "_registry", dict(ops._registry))
    cuda.register()
    cuda_lora.register()
    yield
    ops.resolve.cache_clear()


def on_gpu(packed: ForCausalLM) -> CudaLayers:
    executor = CudaLayers.of(packed)
    assert executor is not None
    return executor


SHAPES = {
    "prompts": [(100, 0), (33, 40)],
    "prompts and tokens": [(50, 100), (1, 90), (1, 200), (90, 0)],
    "tokens": [(1, 90), (1, 0), (3, 200)],
}


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("product", ["library", "own"])
def test_equals_the_layers_to_the_bit(
    shapes: list[tuple[int, int]],
    qk_norm: bool,
    bias: bool,
    fp8: bool,
    product: str,
) -> None:
    biases: dict[str, Any] = {"attention_bias": bias, "mlp_bias": bias}
    made = model(device=GPU, dtype=torch.bfloat16, qk_norm=qk_norm, **biases)
    made.pack()
    if product == "own":
        serve_with_own_products(made)
    wanted = Wanted(torch.tensor([0, 2, 3], device=GPU))
    for some in (None, wanted):
        plain = run(LayerByLayer(made), shapes, fp8=fp8, wanted=some)
        assert_same(run(on_gpu(made), shapes, fp8=fp8, wanted=some), plain)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shapes", [SHAPES["prompts"], SHAPES["prompts and tokens"]])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("product", ["library", "own"])
def test_with_adapters_it_equals_the_layers_to_the_bit(
    shapes: list[tuple[int, int]], bias: bool, product: str
) -> None:
    made = model(device=GPU, dtype=torch.bfloat16, attention_bias=bias, mlp_bias=bias)
    made.pack()
    if product == "own":
        serve_with_own_products(made)
    layers, calls = LayerByLayer(made), on_gpu(made)
    base = run(layers, shapes)
    num_tokens = sum(n for n, _ in shapes)
    chosen = range(0, num_tokens, 3)
    with adapters_for(made, num_tokens, chosen):
        for wanted in (None, Wanted(torch.tensor(chosen, device=GPU))):
            plain = run(layers, shapes, adapted=True, wanted=wanted)
            assert_same(run(calls, shapes, adapted=True, wanted=wanted), plain)
            if wanted is None:
                assert not torch.equal(plain[0], base[0])


def serve_with_own_products(of: ForCausalLM) -> None:
    rows, products = [cuda.MAX_SKINNY_TOKENS], [Gemm("skinny")]
    if has_wide(GPU):
        rows.append(1024)
        products.append(Gemm("wide", 192))
    by_rows = Choice(rows, products)
    linears = [module for module in of.model.modules() if isinstance(module, Linear)]
    chosen = {
        Kind(linear.weight.data.shape, torch.bfloat16, gated): by_rows
        for linear in linears
        for gated in (False, True)
    }
    for linear in linears:
        linear.gemms = Gemms(chosen)
