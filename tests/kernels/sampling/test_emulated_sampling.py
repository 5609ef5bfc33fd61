"""Sampling without a GPU: the kernel's own source (``emulated``) draws the tokens that the
reference draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import reference
from tests.kernels import emulated
from tests.kernels.sampling.sampled import arguments
from tests.pairs import each_value

SOURCES = ("sampling/sampling.cu",)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VOCABS = [1, 7, 203, 9000, 70_001]
"""The last has more tokens than the first pass asks for at a time, and one behind whole vectors."""
UNTOUCHED = -9


@pytest.fixture(scope="module")
def library() -> Any:
    return emulated.native(SOURCES, threads=1024)


def sample(
    library: Any,
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor | None = None,
    **limits: float,
) -> torch.Tensor:
    """What the kernel writes for the device, which must be what it writes for the host."""
    num_rows = len(logits)
    how: dict[str, Any] = {"temperature": 0.0, **limits}
    table, _, _ = arguments(int(rows.max()) + 1, **how)
    out = torch.full((2, num_rows), UNTOUCHED)
    library.sample_rows(logits, table, rows, positions, tokens, out[1], out=out[0])
    assert torch.equal(out[0], out[1])
    return out[0]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(("vocab", "dtype"), each_value(VOCABS, DTYPES))
def test_greedy_is_the_first_of_the_best(library: Any, vocab: int, dtype: torch.dtype) -> None:
    gen = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(3, vocab, generator=gen) * 3).to(dtype)
    logits[1, vocab // 2 :] = logits[1].amax()
    logits[2] = float("-inf")
    places = torch.arange(3, dtype=torch.int32)
    drawn = sample(library, logits, places, places)
    assert torch.equal(drawn, logits.float().argmax(-1))
    assert drawn[2] == 0


def test_what_is_no_number_is_never_the_best(library: Any) -> None:
    logits = torch.full((2, 300), float("nan"), dtype=torch.bfloat16)
    logits[0, [77, 150]] = torch.tensor([-3.0, -2.0], dtype=torch.bfloat16)
    assert sample(library, logits, ints(0, 1), ints(0, 0)).tolist() == [150, 0]


def test_rows_that_begin_anywhere_are_read_token_by_token(library: Any) -> None:
    gen = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 2001, generator=gen).bfloat16()[:, 1:]
    places = torch.arange(4, dtype=torch.int32)
    assert torch.equal(sample(library, logits, places, places), logits.float().argmax(-1))


@pytest.mark.parametrize(
    ("limits", "vocab", "dtype"),
    each_value(
        [
            {"temperature": 0.7},
            {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
            {"temperature": 1.5, "top_p": 0.9, "min_p": 0.001},
        ],
        [203, 9000],
        DTYPES,
    ),
    ids=str,
)
def test_tokens_are_those_of_the_reference(
    library: Any, vocab: int, limits: dict[str, Any], dtype: torch.dtype
) -> None:
    num_rows = 12
    gen = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(num_rows, vocab, generator=gen) * 3).to(dtype)
    rows = torch.arange(num_rows, dtype=torch.int32)
    positions = rows * 3 + 5
    table, _, _ = arguments(num_rows, **limits)
    expected = reference.sample_rows(logits, table, rows, positions)
    assert torch.equal(sample(library, logits, rows, positions, **limits), expected)


def test_draws_go_to_the_token_table_and_padding_writes_nothing(library: Any) -> None:
    gen = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 100, generator=gen)
    tokens = torch.full((8, 10), UNTOUCHED)
    drawn = sample(library, logits, ints(4, -1, 2), ints(9, 3, 0), tokens)
    best = logits.argmax(-1)
    assert drawn.tolist() == [best[0], UNTOUCHED, best[2]]
    assert (tokens[4, 9], tokens[2, 0]) == (best[0], best[2])
    assert (tokens == UNTOUCHED).sum() == 78
