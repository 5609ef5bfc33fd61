"""The sampling kernel draws the tokens that the reference draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernels import reference
from tests.kernels.sampling.sampled import INT32_MAX, arguments

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> Iterator[None]:
    from kernels import cuda

    cuda.load()
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, 2))  # the reference, beside other test processes
    yield
    torch.set_num_threads(threads)


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def logits_of(rows: int, vocab: int, scale: float, seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=gen) * scale


def draw(logits: torch.Tensor, **limits: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(ours on the GPU, the reference's on the CPU)"""
    from kernels import cuda

    how = arguments(len(logits), **limits)
    ours = cuda.native.sample_rows(logits.cuda(), *(x.cuda() for x in how)).cpu()
    return ours, reference.sample_rows(logits, *how)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """All but those where two sums round to different sides of top-p's edge."""
    different = (ours != theirs).sum().item()
    assert different <= max(1, len(ours) // 100), f"{different} of {len(ours)} tokens differ"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 7, 203, 4096, 128256])
def test_greedy_is_the_first_of_the_best(vocab: int, dtype: torch.dtype) -> None:
    logits = logits_of(9, vocab, 3).to(dtype)
    logits[:, vocab // 2 :] = logits.amax(-1, keepdim=True)
    ours, _ = draw(logits, temperature=0)
    assert torch.equal(ours, logits.float().argmax(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.5, 3.0, 12.0])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 1},
        {"top_k": 50},
        {"top_k": 50, "top_p": 0.95, "temperature": 0.8},
        {"top_p": 0.3},
        {"top_p": 0.9, "temperature": 1.5},
        {"min_p": 0.1},
        {"top_k": 2000, "top_p": 0.99, "min_p": 0.001, "temperature": 1.2},
    ],
    ids=str,
)
def test_tokens_are_those_of_the_reference(
    limits: dict[str, Any], scale: float, dtype: torch.dtype
) -> None:
    for vocab in (203, 9000):
        assert_same(*draw(logits_of(100, vocab, scale).to(dtype), **limits))


@pytest.mark.parametrize("top_k", [INT32_MAX, 5000, 100_000])
@pytest.mark.parametrize("top_p", [1.0, 0.5, 0.9, 0.99999])
def test_flat_distributions_have_many_candidates(top_k: int, top_p: float) -> None:
    limits = {"top_k": top_k, "top_p": top_p}
    for scale in (0.003, 0.3, 3.0):  # the first has them all in a few bins
        assert_same(*draw(logits_of(16, 128256, scale), **limits))
    assert_same(*draw(logits_of(16, 128256, 1.0).bfloat16(), **limits))


def test_equal_scores_are_cut_where_the_reference_cuts() -> None:
    for vocab in (64, 20_000):
        logits = torch.zeros(200, vocab)
        assert_same(*draw(logits, top_p=0.37))
        assert_same(*draw(logits, top_k=10, top_p=0.5))


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = logits_of(64, 5000, 2)
    logits[:, ::2] = float("-inf")
    for limits in (dict[str, float](), {"top_k": 40}, {"top_p": 0.99}):
        ours, theirs = draw(logits, **limits)
        assert_same(ours, theirs)
        assert (ours % 2 == 1).all()


def test_a_row_of_nothing_but_minus_infinity_ends() -> None:
    ours, _ = draw(torch.full((2, 300), float("-inf")).index_fill_(0, torch.tensor([1]), 0.0))
    assert ours[0] == 0
    from kernels import cuda

    how = (x.cuda() for x in arguments(1, top_p=0.5))
    token = cuda.native.sample_rows(torch.full((1, 300), float("nan")).cuda(), *how)
    assert 0 <= token.item() < 300


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0]).expand(20_000, 4).contiguous()
    ours, _ = draw(logits)
    shares = ours.bincount(minlength=4) / len(ours)
    torch.testing.assert_close(shares, logits[0].softmax(-1), atol=0.015, rtol=0)


def test_draws_go_to_the_token_table_and_padding_writes_nothing() -> None:
    from kernels import cuda

    logits = logits_of(3, 100, 5).cuda()
    table = torch.zeros(8, 32, dtype=torch.uint8, device="cuda")
    tokens = torch.full((8, 10), -7, device="cuda")
    rows = torch.tensor([4, -1, 2], dtype=torch.int32, device="cuda")
    positions = torch.tensor([9, 3, 0], dtype=torch.int32, device="cuda")
    out = cuda.native.sample_rows(logits, table, rows, positions, tokens)
    best = logits.argmax(-1)
    assert (out[0], out[2]) == (best[0], best[2])
    assert (tokens[4, 9], tokens[2, 0]) == (best[0], best[2])
    assert (tokens == -7).sum() == 78


def test_draws_go_to_the_host_too() -> None:
    from kernels import cuda

    logits = logits_of(300, 5003, 5).cuda()
    table = torch.zeros(300, 32, dtype=torch.uint8, device="cuda")
    places = torch.arange(300, dtype=torch.int32, device="cuda")
    host = torch.full((301,), -7).pin_memory()
    for _ in range(20):
        host.fill_(-7)
        logits.copy_(logits.roll(1, 1))
        out = cuda.native.sample_rows(logits, table, places, places, host=host)
        torch.cuda.current_stream().synchronize()
        assert torch.equal(host[:300], out.cpu())
        assert host[300] == -7
    with pytest.raises(ValueError, match=r"host must be .* num_rows = 300"):
        cuda.native.sample_rows(logits, table, places, places, host=host[:299])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [31, 32, 203, 128256])
def test_bitmask(vocab: int, dtype: torch.dtype) -> None:
    from kernels import cuda

    gen = torch.Generator().manual_seed(vocab)
    logits = logits_of(6, vocab, 1).to(dtype)
    bitmask = torch.randint(
        -(2**31), 2**31, (3, -(-vocab // 32)), generator=gen, dtype=torch.int64
    ).int()
    bitmask[1] = -1
    rows = torch.tensor([5, 0, 3])
    ours = logits.cuda()
    cuda.native.apply_token_bitmask(ours, bitmask.cuda(), rows.cuda())
    reference.apply_token_bitmask(logits, bitmask, rows)
    assert torch.equal(ours.cpu(), logits)
