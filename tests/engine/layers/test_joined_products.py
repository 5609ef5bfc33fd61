"""One kernel behind each attention against the layers' own: on a CPU with the kernel's reference,
which shows that each weight comes to its place, on a GPU with the kernel itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from engine.attention.base import AttentionShape, CapturableBackend, DeviceBatch
from engine.attention.select import select_backend
from engine.layers import joined_products
from engine.layers.attention import GroupStep, KVCache, SelfAttention, StepContext, Wanted
from engine.layers.joined_products import JoinedProducts
from engine.models.llama import LlamaDecoderLayer, LlamaModel
from engine.models.qwen3 import Qwen3DecoderLayer
from kernels import cuda, ops
from kernels.reference_products import ReferenceProducts
from tests.engine.layers.test_joined_layer import BLOCK_SIZE, CPU, GPU, model
from tests.engine.runner.emulated_graphs import EmulatedAttention
from tests.kernels.gpu_share import few_sms

NUM_BLOCKS = 700
SERVED = {"llama": (LlamaDecoderLayer, 14336), "qwen3": (Qwen3DecoderLayer, 12288)}
"""Layers for which there is a kernel, and their intermediate sizes."""
HEADS = {"hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
SEQ_LENS = {17: (9,) * 17, 40: tuple(range(1, 41)), 64: (1, 130, *range(2, 64))}


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's reference in its place."""
    monkeypatch.setattr(joined_products, "LayerProducts", ReferenceProducts)
    monkeypatch.setattr(joined_products, "refusal", lambda layers: None)


def joined(of: LlamaModel) -> JoinedProducts | None:
    return JoinedProducts.of(of.layers, of.norm)


