from __future__ import annotations

import torch
from torch import nn

from engine.weights.dummy import draw_weights


def model() -> nn.Module:
    layers = nn.ModuleList([nn.Linear(64, 48), nn.Linear(64, 48), nn.LayerNorm(64)])
    for parameter in layers.parameters():
        parameter.data.fill_(float("nan"))
    return layers.requires_grad_(False)


def test_matrices_are_small_noise_and_vectors_ones() -> None:
    drawn = model()
    draw_weights(drawn, seed=3)
    matrices = [p for p in drawn.parameters() if p.dim() == 2]
    for matrix in matrices:
        assert abs(matrix.std().item() - 0.02) < 0.002
        assert abs(matrix.mean().item()) < 0.002
    assert not torch.equal(*matrices)
    assert all((p == 1).all() for p in drawn.parameters() if p.dim() == 1)


def test_the_seed_decides() -> None:
    first, same, other = model(), model(), model()
    draw_weights(first, seed=3)
    draw_weights(same, seed=3)
    draw_weights(other, seed=4)

    def weight(of: nn.Module) -> torch.Tensor:
        return next(of.parameters())

    assert torch.equal(weight(first), weight(same))
    assert not torch.equal(weight(first), weight(other))
