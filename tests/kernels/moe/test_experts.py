"""How pairs of tokens and experts are chosen and cut into tiles, by the reference."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import reference_experts as reference
from kernels.experts import PairTiles, max_tiles, tile_rows


def check_tiles(made: PairTiles, experts: torch.Tensor, num_experts: int) -> None:
    """Every pair that has an expert is in one tile, of this expert; no tile is empty."""
    pairs = experts.reshape(-1).cpu()
    seen: list[int] = []
    for expert, first, end in made.tiles.T.tolist():
        if expert < num_experts:
            inside = made.order[first : min(first + made.rows, end)].cpu().long()
            assert len(inside) > 0
            assert (pairs[inside] == expert).all()
            seen += inside.tolist()
    assert sorted(seen) == (pairs < num_experts).nonzero().flatten().tolist()


@given(
    num_experts=st.integers(1, 40),
    num_tokens=st.integers(1, 70),
    top_k=st.integers(1, 4),
    rows=st.sampled_from([1, 16, 64]),
    seed=st.integers(0, 9),
)
def test_every_pair_is_in_one_tile_of_its_expert(
    num_experts: int, num_tokens: int, top_k: int, rows: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Often few experts have all tokens, and some pairs have none.
    drawn = torch.rand(num_tokens, top_k, generator=generator) ** (1 + seed) * (num_experts + 1)
    experts = drawn.long()
    made = reference.group_pairs(experts, num_experts, rows)
    assert made.tiles.shape == (3, max_tiles(experts.numel(), num_experts, rows))
    check_tiles(made, experts, num_experts)


def test_tiles_grow_with_what_an_expert_gets() -> None:
    assert [tile_rows(pairs, 8) for pairs in (1, 64, 65, 9999)] == [16, 16, 64, 64]


def test_the_best_experts_of_the_best_groups_are_chosen() -> None:
    logits = torch.tensor([[5.0, -9, 4, 3.9, 0, 1]])
    experts, weights = reference.route_experts(logits, None, top_k=2, renormalize=True, scale=3.0)
    assert experts.tolist() == [[0, 2]]
    assert torch.isclose(weights.sum(), torch.tensor(3.0))
    # Groups {0, 1}, {2, 3}, {4, 5}: by its best expert the first wins, by its two best the second.
    limited = {"top_k": 2, "num_groups": 3, "top_k_groups": 1}
    assert reference.route_experts(logits, None, **limited)[0].tolist() == [[0, 1]]  # type: ignore[arg-type]
    by_two, weights = reference.route_experts(logits, torch.zeros(6), sigmoid=True, **limited)  # type: ignore[arg-type]
    assert by_two.tolist() == [[2, 3]]
    assert torch.allclose(weights, logits[:, 2:4].sigmoid())


def test_a_bias_chooses_but_does_not_weigh() -> None:
    logits = torch.tensor([[1.0, 0.5, 0.0]])
    bias = torch.tensor([0.0, 0.0, 9.0])
    experts, weights = reference.route_experts(logits, bias, top_k=1, sigmoid=True)
    assert experts.tolist() == [[2]]
    assert weights.item() == 0.5


def test_what_experts_made_is_summed_up_by_weight() -> None:
    each = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]]).bfloat16()
    out = reference.combine_experts(each, torch.tensor([[1.0, 0.5], [0, 2]]))
    assert out.dtype == torch.bfloat16
    assert out.tolist() == [[2.5, 4], [14, 16]]
