"""One kernel against the layers one by one: on a CPU with the kernel's reference, which shows that
each weight comes to its place, on a GPU with the kernel itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from engine.attention.base import AttentionShape, CapturableBackend, DeviceBatch
from engine.attention.select import select_backend
from engine.executors import persistent
from engine.executors.base import Executor
from engine.executors.layers import LayerByLayer
from engine.executors.persistent import PersistentLayers
from engine.layers.attention import GroupStep, KVCache, SelfAttention, StepContext, Wanted
from engine.layers.mlp import GatedMLP
from engine.layers.moe import RouterConfig
from engine.layers.rope import RopeConfig
from engine.models.base import MoEConfig
from engine.models.gemma2 import Gemma2DecoderLayer
from engine.models.granite import GraniteDecoderLayer
from engine.models.llama import ForCausalLM, LlamaDecoderLayer
from engine.models.mixtral import MixtralDecoderLayer
from engine.models.phi3 import Phi3DecoderLayer
from engine.models.qwen3_moe import MoEDecoderLayer
from engine.quant.fp8 import OnlineFp8Weight
from kernels import cuda, ops
from kernels.persistent_decoder import MAX_TOKENS
from tests.engine.executors.example import BLOCK_SIZE, CONFIG, CPU, GPU, HEAD_DIM, model
from tests.engine.runner.emulated_graphs import EmulatedAttention
from tests.kernels.decoder.reference_decoder import ReferenceDecoder
from tests.kernels.gpu_share import few_sms
from tests.pairs import every_pair

NUM_BLOCKS = 600
BATCHES = [(1,), (16,), (300,), (9, 300), (1, 17, 64, 512, *range(30, 42))]
DRAFTED = [(2, (2,)), (4, (17,)), (3, (300, 18)), (2, (9, 64, 16, 33))]
"""Tokens of each sequence, and sequences."""


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's reference in its place."""
    monkeypatch.setattr(persistent, "PersistentDecoder", ReferenceDecoder)
    monkeypatch.setattr(persistent, "refusal", lambda layers, **shape: None)


def whole(of: ForCausalLM) -> PersistentLayers:
    executor = PersistentLayers.of(of)
    assert executor is not None
    return executor


def backend(of: ForCausalLM, **shape: Any) -> CapturableBackend:
    weight = of.model.norm.weight.data
    if weight.device == CPU:
        return EmulatedAttention([None])
    heads = CONFIG.num_heads, CONFIG.num_kv_heads, HEAD_DIM
    attention = AttentionShape(weight.dtype, *heads, BLOCK_SIZE, MAX_TOKENS, **shape)
    found = select_backend("cuda", GPU, attention)
    assert isinstance(found, CapturableBackend)
    return found


