from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from engine.layers.mlp import ACTIVATIONS, GatedMLP
from engine.weights.names import targets

CPU = torch.device("cpu")


def block(activation: str, *, fused: bool = False, bias: bool = False) -> GatedMLP:
    made = GatedMLP(
        6,
        10,
        bias=bias,
        activation=activation,
        fused_checkpoint=fused,
        dtype=torch.float32,
        device=CPU,
    )
    gen = torch.Generator().manual_seed(0)
    for _, weight in made.named_weights():
        weight.data.normal_(generator=gen)
    return made


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("packed", [False, True])
def test_the_activated_gate_multiplies(activation: str, packed: bool) -> None:
    made = block(activation)
    gate, up = made.gate_up_proj.weight.data.clone().chunk(2)
    down = made.down_proj.weight.data.clone()
    if packed:
        made.pack()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    act = F.silu if activation == "silu" else lambda y: F.gelu(y, approximate="tanh")
    expected = (act(x @ gate.T) * (x @ up.T)) @ down.T
    torch.testing.assert_close(made(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("fused", "names"),
    [
        (False, {"gate_proj.weight": (10, 6), "up_proj.weight": (10, 6)}),
        (True, {"gate_up_proj.weight": (20, 6)}),
    ],
)
def test_checkpoints_hold_the_projections_apart_or_as_one(
    fused: bool, names: dict[str, tuple[int, int]]
) -> None:
    wanted = targets(block("silu", fused=fused))
    shapes = {name: tuple(t.weight.part(t.part).shape) for name, t in wanted.items()}
    assert shapes == {**names, "down_proj.weight": (6, 10)}
