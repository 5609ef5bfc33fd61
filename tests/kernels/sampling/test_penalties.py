"""Penalties: the reference against plain Python, the kernel against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference


def expected(
    logits: list[float], known: list[int], num_prompt: int, strengths: tuple[float, float, float]
) -> list[float]:
    repetition, frequency, presence = strengths
    result = []
    for token_id, score in enumerate(logits):
        if token_id in known:
            score = score / repetition if score > 0 else score * repetition
        count = known[num_prompt:].count(token_id)
        result.append(score - frequency * count - presence * (count > 0))
    return result


lines = st.tuples(st.lists(st.integers(0, 6), max_size=9), st.lists(st.integers(0, 6), max_size=9))
strengths_of = st.tuples(st.floats(0.1, 10), st.floats(-2, 2), st.floats(-2, 2))


@settings(deadline=None)
@given(st.lists(st.tuples(lines, strengths_of), min_size=1, max_size=5), st.integers(0, 99))
def test_reference(
    rows: list[tuple[tuple[list[int], list[int]], tuple[float, float, float]]], seed: int
) -> None:
    vocab, num = 9, len(rows)
    tokens = torch.full((num + 1, 20), 8)  # behind what is known is somebody else's
    logits = torch.randn(num + 2, vocab, generator=torch.Generator().manual_seed(seed))
    logits[:, 3] = -torch.inf
    before = logits.clone()
    where = []
    for i, ((prompt, output), _) in enumerate(rows):
        known = prompt + output
        tokens[num - i, : len(known)] = torch.tensor(known, dtype=torch.int64)
        where.append((i + 1, num - i, len(known), len(prompt)))
    strengths = torch.tensor([s for _, s in rows]).T.contiguous()
    most = max(length for _, _, length, _ in where)
    reference.apply_penalties(logits, tokens, torch.tensor(where).T, strengths, max_len=most)
    for i, ((prompt, output), how) in enumerate(rows):
        wanted = expected(before[i + 1].tolist(), prompt + output, len(prompt), how)
        torch.testing.assert_close(logits[i + 1], torch.tensor(wanted))
    assert torch.equal(logits[0], before[0])
    assert torch.equal(logits[num + 1], before[num + 1])


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [7, 203, 128256])
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 300])
def test_kernel_gives_the_same_bits(vocab: int, rows: int) -> None:
    from kernels import cuda

    cuda.load()
    gen = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows + 3, vocab, generator=gen) * 5
    tokens = torch.randint(0, min(vocab, 400), (rows + 1, 700), generator=gen)
    lengths = torch.randint(0, 700, (rows,), generator=gen)
    where = torch.stack(
        (
            torch.randperm(rows + 3, generator=gen)[:rows],
            torch.randperm(rows + 1, generator=gen)[:rows],
            lengths,
            (lengths * torch.rand(rows, generator=gen)).long(),
        )
    )
    strengths = torch.rand(3, rows, generator=gen) * torch.tensor([[3.0], [4.0], [4.0]])
    strengths[1:] -= 2
    strengths[0, ::3] = 1.0
    ours = logits.cuda()
    args = (tokens.cuda(), where.cuda(), strengths.cuda())
    for _ in range(3):  # it leaves its memory as it found it
        ours.copy_(logits)
        cuda.apply_penalties(ours, *args, max_len=700)
        theirs = logits.clone()
        reference.apply_penalties(theirs, tokens, where, strengths, max_len=700)
        assert torch.equal(ours.cpu(), theirs)