def prepared(of: ForCausalLM, *seq_lens: int, queries: int = 1) -> tuple[torch.Tensor, StepContext]:
    """Token ids, and the step of so many tokens of each of some sequences."""
    weight = of.model.norm.weight.data
    device, dtype = weight.device, weight.dtype
    gen = torch.Generator().manual_seed(sum(seq_lens))
    shape = 3, 2, NUM_BLOCKS, BLOCK_SIZE, CONFIG.num_kv_heads, HEAD_DIM
    cache: KVCache = [(k, v) for k, v in torch.randn(shape, generator=gen).to(device, dtype)]
    table = torch.randperm(NUM_BLOCKS, generator=gen)[: 32 * len(seq_lens)].view(len(seq_lens), -1)
    lens = torch.tensor(seq_lens)
    at = lens[:, None] + torch.arange(-queries, 0)
    slots = table.gather(1, at // BLOCK_SIZE) * BLOCK_SIZE + at % BLOCK_SIZE
    batch = DeviceBatch(
        lens.to(device, torch.int32),
        queries * torch.arange(len(lens) + 1, dtype=torch.int32, device=device),
        table.to(device, torch.int32),
    )
    attend = backend(of).prepare_decode(batch, BLOCK_SIZE, queries)
    positions, slots = (of_tokens.view(-1).to(device) for of_tokens in (at, slots))
    step = StepContext(positions, [GroupStep(slots, attend)], cache)
    return torch.randint(50, (len(slots),), generator=gen).to(device), step


def run(executor: Executor, *seq_lens: int, queries: int = 1) -> tuple[torch.Tensor, KVCache]:
    assert isinstance(executor.model, ForCausalLM)
    token_ids, step = prepared(executor.model, *seq_lens, queries=queries)
    assert executor.serves(step)
    return executor.hidden_states(token_ids, step), step.kv_cache


def assert_close(
    of: ForCausalLM, seq_lens: tuple[int, ...], tolerance: float, queries: int = 1
) -> None:
    """With one kernel and layer by layer; tolerance: of each row's distance, by its length."""
    ours, our_cache = run(whole(of), *seq_lens, queries=queries)
    theirs, their_cache = run(LayerByLayer(of), *seq_lens, queries=queries)
    assert distance(ours, theirs) < tolerance
    _, step = prepared(of, *seq_lens, queries=queries)
    for caches in zip(our_cache, their_cache, step.kv_cache, strict=True):
        for tensors in zip(*caches, strict=True):
            our, their, before = (tensor.flatten(0, 1).flatten(1) for tensor in tensors)
            assert distance(our[step.groups[0].slots], their[step.groups[0].slots]) < tolerance
            for after in (our, their):
                after[step.groups[0].slots] = before[step.groups[0].slots]
                assert torch.equal(after, before), "no other slot is written"


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Of the rows that are the furthest apart."""
    apart = (ours.double() - theirs.double()).norm(dim=1) / theirs.double().norm(dim=1)
    return float(apart.max())


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("layer", "qk_norm", "bias", "seq_lens"),
    every_pair([LlamaDecoderLayer, Phi3DecoderLayer], [False, True], [False, True], BATCHES),
)
def test_every_weight_comes_to_its_place(
    layer: type[LlamaDecoderLayer],
    qk_norm: bool,
    bias: bool,
    seq_lens: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    biases: dict[str, Any] = {"attention_bias": bias, "attention_output_bias": False}
    made = model(layer, qk_norm=qk_norm, attention_scale=0.2, **biases)
    calls: list[int] = []
    call = ReferenceDecoder.__call__

    def spy(self: ReferenceDecoder, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(len(x))
        return call(self, x, *rest)

    monkeypatch.setattr(ReferenceDecoder, "__call__", spy)
    assert_close(made, seq_lens, 1e-4)
    assert calls == [len(seq_lens)]


@pytest.mark.usefixtures("on_cpu")
def test_serves_few_tokens_that_nothing_else_is_wanted_of(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    decoder = whole(made)
    _, step = prepared(made, 9)
    ((slots, attend),) = step.groups
    assert decoder.serves(step)
    for other in (
        {"adapted": True},
        {"wanted": Wanted(torch.tensor([0]))},
        {"groups": [*step.groups, *step.groups]},
        {"groups": [GroupStep(slots, partial(attend))]},
    ):
        assert not decoder.serves(replace(step, **other)), other
    monkeypatch.setattr(PersistentLayers, "max_batch", 5)
    monkeypatch.setattr(PersistentLayers, "max_drafted", 4)
    for queries, num_sequences, serves, serves_aux in (
        *((1, 4, True, False), (1, 5, True, False), (1, 6, False, False)),
        *((2, 2, True, True), (2, 3, False, False), (4, 1, True, True), (5, 1, False, False)),
    ):
        _, several = prepared(made, *[9] * num_sequences, queries=queries)
        assert decoder.serves(several) == serves
        states = torch.zeros(queries * num_sequences, 256)
        assert decoder.serves(replace(several, aux_hidden_states={1: states})) == serves_aux


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("queries", "seq_lens"), DRAFTED)
def test_several_tokens_of_a_sequence_see_each_other(
    queries: int, seq_lens: tuple[int, ...]
) -> None:
    assert_close(model(), seq_lens, 1e-4, queries)


@pytest.mark.usefixtures("on_cpu")
def test_inputs_of_layers_are_kept() -> None:
    made = model()
    found = []
    for executor in (whole(made), LayerByLayer(made)):
        token_ids, step = prepared(made, 30, queries=3)
        states = dict(zip((0, 2), torch.zeros(3, 2, CONFIG.hidden_size).unbind(1), strict=True))
        executor.hidden_states(token_ids, replace(step, aux_hidden_states=states))
        found.append(torch.cat(list(states.values()), 1))
    assert found[0].any(1).all()
    assert distance(*found) < 1e-4


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    "changes",
    [
        {"mlp_bias": True},
        {"attention_bias": True},  # of the output, too
        {"attention_softcap": 50.0},
        {"windows": (None, 64, None)},
        {"activation": "gelu_pytorch_tanh"},
        {"rope": RopeConfig(rotary_fraction=0.5)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_layers_that_compute_something_else_are_left_alone(changes: dict[str, Any]) -> None:
    assert PersistentLayers.of(model(**changes)) is None


@pytest.mark.usefixtures("on_cpu")
def test_a_quantized_or_packed_weight_leaves_all_layers_alone() -> None:
    quantized, packed = model(), model()
    of_last = quantized.model.layers[-1]
    assert isinstance(of_last.mlp, GatedMLP)
    of_last.mlp.down_proj.quantize(partial(OnlineFp8Weight, activations=False))
    assert PersistentLayers.of(quantized) is None
    of_first = packed.model.layers[0].self_attn
    assert isinstance(of_first, SelfAttention)
    of_first.o_proj.pack()
    if of_first.o_proj.packed is None:
        pytest.skip("nothing packs linear layers here")
    assert PersistentLayers.of(packed) is None


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("layer", [MixtralDecoderLayer, MoEDecoderLayer])
def test_experts_are_left_alone(layer: type[LlamaDecoderLayer]) -> None:
    moe = MoEConfig(RouterConfig(num_experts=4, top_k=2, renormalize=True), 64)
    assert PersistentLayers.of(model(layer, moe=moe)) is None


def test_what_the_kernel_refuses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, int]] = []

    def refusal(layers: list[Any], **shape: int) -> str:
        assert len(layers) == 3
        seen.append(shape)
        return "because"

    monkeypatch.setattr(persistent, "refusal", refusal)
    assert PersistentLayers.of(model()) is None
    assert seen == [{"num_heads": 4, "num_kv_heads": 2, "head_dim": HEAD_DIM}]


@pytest.mark.usefixtures("on_cpu")
def test_what_the_gpu_does_not_launch_is_left_alone_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ReferenceDecoder, "refused", lambda _: "too many blocks")
    assert PersistentLayers.of(model()) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("launches no kernel for all (too many blocks)")


@pytest.mark.usefixtures("on_cpu")
def test_any_other_error_is_none_of_its(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: ReferenceDecoder) -> None:
        raise RuntimeError("persistent_decoder: an illegal memory access was encountered")

    monkeypatch.setattr(ReferenceDecoder, "refused", refused)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        PersistentLayers.of(model())


def test_a_cpu_has_no_such_kernel() -> None:
    made = model(dtype=torch.bfloat16)
    made.pack()
    assert PersistentLayers.of(made) is None


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those that an engine registers."""
    monkeypatch.setattr(ops, "_registry", dict(ops._registry))
    cuda.register()
    yield
    ops.resolve.cache_clear()


def on_gpu(layer: type[LlamaDecoderLayer] = LlamaDecoderLayer, **changes: Any) -> ForCausalLM:
    made = model(layer, device=GPU, **{"dtype": torch.bfloat16, **changes})
    made.pack()
    return made


def needs_kernel() -> None:
    if PersistentLayers.of(on_gpu()) is None:
        pytest.skip("not for this GPU")


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("layer", "changes", "has_one"),
    [
        (LlamaDecoderLayer, {}, True),
        (LlamaDecoderLayer, {"attention_bias": True, "attention_output_bias": False}, True),
        (LlamaDecoderLayer, {"windows": (64, 64, 64)}, False),
        (LlamaDecoderLayer, {"dtype": torch.float16}, True),
        (LlamaDecoderLayer, {"dtype": torch.float32}, False),
        (LlamaDecoderLayer, {"qk_norm": True}, True),
        (Phi3DecoderLayer, {}, True),
        (GraniteDecoderLayer, {}, False),
        (Gemma2DecoderLayer, {}, False),
    ],
)
def test_families_that_differ_in_weights_alone_have_it(
    layer: type[LlamaDecoderLayer], changes: dict[str, Any], has_one: bool
) -> None:
    needs_kernel()
    assert (PersistentLayers.of(on_gpu(layer, **changes)) is not None) == has_one


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seq_lens", BATCHES, ids=len)
def test_equals_the_layers_but_for_rounding(
    qk_norm: bool, bias: bool, dtype: torch.dtype, seq_lens: tuple[int, ...]
) -> None:
    needs_kernel()
    biases: dict[str, Any] = {"attention_bias": bias, "attention_output_bias": False}
    made = on_gpu(qk_norm=qk_norm, dtype=dtype, **biases)
    assert_close(made, seq_lens, 0.06 if dtype == torch.bfloat16 else 0.0075)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("queries", "seq_lens"), DRAFTED)
