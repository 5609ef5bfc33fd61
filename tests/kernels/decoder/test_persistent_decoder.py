"""The decoder of few tokens in one launch, against the layers one operation at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from kernels import cuda, reference
from kernels.persistent_decoder import MAX_TOKENS, LayerWeights, PersistentDecoder, refusal
from tests.kernels.gpu_share import few_sms

EPS, HEAD_EPS = 1e-5, 1e-6
OF_STEP = ("queries", "fillers", "block_size", "stored", "aux_states")
"""Options of ``make_step``."""
DRAFTED = [
    # tokens of each sequence, contexts
    *((4, (context,)) for context in (4, 5, 16, 17, 19, 20, 34)),
    (2, (300, 17)),
    (2, (2, 0, 33, 18)),
    (3, (16, 50)),
    (5, (1000,)),
    (8, (8,)),
    (8, (23,)),
    (8, (600,)),
]
"""The new keys in one tile of keys and in two, whose borders are the units' or not."""
LIMIT = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Model:
    """Layers of random weights, whose rows keep the size of what they multiply."""

    layers: list[LayerWeights]
    heads: int
    kv_heads: int
    dim: int

    @property
    def scale(self) -> float:
        return float(self.dim**-0.5)

    @property
    def shape(self) -> dict[str, int]:
        return {"num_heads": self.heads, "num_kv_heads": self.kv_heads, "head_dim": self.dim}


@dataclass(frozen=True)
class Step:
    """What a step reads and writes; ``caches`` are of keys and values, by layer."""

    x: torch.Tensor
    caches: list[tuple[torch.Tensor, torch.Tensor]]
    cos_sin: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    aux_states: dict[int, torch.Tensor]

    @property
    def num_queries(self) -> int:
        """Tokens of each sequence."""
        return len(self.x) // len(self.seq_lens)

    @property
    def is_live(self) -> torch.Tensor:
        """[tokens]: which are not padding."""
        return (self.seq_lens > 0).repeat_interleave(self.num_queries)

    def copy(self) -> Step:
        caches = [(k.clone(), v.clone()) for k, v in self.caches]
        return replace(
            self,
            caches=caches,
            aux_states={i: aux_state.clone() for i, aux_state in self.aux_states.items()},
        )


def make_model(
    *,
    num_layers: int = 2,
    hidden: int = 256,
    intermediate: int = 448,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 64,
    bias: bool = False,
    head_norms: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
) -> Model:
    gen = torch.Generator(device=device).manual_seed(num_layers + hidden)

    def randn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=gen, device=device) * scale).to(dtype)

    def norm(width: int) -> torch.Tensor:
        return (1 + 0.2 * torch.randn(width, generator=gen, device=device)).to(dtype)

    features = (heads + 2 * kv_heads) * dim
    layers = [
        LayerWeights(
            input_norm=norm(hidden),
            qkv=randn(features, hidden, scale=hidden**-0.5),
            qkv_bias=randn(features) if bias else None,
            q_norm=norm(dim) if head_norms else None,
            k_norm=norm(dim) if head_norms else None,
            output=randn(hidden, heads * dim, scale=(heads * dim) ** -0.5),
            attended_norm=norm(hidden),
            gate_up=randn(2 * intermediate, hidden, scale=hidden**-0.5),
            down=randn(hidden, intermediate, scale=intermediate**-0.5),
        )
        for _ in range(num_layers)
    ]
    return Model(layers, heads, kv_heads, dim)


