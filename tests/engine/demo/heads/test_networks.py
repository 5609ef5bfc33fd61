"""Unrolled training computes what drafting token by token computes."""

from __future__ import annotations

import pytest
import torch

from engine.demo.heads.networks import (
    Attention,
    Eagle,
    Eagle3,
    Pass,
    Shape,
    _cos_sin,
    _rotate,
    shift,
)

SHAPE = Shape(16, 24, 4, 2, 4, 10000.0, 1e-5)
LENGTH, PASSES, VOCAB = 9, 4, 20


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def chain_attention(attention: Attention, inputs: list[torch.Tensor], last: int) -> torch.Tensor:
    """Attention of the place ``last`` over ``inputs[0 .. last]``, one place after another."""
    x = torch.stack(inputs)
    heads, dim = SHAPE.num_heads, SHAPE.head_dim
    cos, sin = _cos_sin(len(inputs), SHAPE, x.device)
    q, k, v = (
        p(x).view(len(inputs), -1, dim).transpose(0, 1)
        for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    k, v = (t.repeat_interleave(heads // SHAPE.num_kv_heads, 0) for t in (k, v))
    scores = (q[:, last : last + 1] @ k.transpose(-1, -2)) * dim**-0.5
    out = scores.softmax(-1) @ v
    attended: torch.Tensor = attention.o_proj(out.transpose(0, 1).reshape(1, -1))
    return attended[0]


def test_a_pass_attends_to_true_keys_and_to_its_own_chain() -> None:
    attention = Attention(SHAPE, 16)
    inputs = torch.randn(PASSES, 1, LENGTH, 16)
    passes: list[Pass] = []
    with torch.no_grad():
        unrolled = [attention(inputs[index], passes)[0] for index in range(PASSES)]
        for index in range(PASSES):
            for place in range(index, LENGTH):
                # True features up to the first draft, then one place of each pass.
                chain = [inputs[0, 0, p] for p in range(place - index + 1)]
                chain += [inputs[i, 0, place - index + i] for i in range(1, index + 1)]
                expected = chain_attention(attention, chain, place)
                torch.testing.assert_close(unrolled[index][place], expected, atol=1e-5, rtol=1e-4)


def test_a_head_reads_the_feature_of_the_token_before() -> None:
    head = Eagle3(SHAPE, torch.arange(0, VOCAB, 2), VOCAB)
    embeds, aux = torch.randn(1, LENGTH, 16), torch.randn(1, LENGTH, 48)
    with torch.no_grad():
        before = head.unroll(embeds, aux, 2)
        aux[:, 5] += 1
        after = head.unroll(embeds, aux, 2)
    for index in range(2):
        changed = (before[index][0] != after[index][0]).any(-1)[0]
        # Pass 1 sees the feature only through pass 0, one place later.
        assert changed.nonzero()[0] == 6 + index


def test_offsets_name_the_drafted_tokens() -> None:
    ids = torch.tensor([1, 4, 5, 19])
    head = Eagle3(SHAPE, ids, VOCAB)
    assert (torch.arange(4) + head.d2t).tolist() == ids.tolist()
    assert head.t2d.nonzero().flatten().tolist() == ids.tolist()


def test_names_are_those_of_published_heads() -> None:
    eagle3 = set(Eagle3(SHAPE, torch.arange(8), VOCAB).state_dict())
    assert {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"} < eagle3
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        assert f"midlayer.{name}.weight" in eagle3
    eagle = Eagle(SHAPE).state_dict()
    assert "layers.0.input_layernorm.weight" not in eagle
    assert eagle["fc.weight"].shape == (16, 32)


def test_shift_moves_towards_later_places() -> None:
    x = torch.arange(6.0).view(1, 3, 2)
    assert shift(x, 1)[0].tolist() == [[0, 0], [0, 1], [2, 3]]
    assert shift(x, 0) is x
