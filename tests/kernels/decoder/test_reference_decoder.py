"""The reference against formulas in float64 without a cache of blocks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels.persistent_decoder import LayerWeights
from tests.kernels.decoder.reference_decoder import ReferenceDecoder

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 48, 40, 6, 2, 8
BLOCK_SIZE, NUM_BLOCKS, EPS, HEAD_EPS, SCALE = 4, 12, 1e-5, 1e-3, 0.3
Pair = tuple[torch.Tensor, torch.Tensor]


def layer(gen: torch.Generator, *, head_norms: bool, bias: bool) -> LayerWeights:
    def drawn(*shape: int, mean: float = 0.0) -> torch.Tensor:
        return torch.randn(shape, generator=gen) * 0.3 + mean

    rows = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    return LayerWeights(
        input_norm=drawn(HIDDEN, mean=1.0),
        qkv=drawn(rows, HIDDEN),
        qkv_bias=drawn(rows) if bias else None,
        q_norm=drawn(HEAD_DIM, mean=1.0) if head_norms else None,
        k_norm=drawn(HEAD_DIM, mean=1.0) if head_norms else None,
        output=drawn(HIDDEN, HEADS * HEAD_DIM),
        attended_norm=drawn(HIDDEN, mean=1.0),
        gate_up=drawn(2 * INTERMEDIATE, HIDDEN),
        down=drawn(HIDDEN, INTERMEDIATE),
    )


def reference(layers: list[LayerWeights]) -> ReferenceDecoder:
    return ReferenceDecoder(
        layers,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        eps=EPS,
        head_eps=HEAD_EPS,
        scale=SCALE,
    )


def normed(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def by_formula(
    x: torch.Tensor, layers: list[LayerWeights], past: list[Pair], angle: torch.Tensor
) -> tuple[torch.Tensor, list[Pair]]:
    """x: [hidden]; past: keys and values before, [n, kv_heads, head_dim]; angle: [head_dim / 2].
    Also the new ones."""
    new = []
    turn = torch.polar(torch.ones_like(angle), angle)

    def rotated(heads: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(*heads.chunk(2, -1)) * turn
        return torch.cat((turned.real, turned.imag), -1)

    for w, (past_k, past_v) in zip(layers, past, strict=True):
        qkv = w.qkv.double() @ normed(x, w.input_norm, EPS)
        qkv = qkv if w.qkv_bias is None else qkv + w.qkv_bias
        q, k, v = qkv.view(-1, HEAD_DIM).split((HEADS, KV_HEADS, KV_HEADS))
        q, k = rotated(normed(q, w.q_norm, HEAD_EPS)), rotated(normed(k, w.k_norm, HEAD_EPS))
        new.append((k, v))
        keys, values = torch.cat((past_k, k[None])), torch.cat((past_v, v[None]))
        attended = []
        for head, query in enumerate(q):
            of_head = head // (HEADS // KV_HEADS)
            weights = (keys[:, of_head] @ query * SCALE).softmax(0)
            attended.append(weights @ values[:, of_head])
        x = x + w.output.double() @ torch.cat(attended)
        gate, up = (w.gate_up.double() @ normed(x, w.attended_norm, EPS)).chunk(2)
        x = x + w.down.double() @ (F.silu(gate) * up)
    return x, new


@pytest.mark.parametrize("num_past", [0, 1, 7, 30])
@pytest.mark.parametrize("head_norms", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_formulas(num_past: int, head_norms: bool, bias: bool) -> None:
    gen = torch.Generator().manual_seed(num_past)
    layers = [layer(gen, head_norms=head_norms, bias=bias) for _ in range(3)]
    caches = [
        (k, v)
        for k, v in torch.randn(3, 2, NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM, generator=gen)
    ]
    block_table = torch.randperm(NUM_BLOCKS, generator=gen)[None, :8]
    at = torch.arange(num_past + 1)
    slots = block_table[0, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
    past = [(k.flatten(0, 1)[slots[:-1]], v.flatten(0, 1)[slots[:-1]]) for k, v in caches]
    angles = torch.rand(40, HEAD_DIM // 2, generator=gen) * 6
    before = [(k.clone(), v.clone()) for k, v in caches]
    x = torch.randn(1, HIDDEN, generator=gen)
    expected, new = by_formula(
        x[0].double(),
        layers,
        [(k.double(), v.double()) for k, v in past],
        angles[num_past].double(),
    )

    out = reference(layers)(
        x,
        caches,
        torch.cat((angles.cos(), angles.sin()), -1),
        at[-1:],
        slots[-1:],
        block_table.to(torch.int32),
        torch.tensor([num_past + 1], dtype=torch.int32),
    )

    torch.testing.assert_close(out[0].double(), expected, rtol=1e-4, atol=1e-4)
    for now, then, of_layer in zip(caches, before, new, strict=True):
        for cache, old, stored in zip(now, then, of_layer, strict=True):
            torch.testing.assert_close(
                cache.flatten(0, 1)[slots[-1]].double(), stored, rtol=1e-4, atol=1e-4
            )
            cache.flatten(0, 1)[slots[-1]] = old.flatten(0, 1)[slots[-1]]
            assert torch.equal(cache, old), "what belongs to others"


def test_padding_stores_nothing() -> None:
    gen = torch.Generator().manual_seed(0)
    layers = [layer(gen, head_norms=False, bias=False)]
    caches = [
        (k, v)
        for k, v in torch.randn(1, 2, NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM, generator=gen)
    ]
    before = [(k.clone(), v.clone()) for k, v in caches]
    reference(layers)(
        torch.randn(1, HIDDEN, generator=gen),
        caches,
        torch.ones(4, HEAD_DIM),
        torch.zeros(1, dtype=torch.int64),
        torch.full((1,), -1),
        torch.zeros(1, 8, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
    )
    for (k, v), (old_k, old_v) in zip(caches, before, strict=True):
        assert torch.equal(k, old_k)
        assert torch.equal(v, old_v)