def prepared(of: LlamaModel, *seq_lens: int) -> tuple[torch.Tensor, StepContext]:
    """Token ids, and a decode step of sequences of these lengths, with joined products."""
    weight, attention = of.norm.weight.data, of.layers[0].self_attn
    assert isinstance(attention, SelfAttention)
    device, dtype = weight.device, weight.dtype
    gen = torch.Generator().manual_seed(sum(seq_lens))
    heads = attention.num_kv_heads, attention.head_dim
    shape = len(of.layers), 2, NUM_BLOCKS, BLOCK_SIZE, *heads
    caches: KVCache = [(k, v) for k, v in torch.randn(shape, generator=gen).to(device, dtype)]
    table = torch.randperm(NUM_BLOCKS, generator=gen)[: 10 * len(seq_lens)].view(len(seq_lens), -1)
    lens = torch.tensor(seq_lens)
    at = lens[:, None] - 1
    slots = table.gather(1, at // BLOCK_SIZE) * BLOCK_SIZE + at % BLOCK_SIZE
    batch = DeviceBatch(
        lens.to(device, torch.int32),
        torch.arange(len(lens) + 1, dtype=torch.int32, device=device),
        table.to(device, torch.int32),
    )
    backend: Any = EmulatedAttention([attention.window])
    if device != CPU:
        of_batch = BLOCK_SIZE, JoinedProducts.num_tokens.stop
        backend = select_backend(
            "cuda", GPU, AttentionShape(dtype, attention.num_heads, *heads, *of_batch)
        )
        assert isinstance(backend, CapturableBackend)
    attend = backend.prepare_decode(batch, BLOCK_SIZE)
    positions, slots = (of_tokens.view(-1).to(device) for of_tokens in (at, slots))
    taps = {1: torch.zeros(len(slots), weight.shape[0], dtype=dtype, device=device)}
    groups = [GroupStep(slots, attend)]
    step = StepContext(positions, groups, caches, taps, joins_products=True)
    return torch.randint(50, (len(slots),), generator=gen).to(device), step


def run(of: LlamaModel, *seq_lens: int, joined: bool) -> tuple[torch.Tensor, KVCache]:
    """The hidden states, with what is tapped behind them; and the cache."""
    token_ids, step = prepared(of, *seq_lens)
    hidden = of(token_ids, replace(step, joins_products=joined))
    return torch.cat((hidden, *step.taps.values())), step.kv_cache


def assert_close(of: LlamaModel, seq_lens: tuple[int, ...], tolerance: float) -> None:
    """With joined products and with the layers' own; tolerance: of each row's distance, by its
    length."""
    ours, our_cache = run(of, *seq_lens, joined=True)
    theirs, their_cache = run(of, *seq_lens, joined=False)
    assert distance(ours, theirs) < tolerance
    for ours_of_layer, theirs_of_layer in zip(our_cache, their_cache, strict=True):
        for mine, other in zip(ours_of_layer, theirs_of_layer, strict=True):
            assert distance(mine.flatten(0, 1).flatten(1), other.flatten(0, 1).flatten(1)) < (
                tolerance
            )


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Of the rows that are the furthest apart."""
    apart = (ours.double() - theirs.double()).norm(dim=1) / theirs.double().norm(dim=1)
    return float(apart.max())


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("windows", [(None, None, None), (12, 12, 12)])
@pytest.mark.parametrize("layer", [LlamaDecoderLayer, Qwen3DecoderLayer])
def test_every_weight_comes_to_its_place(
    layer: type[LlamaDecoderLayer],
    windows: tuple[int | None, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = model(layer, attention_scale=0.2, windows=windows)
    made._products = joined(made)
    assert made.joinable_tokens == range(17, 65)
    calls: list[tuple[int, int]] = []
    call = ReferenceProducts.__call__

    def spy(self: ReferenceProducts, index: int, *rows: torch.Tensor) -> torch.Tensor | None:
        calls.append((index, len(rows[0])))
        return call(self, index, *rows)

    monkeypatch.setattr(ReferenceProducts, "__call__", spy)
    assert_close(made, SEQ_LENS[40], 1e-4)
    assert calls == [(0, 40), (1, 40), (2, 40)]


@pytest.mark.usefixtures("on_cpu")
def test_serves_steps_of_so_many_tokens_without_adapters() -> None:
    made = model()
    products = joined(made)
    assert products is not None
    for num_sequences, serves in ((16, False), (17, True), (64, True), (65, False)):
        _, step = prepared(made, *[9] * num_sequences)
        assert products.serves(step) == serves
    _, step = prepared(made, *SEQ_LENS[17])
    for other in (
        {"joins_products": False},
        {"adapted": True},
        {"wanted": Wanted(torch.tensor([0]))},
    ):
        assert not products.serves(replace(step, **other)), other


@pytest.mark.usefixtures("on_cpu")
def test_layers_that_compute_something_else_are_left_alone() -> None:
    assert joined(model(mlp_bias=True)) is None
    assert joined(model(activation="gelu_pytorch_tanh")) is None


@pytest.mark.usefixtures("on_cpu")
def test_what_the_gpu_has_no_room_for_is_left_alone_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ReferenceProducts, "refused", lambda _: "has no room")
    made = model()
    made._products = joined(made)
    assert not made.joinable_tokens
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("this GPU has no room")
    assert torch.isfinite(run(made, *SEQ_LENS[17], joined=True)[0]).all()


def test_a_cpu_has_no_such_kernel() -> None:
    assert joined(model(dtype=torch.bfloat16)) is None


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those that an engine registers."""
    monkeypatch.setattr(ops, "_registry", dict(ops._registry))
    cuda.register()
    yield
    ops.resolve.cache_clear()


@cache
def on_gpu(family: str, dtype: torch.dtype) -> LlamaModel:
    layer, width = SERVED[family]
    sizes = {**HEADS, "intermediate_size": width, "num_layers": 2}
    made = model(layer, device=GPU, dtype=dtype, **sizes)
    made.pack()
    return made


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", SERVED)
@pytest.mark.parametrize("seq_lens", SEQ_LENS.values(), ids=SEQ_LENS)
def test_equals_the_layers_but_for_rounding(
    family: str, dtype: torch.dtype, seq_lens: tuple[int, ...]
) -> None:
    made = on_gpu(family, dtype)
    if made._products is None:
        pytest.skip("not for this GPU")
    assert made.joinable_tokens == range(17, 65)
    assert_close(made, seq_lens, 0.06 if dtype == torch.bfloat16 else 0.0075)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
def test_a_part_of_a_gpu_goes_layer_by_layer(caplog: pytest.LogCaptureFixture) -> None:
    made = on_gpu("llama", torch.bfloat16)
    if made._products is None:
        pytest.skip("not for this GPU")
    whole_gpu, _ = run(made, *SEQ_LENS[17], joined=False)
    with few_sms():
        made.pack()
        assert not made.joinable_tokens
        part, _ = run(made, *SEQ_LENS[17], joined=True)
        assert distance(part, whole_gpu) < 0.06
    assert "products of a layer: this GPU has no room for all CTAs" in caplog.text
    made.pack()
    assert made.joinable_tokens


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
def test_layers_of_other_sizes_are_left_alone() -> None:
    made = model(device=GPU, dtype=torch.bfloat16)
    made.pack()
    assert made._products is None
