from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.attention.base import AttentionBatch
from engine.attention.torch_ref import TorchAttention
from engine.layers.attention import GroupStep, StepContext
from engine.layers.linear import QuantizedWeight
from engine.layers.mla import LatentAttention, MLAConfig
from engine.quant.base import quantize
from engine.quant.fp8 import Fp8

CPU = torch.device("cpu")
HEADS, NOPE, ROPE, RANK, VALUE, HIDDEN, TOKENS = 3, 6, 4, 8, 5, 16, 7


def make_layer(interleaved: bool = False, q_lora_rank: int | None = 10) -> LatentAttention:
    config = MLAConfig(
        q_lora_rank=q_lora_rank,
        kv_lora_rank=RANK,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=VALUE,
        interleaved=interleaved,
    )
    return LatentAttention(
        0, config, HIDDEN, HEADS, scale=0.3, bias=False, dtype=torch.float32, device=CPU
    )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("q_lora_rank", [None, 10])
def test_attending_to_latents_equals_attending_to_what_they_expand_to(
    interleaved: bool, q_lora_rank: int | None
) -> None:
    layer = make_layer(interleaved, q_lora_rank)
    gen = torch.Generator().manual_seed(0)
    for _, weight in layer.named_weights():
        weight.data.normal_(generator=gen)
    x = torch.randn(TOKENS, HIDDEN, generator=gen)
    angles = torch.rand(TOKENS, ROPE // 2, generator=gen) * 3
    cache = torch.zeros(2, 4, 1, RANK + ROPE)
    batch = AttentionBatch(
        np.array([TOKENS]),
        np.array([TOKENS]),
        np.zeros(1, np.int64),
        torch.arange(2, dtype=torch.int32)[None],
    )
    positions = torch.arange(TOKENS)
    attend = TorchAttention(CPU, torch.float32).prepare(batch, 4)
    step = StepContext(positions, [GroupStep(positions, attend)], [(cache, cache)])
    out = layer(x, torch.cat((angles.cos(), angles.sin()), -1), step)
    torch.testing.assert_close(out, expanded(layer, x, angles, interleaved), rtol=1e-4, atol=1e-4)
    # Nothing but a latent and a turned key is kept, for all heads together.
    assert cache.numel() == 8 * (RANK + ROPE)


def expanded(
    layer: LatentAttention, x: torch.Tensor, angles: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """The paper's formulas as they stand."""
    q = layer._queries(x)
    latent, k_turned = layer.kv_a_proj_with_mqa(x).split_with_sizes((RANK, ROPE), -1)
    kv = layer.kv_a_layernorm(latent.contiguous()) @ layer.kv_b_proj.weight.data.T
    k_plain, v = kv.view(TOKENS, HEADS, -1).split_with_sizes((NOPE, VALUE), -1)

    def turned(vectors: torch.Tensor) -> torch.Tensor:
        if interleaved:
            first, second = vectors[..., ::2], vectors[..., 1::2]
        else:
            first, second = vectors.chunk(2, -1)
        cos, sin = angles[:, None].cos(), angles[:, None].sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    k_rope = turned(k_turned[:, None]).expand(-1, HEADS, -1)
    queries = torch.cat((q[..., :NOPE], turned(q[..., NOPE:])), -1)
    keys = torch.cat((k_plain, k_rope), -1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * layer.options.scale
    future = torch.ones(TOKENS, TOKENS).triu(1).bool()
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return layer.o_proj(torch.einsum("hqk,khd->qhd", weights, v).reshape(TOKENS, -1))


@pytest.mark.parametrize("is_online", [True, False])
def test_the_up_projection_is_dequantized_once_it_is_loaded(is_online: bool) -> None:
    """Unless its weights would be rounded only for that."""
    made = make_layer()
    quantize(made, Fp8(online=is_online))
    assert isinstance(made.o_proj.quantized, QuantizedWeight)
    assert (made.kv_b_proj.quantized is None) == is_online
    for _, weight in made.named_weights():
        weight.draw(0.02, torch.Generator().manual_seed(0))
    stored = made.kv_b_proj.quantized
    meant = made.kv_b_proj.weight.data if stored is None else stored.dequantize()
    made.pack()
    assert made.kv_b_proj.quantized is None
    assert torch.equal(made.kv_b_proj.weight.data, meant)
    assert "kv_b_proj.weight" in dict(made.named_weights())
