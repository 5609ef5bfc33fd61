from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention.base import AttentionBatch, AttentionOptions, StepAttention
from engine.attention.torch_ref import TorchAttention
from engine.layers.attention import AttentionConfig, GroupStep, SelfAttention, StepContext
from engine.layers.norm import OffsetRMSNorm, RMSNorm
from engine.parallel.group import whole
from engine.weights.names import targets
from kernels import reference

CPU = torch.device("cpu")
PLAIN = AttentionConfig(hidden_size=12, num_heads=4, num_kv_heads=2, head_dim=6, scale=0.4)
TOKENS = 9


def layer(dtype: torch.dtype = torch.float32, **changes: Any) -> SelfAttention:
    made = SelfAttention(0, dataclasses.replace(PLAIN, **changes), dtype=dtype, device=CPU)
    gen = torch.Generator().manual_seed(0)
    for _, weight in made.named_weights():
        weight.data.copy_(torch.randn(weight.data.shape, generator=gen) * 0.5)
    return made


class Storing:
    """Stands for attention that rotates and stores by itself."""

    def __init__(self, attend: StepAttention, positions: torch.Tensor, *, able: bool) -> None:
        self._attend = attend
        self._positions = positions
        self._able = able
        self.stored = 0

    def can_store(self, cos_sin: torch.Tensor) -> bool:
        return self._able

    def store_and_attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        self.stored += 1
        q, at = q.clone(), self._positions
        reference.rope_and_cache(q, k, v, k_cache, v_cache, cos_sin, at, at)
        return self._attend(q, k_cache, v_cache, how)

    def __call__(self, *arguments: Any, **options: Any) -> torch.Tensor:
        return self._attend(*arguments, **options)


def run(
    of: SelfAttention,
    dtype: torch.dtype = torch.float32,
    wrap: Callable[[StepAttention, torch.Tensor], StepAttention] = lambda attend, _: attend,
) -> torch.Tensor:
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(TOKENS, 12, generator=gen).to(dtype)
    angles = torch.rand(TOKENS, 3, generator=gen)
    k_cache, v_cache = torch.zeros(2, 3, 4, 2, 6, dtype=dtype).unbind()
    lengths, row = np.array([TOKENS]), np.zeros(1, np.int64)
    batch = AttentionBatch(lengths, lengths, row, torch.arange(3, dtype=torch.int32)[None])
    positions = torch.arange(TOKENS)
    attend = wrap(TorchAttention(CPU, dtype).prepare(batch, 4), positions)
    step = StepContext(positions, [GroupStep(positions, attend)], [(k_cache, v_cache)])
    return whole(of(x, torch.cat((angles.cos(), angles.sin()), -1), step))


@pytest.mark.parametrize(
    "changes", [{"window": 2}, {"softcap": 0.5}, {"scale": 2.0}, {"qk_norm": RMSNorm}]
)
def test_every_option_takes_effect(changes: dict[str, Any]) -> None:
    assert not torch.allclose(run(layer(**changes)), run(layer()), atol=1e-3)
    assert layer(**changes).is_plain is ("scale" in changes)


@pytest.mark.parametrize(
    ("changes", "able", "stored"),
    [
        ({}, True, 1),
        ({"window": 2}, True, 1),
        ({}, False, 0),
        ({"softcap": 0.5}, True, 0),
        ({"qk_norm": RMSNorm}, True, 0),
    ],
)
def test_attention_that_stores_is_asked_to_where_it_can(
    changes: dict[str, Any], able: bool, stored: int
) -> None:
    made: list[Storing] = []

    def wrap(attend: StepAttention, positions: torch.Tensor) -> StepAttention:
        made.append(Storing(attend, positions, able=able))
        return made[0]

    out = run(layer(**changes), wrap=wrap)
    # Not equal to the bit: a CPU kernel, if one is loaded, rounds the rotation once less.
    torch.testing.assert_close(out, run(layer(**changes)), rtol=1e-5, atol=1e-5)
    assert made[0].stored == stored


def test_a_window_over_everything_hides_nothing() -> None:
    torch.testing.assert_close(run(layer(window=TOKENS)), run(layer()), rtol=1e-5, atol=1e-6)


def test_offset_head_norms_are_the_same_folded_and_apart() -> None:
    """16 bits keep them apart from the rotation; the same weights in float32 fold them into it."""
    exact, rounded = layer(qk_norm=OffsetRMSNorm), layer(torch.bfloat16, qk_norm=OffsetRMSNorm)
    for (_, a), (_, b) in zip(exact.named_weights(), rounded.named_weights(), strict=True):
        a.data.copy_(b.data)
    exact.pack()
    rounded.pack()
    out = run(rounded, torch.bfloat16).float()
    torch.testing.assert_close(out, run(exact), rtol=0.1, atol=0.1)


def test_biases_are_where_they_are_asked_for() -> None:
    names = set(targets(layer(bias=True)))
    assert {"q_proj.bias", "k_proj.bias", "v_proj.bias"} < names
    assert "o_proj.bias" not in names
    assert "o_proj.bias" in targets(layer(output_bias=True))


def test_a_fused_checkpoint_has_one_tensor() -> None:
    wanted = targets(layer(fused_checkpoint=True))
    assert set(wanted) == {"qkv_proj.weight", "o_proj.weight"}
    assert wanted["qkv_proj.weight"].weight.part("").shape == (48, 12)