def make_step(
    model: Model,
    *contexts: int,
    queries: int = 1,
    fillers: int = 0,
    block_size: int = 16,
    stored: bool = True,
    aux_states: tuple[int, ...] = (),
) -> Step:
    """The step of the newest tokens of sequences of so many, whose blocks are scattered among
    others full of NaN; so is what lies behind their ends, and in these tokens' slots. 0: padding.
    queries: tokens of each sequence, of which the first ``fillers`` are not stored."""
    weight = model.layers[0].qkv
    device, dtype = weight.device, weight.dtype
    gen = torch.Generator(device=device).manual_seed(sum(contexts) + 7)
    used = [-(-context // block_size) for context in contexts]
    order = torch.randperm(sum(used) + 3, generator=gen, device=device)
    table = torch.full((len(contexts), max(used) + 2), 1 << 20, dtype=torch.int32, device=device)
    shape = (len(order), block_size, model.kv_heads, model.dim)
    caches = [
        (
            torch.full(shape, float("nan"), dtype=dtype, device=device),
            torch.full(shape, float("nan"), dtype=dtype, device=device),
        )
        for _ in model.layers
    ]
    slots = torch.full((len(contexts), queries), -1, device=device)
    newest = torch.tensor(contexts, device=device)[:, None] + torch.arange(
        -queries, 0, device=device
    )
    for i, context in enumerate(contexts):
        own, order = order[: used[i]], order[used[i] :]
        table[i, : used[i]] = own
        for cache in (cache for pair in caches for cache in pair):
            tokens = (used[i] * block_size, *shape[2:])
            old = torch.randn(*tokens, generator=gen, device=device).to(dtype)
            old[max(0, context - queries) :] = float("nan")
            cache[own] = old.view(used[i], *shape[1:])
        if context and stored:
            at = newest[i, fillers:]
            slots[i, fillers:] = own[at // block_size] * block_size + at % block_size
    angle = torch.arange(max(contexts) + 1, device=device)[:, None] * (
        10000.0 ** -(torch.arange(model.dim // 2, device=device) * 2 / model.dim)
    )
    x = torch.randn(slots.numel(), weight.shape[1], generator=gen, device=device).to(dtype)
    aux = torch.full(
        (len(x), len(aux_states), x.shape[1]), float("nan"), dtype=dtype, device=device
    )
    return Step(
        x=x,
        caches=caches,
        cos_sin=torch.cat((angle.cos(), angle.sin()), -1).float().contiguous(),
        positions=newest.clamp(min=0).view(-1),
        slots=slots.view(-1),
        block_table=table,
        seq_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        aux_states=dict(zip(aux_states, aux.unbind(1), strict=True)),
    )


def expected(model: Model, step: Step) -> torch.Tensor:
    """One operation after the other, each rounded; the step's caches and aux_states are written."""
    x, residual = step.x, torch.zeros_like(step.x)
    tokens, block_size = len(x), step.caches[0][0].shape[1]
    sequences = torch.arange(len(step.seq_lens) + 1, dtype=torch.int32, device=x.device)
    cu_queries = sequences * step.num_queries
    at = step.positions.view(-1, step.num_queries)
    slots = step.block_table.gather(1, at // block_size).long() * block_size + at % block_size
    slots = torch.where(step.is_live, slots.view(-1), -1)
    for i, (layer, (k_cache, v_cache)) in enumerate(zip(model.layers, step.caches, strict=True)):
        normed = reference.rms_norm(x, layer.input_norm, EPS, residual)
        if i in step.aux_states:
            step.aux_states[i].copy_(residual)
        qkv = product(normed, layer.qkv, layer.qkv_bias).view(tokens, -1, model.dim)
        q, k, v = qkv.split((model.heads, model.kv_heads, model.kv_heads), 1)
        kept = k_cache.clone(), v_cache.clone()
        reference.rope_and_cache(
            *(q, k, v, k_cache, v_cache, step.cos_sin, step.positions, slots),
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=HEAD_EPS,
        )
        attended = reference.paged_attention(
            *(q.contiguous(), k_cache, v_cache, step.block_table, step.seq_lens, cu_queries),
            scale=model.scale,
        )
        passing = slots[(step.slots < 0) & (slots >= 0)]
        for cache, before in zip((k_cache, v_cache), kept, strict=True):
            cache.flatten(0, 1)[passing] = before.flatten(0, 1)[passing]
        x = product(attended.view(tokens, -1), layer.output)
        normed = reference.rms_norm(x, layer.attended_norm, EPS, residual)
        x = product(reference.silu_mul(product(normed, layer.gate_up)), layer.down)
    return residual.add_(x)


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    y = x.double() @ weight.double().T
    return (y if bias is None else y + bias.double()).to(x.dtype)


def check(model: Model, step: Step, got: torch.Tensor, wanted: Step) -> None:
    """wanted: a copy of the step from before."""
    limit = LIMIT[step.x.dtype] * max(2, len(model.layers)) / 2
    live = step.is_live
    want = expected(model, wanted).double()
    error = (got[live].double() - want[live]).norm(dim=-1) / want[live].norm(dim=-1)
    assert (error < limit).all(), f"relative errors {error}"
    for layer, aux_state in step.aux_states.items():
        mine, other = aux_state[live].double(), wanted.aux_states[layer][live].double()
        assert ((mine - other).norm(dim=-1) < limit * other.norm(dim=-1)).all()
    slots = step.slots[step.slots >= 0]
    for ours, theirs in zip(step.caches, wanted.caches, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            a, b = mine.flatten(0, 1).double(), other.flatten(0, 1).double()
            assert (a[slots] - b[slots]).norm() <= 2 * limit * b[slots].norm()
            a[slots] = b[slots]
            assert torch.equal(a.isnan(), b.isnan())
            assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.fixture(scope="module")
def _kernels() -> None:
    cuda.load()


@pytest.mark.gpu
@pytest.mark.usefixtures("_kernels")
class TestOnAGpu:
    def run(self, model: Model, step: Step, times: int = 1) -> torch.Tensor:
        decoder = PersistentDecoder(
            model.layers, **model.shape, eps=EPS, head_eps=HEAD_EPS, scale=model.scale
        )
        counts, residual, exchange = decoder._workspace
        residual.fill_(float("nan"))
        arguments = (
            *(step.x, step.caches, step.cos_sin, step.positions, step.slots, step.block_table),
            *(step.seq_lens, step.aux_states),
        )
        first = decoder(*arguments)
        for _ in range(times - 1):
            assert torch.equal(decoder(*arguments), first)
        assert not counts.any()
        assert (exchange == 255).all()
        return first

    def check(self, *contexts: int, **options: Any) -> None:
        of_step = {k: options.pop(k) for k in OF_STEP if k in options}
        model = make_model(**options)
        step = make_step(model, *contexts, **of_step)
        wanted = step.copy()
        check(model, step, self.run(model, step, times=3), wanted)

    @pytest.mark.parametrize("context", [1, 2, 16, 17, 100, 257, 300, 1000, 4097, 20_000])
    def test_contexts(self, context: int) -> None:
        self.check(context, dim=128, heads=8, hidden=1024, intermediate=2048)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(
        "contexts",
        [(300, 20), (5,) * 7, (0, 90, 0, 1), tuple(range(100, 900, 100)), (9, *[384] * 15)],
    )
    def test_several_tokens(self, contexts: tuple[int, ...], dtype: torch.dtype) -> None:
        self.check(*contexts, dim=128, heads=8, hidden=1024, intermediate=2048, dtype=dtype)

    def test_lengths_far_apart(self) -> None:
        self.check(20_000, *[50] * 11, dim=128, heads=8, kv_heads=8)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("dim", [64, 128])
    @pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (7, 1), (16, 2)])
    def test_heads(self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
        self.check(700, dim=dim, heads=heads, kv_heads=kv_heads, dtype=dtype)

    @pytest.mark.parametrize(
        ("hidden", "intermediate"),
        [(64, 64), (896, 4864), (2048, 5632), (4096, 14336), (5120, 17408), (8192, 28672)],
    )
    def test_sizes(self, hidden: int, intermediate: int) -> None:
        self.check(50, hidden=hidden, intermediate=intermediate, dim=128, heads=8)

    def test_biases_and_norms_of_heads(self) -> None:
        self.check(300, bias=True, head_norms=True, heads=8)

    def test_blocks_of_other_sizes(self) -> None:
        self.check(1000, block_size=48)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(("queries", "contexts"), DRAFTED)
    def test_several_tokens_of_a_sequence(
        self, queries: int, contexts: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        options = {"dim": 128, "heads": 8, "hidden": 1024, "intermediate": 2048, "dtype": dtype}
        self.check(*contexts, queries=queries, num_layers=4, **options)

    @pytest.mark.parametrize("heads", [(4, 1), (8, 8)])
    def test_several_tokens_with_biases_and_norms_of_heads(self, heads: tuple[int, int]) -> None:
        shape = dict(zip(("heads", "kv_heads"), heads, strict=True))
        self.check(300, 35, queries=4, bias=True, head_norms=True, block_size=48, dim=128, **shape)

    def test_the_newest_keys_of_a_token_are_in_two_units(self) -> None:
        """Of eight, of which the last has one tile, and that one key."""
        self.check(897, queries=2, kv_heads=1)

    def test_tokens_that_fill_up_a_sequence_are_seen_and_not_stored(self) -> None:
        self.check(19, 40, queries=4, fillers=2)

    @pytest.mark.parametrize(("queries", "contexts"), [(1, (300, 9)), (4, (40,)), (2, (0, 33))])
    def test_inputs_of_layers_are_kept(self, queries: int, contexts: tuple[int, ...]) -> None:
        self.check(*contexts, queries=queries, aux_states=(0, 2, 3), num_layers=4)

    def test_more_tokens_than_it_takes_are_refused(self) -> None:
        model = make_model()
        with pytest.raises(ValueError, match="at most 8 tokens if a sequence has several"):
            self.run(model, make_step(model, 9, 9, 9, queries=3))

    def test_many_layers(self) -> None:
        self.check(100, num_layers=5, hidden=512)

    def test_nothing_is_stored_without_a_slot(self) -> None:
        self.check(33, stored=False)

    @pytest.mark.parametrize(("sequences", "queries"), [(1, 1), (MAX_TOKENS, 1), (1, 2)])
    def test_padding_ends(self, sequences: int, queries: int) -> None:
        model = make_model()
        step = make_step(model, *[0] * sequences, queries=queries)
        before = step.copy()
        self.run(model, step)
        for ours, theirs in zip(step.caches, before.caches, strict=True):
            assert all(torch.equal(a.isnan(), b.isnan()) for a, b in zip(ours, theirs, strict=True))

    @pytest.mark.parametrize("dim", [64, 128])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_the_whole_gpu_launches_it(self, dim: int, dtype: torch.dtype) -> None:
        model = make_model(dim=dim, dtype=dtype)
        decoder = PersistentDecoder(
            model.layers, **model.shape, eps=EPS, head_eps=HEAD_EPS, scale=model.scale
        )
        assert decoder.refused() is None
        counts, _, exchange = decoder._workspace
        assert not counts.any()
        assert (exchange == 255).all()
        assert not decoder._caches

    def test_part_of_one_refuses_it_and_goes_on(self) -> None:
        model = make_model(dim=128, heads=8)
        decoder = PersistentDecoder(
            model.layers, **model.shape, eps=EPS, head_eps=HEAD_EPS, scale=model.scale
        )
        with few_sms():
            assert str(decoder.refused()).startswith("cudaErrorCooperativeLaunchTooLarge, ")
            assert torch.ones(3, device="cuda").sum() == 3, "torch's launches hear nothing of it"
        assert decoder.refused() is None
        self.check(300, dim=128, heads=8)

    def test_launches_of_other_sizes_follow_each_other(self) -> None:
        """What one has handed over is gone when the next begins."""
        model = make_model(dim=128, heads=8, num_layers=4)
        decoder = PersistentDecoder(
            model.layers, **model.shape, eps=EPS, head_eps=HEAD_EPS, scale=model.scale
        )
        for contexts in ((300,), (40,) * 16, (2000, 7), (90,) * 9, (1,)):
            step = make_step(model, *contexts)
            wanted = step.copy()
            got = decoder(
                step.x, step.caches, step.cos_sin, step.positions, step.slots, step.block_table,
                step.seq_lens,
            )  # fmt: skip
            check(model, step, got, wanted)

    @pytest.mark.parametrize("seed", range(12))
    def test_random_shapes(self, seed: int) -> None:
        pick = random.Random(seed)
        kv_heads = pick.choice([1, 2, 3, 4, 8])
        contexts = [pick.choice([0, 1, pick.randint(1, 600)]) for _ in range(pick.randint(1, 16))]
        self.check(
            *contexts[:-1],
            pick.randint(1, 3000),
            num_layers=pick.randint(1, 6),
            hidden=64 * pick.randint(1, 80),
            intermediate=64 * pick.randint(1, 160),
            heads=kv_heads * pick.randint(1, 8),
            kv_heads=kv_heads,
            dim=pick.choice([64, 128]),
            bias=pick.random() < 0.5,
            head_norms=pick.random() < 0.5,
            dtype=pick.choice([torch.bfloat16, torch.float16]),
            block_size=pick.choice([16, 32, 48]),
        )

    def test_a_graph_is_replayed_for_other_tokens(self) -> None:
        model = make_model(dim=128, heads=8)
        step, other = make_step(model, 600), make_step(model, 600)
        other = replace(other, x=-other.x)
        wanted = other.copy()
        decoder = PersistentDecoder(
            model.layers, **model.shape, eps=EPS, head_eps=HEAD_EPS, scale=model.scale
        )

        def call() -> torch.Tensor:
            return decoder(
                step.x, step.caches, step.cos_sin, step.positions, step.slots, step.block_table,
                step.seq_lens,
            )  # fmt: skip

        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call()
        step.x.copy_(other.x)
        graph.replay()
        check(model, step, out, wanted)


def test_what_cannot_be_served_is_named() -> None:
    model = make_model(device="cpu")
    assert "compute capability 9.0" in str(refusal(model.layers, **model.shape))
    assert refusal([], **model.shape) == "there are no layers"
    with pytest.raises(ValueError, match="cannot serve these layers: it needs a GPU"):
        PersistentDecoder(model.layers, **model.shape, eps=EPS, head_eps=HEAD_EPS, scale=1.0)


def test_taps_that_do_not_fit_are_named() -> None:
    model = make_model(device="cpu")
    step = make_step(model, 9, 30, aux_states=(0, 1))
    decoder = object.__new__(PersistentDecoder)
    decoder._layers, decoder._taps = tuple(model.layers), {}
    aux_state = step.aux_states[1]
    for aux_states, words in (
        ({2: aux_state}, "aux_states are of layer 2, and there are 2"),
        ({1: aux_state[:, 1:]}, r"must be \[2, 256\] .* that of layer 1 is \[2, 255\]"),
        ({1: aux_state.float()}, "that of layer 1 is .* of torch.float32"),
        ({1: aux_state.T.contiguous().T}, "with contiguous rows"),
        ({0: aux_state, 1: aux_state.contiguous()}, r"equally far apart, not \[256, 512\]"),
    ):
        with pytest.raises(ValueError, match=words):
            decoder._aux_table(aux_states, step.x)
    table, stride = decoder._aux_table({1: aux_state}, step.x)
    assert (table.tolist(), stride) == ([0, aux_state.data_ptr()], 512)
    assert decoder._aux_table({1: aux_state}, step.x)[0] is table, (
        "a graph must not copy from the host"
    )
