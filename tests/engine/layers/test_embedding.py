from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from engine.layers.embedding import Embedding

CPU = torch.device("cpu")


def test_rows_are_looked_up_and_scaled_as_their_dtype_rounds_the_scale() -> None:
    made = Embedding(9, 4, multiplier=55.4256, dtype=torch.bfloat16, device=CPU)
    made.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([3, 3, 8])
    # bfloat16 has no 55.4256, only 55.5.
    assert torch.equal(made(ids), made.weight.data[ids] * 55.5)


def test_a_scale_leaves_the_weight_as_it_is() -> None:
    made = Embedding(9, 4, multiplier=2.0, dtype=torch.float32, device=CPU)
    made.weight.data.fill_(1)
    made(torch.tensor([0, 1]))
    assert (made.weight.data == 1).all()


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 16, 17])
def test_any_number_of_rows_is_looked_up(num_tokens: int) -> None:
    made = Embedding(9, 4, dtype=torch.float32, device=CPU)
    made.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    ids = torch.arange(num_tokens) % 9
    assert torch.equal(made(ids), F.embedding(ids, made.weight.data))
