from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from engine.layers.moe import Experts, Router, RouterConfig
from engine.weights.names import targets
from kernels import reference_experts

CPU = torch.device("cpu")
HIDDEN = 16


def router(**fields: object) -> Router:
    made = Router(
        RouterConfig(**{"num_experts": 8, "top_k": 2, "renormalize": False, **fields}),  # type: ignore[arg-type]
        HIDDEN,
        dtype=torch.float32,
        device=CPU,
    )
    made.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    return made


def tokens(count: int = 20) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(1))


def test_the_likeliest_experts_are_taken() -> None:
    made, x = router(), tokens()
    experts, weights = made(x)
    probabilities = (x @ made.weight.data.T).softmax(-1)
    assert torch.equal(experts, probabilities.argsort(-1, descending=True)[:, :2])
    torch.testing.assert_close(weights, probabilities.gather(1, experts))


def test_weights_sum_to_the_scale_when_renormalized() -> None:
    _, weights = router(renormalize=True, scale=2.5)(tokens())
    torch.testing.assert_close(weights.sum(-1), torch.full((20,), 2.5))


@pytest.mark.parametrize("has_bias", [False, True])
def test_experts_come_from_the_best_groups(has_bias: bool) -> None:
    made = router(num_groups=4, top_k_groups=1, has_bias=has_bias, scoring="sigmoid")
    bias = torch.zeros(8)
    if made.e_score_correction_bias is not None:
        bias = torch.linspace(-1, 1, 8)
        made.e_score_correction_bias.data.copy_(bias)
    x = tokens()
    scores = (x @ made.weight.data.T).sigmoid()
    by_group = (scores + bias).view(20, 4, 2)
    best = (by_group.sum(-1) if has_bias else by_group.amax(-1)).argmax(-1)
    experts, weights = made(x)
    assert torch.equal(experts // 2, best.unsqueeze(1).expand(-1, 2))
    torch.testing.assert_close(weights, scores.gather(1, experts))


def test_experts_are_named_one_by_one_in_a_checkpoint() -> None:
    made = Experts(range(2), 4, 6, names=("w1", "w3", "w2"), dtype=torch.float32, device=CPU)
    shapes = {name: target.weight.part(target.part).shape for name, target in targets(made).items()}
    assert shapes == {
        **{f"{i}.{name}.weight": (6, 4) for i in (0, 1) for name in ("w1", "w3")},
        **{f"{i}.w2.weight": (4, 6) for i in (0, 1)},
    }


def test_a_tokens_experts_are_summed_by_weight() -> None:
    gen = torch.Generator().manual_seed(2)
    gate_up = torch.randn(5, 12, HIDDEN, generator=gen)
    down = torch.randn(5, HIDDEN, 6, generator=gen)
    x = tokens(7)
    experts = torch.stack([torch.randperm(5, generator=gen)[:3] for _ in range(7)])
    weights = torch.rand(7, 3, generator=gen)
    out = reference_experts.apply_experts(x, gate_up, down, experts, weights)
    for token in range(7):
        expected = torch.zeros(HIDDEN)
        for expert, weight in zip(experts[token].tolist(), weights[token], strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            expected += weight * (down[expert] @ (F.silu(gate) * up))
        torch.testing.assert_close(out[token], expected, rtol=1e-4, atol=1e-4)
