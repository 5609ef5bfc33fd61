from __future__ import annotations

from typing import Any

import torch

from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from engine.weights.dummy import draw_weights

PLACE: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}


class Pair(Module):
    def __init__(self) -> None:
        self.layers: list[Module] = [
            Linear(64, {"": 48}, bias=True, **PLACE),
            Linear(64, {"": 48}, bias=False, **PLACE),
            RMSNorm(64, 1e-5, **PLACE),
        ]
        for _, weight in self.named_weights():
            weight.data.fill_(float("nan"))

    def tensors(self, dim: int) -> list[torch.Tensor]:
        return [weight.data for _, weight in self.named_weights() if weight.data.dim() == dim]


def test_matrices_are_small_noise_and_vectors_ones() -> None:
    drawn = Pair()
    draw_weights(drawn, seed=3)
    for matrix in drawn.tensors(2):
        assert abs(matrix.std().item() - 0.02) < 0.002
        assert abs(matrix.mean().item()) < 0.002
    assert not torch.equal(*drawn.tensors(2))
    assert len(drawn.tensors(1)) == 2
    assert all((vector == 1).all() for vector in drawn.tensors(1))


def test_the_seed_decides() -> None:
    first, same, other = Pair(), Pair(), Pair()
    draw_weights(first, seed=3)
    draw_weights(same, seed=3)
    draw_weights(other, seed=4)
    assert torch.equal(first.tensors(2)[0], same.tensors(2)[0])
    assert not torch.equal(first.tensors(2)[0], other.tensors(2)[0])