def test_several_tokens_of_a_sequence_equal_the_layers_but_for_rounding(
    queries: int, seq_lens: tuple[int, ...], dtype: torch.dtype
) -> None:
    needs_kernel()
    made = on_gpu(qk_norm=True, dtype=dtype)
    assert_close(made, seq_lens, 0.06 if dtype == torch.bfloat16 else 0.0075, queries)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
def test_a_part_of_a_gpu_goes_layer_by_layer(caplog: pytest.LogCaptureFixture) -> None:
    """As under MPS with a limit of SMs, or in a slice by MIG."""
    needs_kernel()
    whole_gpu, _ = run(LayerByLayer(on_gpu()), 9, 300)
    with few_sms():
        made = on_gpu()
        assert PersistentLayers.of(made) is None
        part, _ = run(LayerByLayer(made), 9, 300)
        assert distance(part, whole_gpu) < 0.06
    assert "launches no kernel for all (cudaErrorCooperativeLaunchTooLarge" in caplog.text


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
def test_a_cache_in_fp8_goes_layer_by_layer() -> None:
    needs_kernel()
    made = on_gpu()
    _, step = prepared(made, 9)
    executor = whole(made)
    assert executor.serves(step)
    batch = step.groups[0].attend.plain_batch  # type: ignore[attr-defined]
    fp8 = backend(made, kv_dtype=torch.float8_e4m3fn).prepare_decode(batch, BLOCK_SIZE)
    assert not executor.serves(replace(step, groups=[GroupStep(step.groups[0].slots, fp8)]))
