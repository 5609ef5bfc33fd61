"""The kernel reports the log-probabilities that the reference does, and the same tokens."""

from __future__ import annotations

import pytest
import torch

from kernels import reference

pytestmark = pytest.mark.gpu


def assert_same(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> None:
    from kernels import cuda

    cuda.load()
    ours = [x.cpu() for x in cuda.token_logprobs(logits.cuda(), token_ids.cuda(), num_top)]
    logprobs, ranks, top_ids, top_logprobs = reference.token_logprobs(logits, token_ids, num_top)
    torch.testing.assert_close(ours[0], logprobs, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours[1], ranks)
    assert torch.equal(ours[2], top_ids)
    torch.testing.assert_close(ours[3], top_logprobs, rtol=1e-5, atol=1e-5)


def logits_of(rows: int, vocab: int, scale: float) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 7, 203, 5003, 128256])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 512, 600])
def test_random_rows(vocab: int, num_top: int, dtype: torch.dtype) -> None:
    for scale in (0.01, 3.0, 30.0):
        logits = logits_of(70, vocab, scale).to(dtype)
        assert_same(logits, torch.arange(70) * 37 % vocab, min(num_top, vocab))


@pytest.mark.parametrize("vocab", [300, 20_000])
def test_equal_tokens_come_by_their_ids(vocab: int) -> None:
    logits = torch.zeros(8, vocab)
    logits[1, ::2] = -0.0
    logits[2, ::3] = -torch.inf
    logits[3, 5::7] = 2.0
    logits[4] = -torch.inf
    logits[4, 9] = 1.0
    logits[5, :] = -80.0
    logits[5, 17] = 0.0
    assert_same(logits, torch.tensor([3, 4, 3, 5, 9, 200, 0, vocab - 1]), 20)


def test_rows_of_a_wider_matrix() -> None:
    from kernels import cuda

    cuda.load()
    logits, token_ids = logits_of(6, 1000, 3).cuda(), torch.arange(6).cuda()
    part = cuda.token_logprobs(logits[:, :777], token_ids, 3)
    whole = cuda.token_logprobs(logits[:, :777].contiguous(), token_ids, 3)
    assert all(torch.equal(x, y) for x, y in zip(part, whole, strict=True))
