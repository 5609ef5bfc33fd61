from __future__ import annotations

import pytest
import torch

from engine.layers.parameter import Weight


def test_parts_are_consecutive_views() -> None:
    weight = Weight(torch.zeros(9, 2), {"q_proj": 5, "k_proj": 2, "v_proj": 2})
    weight.part("k_proj").fill_(1)
    assert weight.data[:, 0].tolist() == [0] * 5 + [1] * 2 + [0] * 2
    with pytest.raises(KeyError):
        weight.part("o_proj")


def test_a_plain_weight_is_one_part() -> None:
    weight = Weight(torch.zeros(3))
    assert weight.part("").shape == (3,)
