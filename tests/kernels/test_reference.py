from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import philox, reference

Floats = npt.NDArray[np.float64]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rms_norm_of_half_precision_sums_in_float32() -> None:
    x = torch.full((2, 512), 300.0, dtype=torch.float16)
    out = reference.rms_norm(x, torch.ones(512, dtype=torch.float16), 1e-6)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, torch.ones_like(x))


def test_paged_attention_is_softmax_attention() -> None:
    """One sequence, blocks in reverse, everything unused poisoned."""
    length, queries, heads, kv_heads, dim, block_size = 10, 3, 6, 2, 8, 4
    q = torch.randn(queries, heads, dim, generator=generator(0))
    k, v = torch.randn(2, length, kv_heads, dim, generator=generator(1)).unbind()
    k_cache, v_cache = torch.full((2, 6, block_size, kv_heads, dim), math.nan).unbind()
    table = torch.tensor([[5, 3, 1, 99]], dtype=torch.int32)
    slots = torch.tensor([5 * 4 + i for i in range(4)] + [12 + i for i in range(4)] + [4, 5])
    k_cache.view(-1, kv_heads, dim)[slots], v_cache.view(-1, kv_heads, dim)[slots] = k, v
    out = reference.paged_attention(
        q, k_cache, v_cache, table, torch.tensor([length]), torch.tensor([0, queries]), scale=0.3
    )
    for i in range(queries):
        visible = length - queries + i + 1
        for h in range(heads):
            scores = (k[:visible, h // 3].double() @ q[i, h].double()) * 0.3
            expected = scores.softmax(0) @ v[:visible, h // 3].double()
            torch.testing.assert_close(out[i, h].double(), expected, rtol=1e-5, atol=1e-6)


def test_token_bitmask_forbids_unset_bits() -> None:
    vocab = 70
    allowed = torch.rand(2, vocab, generator=generator(0)) < 0.5
    padded = np.zeros((2, 96), bool)
    padded[:, :vocab] = allowed.numpy()
    bitmask = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    logits = torch.randn(4, vocab, generator=generator(1))
    before = logits.clone()
    reference.apply_token_bitmask(logits, torch.from_numpy(bitmask), torch.tensor([3, 1]))
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    for row, allow in ((3, allowed[0]), (1, allowed[1])):
        assert torch.equal(logits[row, allow], before[row, allow])
        assert (logits[row, ~allow] == -math.inf).all()


def oracle(logits: Floats, temperature: float, top_k: int, top_p: float, min_p: float) -> Floats:
    """The processed distribution, in float64 and with a plain sort."""
    scores = (logits - logits.max()) / temperature
    if top_k < len(scores):
        scores = np.where(scores < np.sort(scores)[-top_k], -np.inf, scores)
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    if top_p < 1:
        kept = np.zeros(len(probs), bool)
        mass = 0.0
        for token in np.argsort(probs, kind="stable")[::-1]:
            if mass >= top_p:
                break
            kept[token] = True
            mass += probs[token]
        probs = np.where(kept, probs, 0)
    probs = np.where(probs < min_p * probs.max(), 0, probs)
    normal: npt.NDArray[np.float64] = probs / probs.sum()
    return normal


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([5, 64, 300, 1500]),
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    top_k=st.sampled_from([1, 2, 40, 10_000]),
    top_p=st.sampled_from([0.013, 0.37, 0.91, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.017, 0.3, 1.0]),
)
def test_processed_logits_match_the_oracle(
    seed: int, vocab: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(2, vocab, generator=generator(seed)) * 2
    k = min(top_k, vocab)
    scores = reference.process_logits(
        logits,
        torch.tensor([temperature, 1.0]),
        torch.tensor([k, vocab]),
        torch.tensor([top_p, 1.0]),
        torch.tensor([min_p, 0.0]),
    )
    got = scores.double().softmax(-1).numpy()
    first = oracle(logits[0].double().numpy(), temperature, k, top_p, min_p)
    assert ((got[0] > 0) == (first > 0)).all()
    np.testing.assert_allclose(got[0], first, rtol=2e-4, atol=1e-7)
    second = oracle(logits[1].double().numpy(), 1.0, vocab, 1.0, 0.0)
    np.testing.assert_allclose(got[1], second, rtol=2e-4, atol=1e-7)


def test_ties_at_the_edge_of_top_k_all_stay() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    scores = reference.process_logits(logits, torch.ones(1), torch.tensor([2]), None, None)
    assert scores.isfinite().tolist() == [[False, True, True, True, True, False]]


@pytest.mark.parametrize(("top_p", "kept"), [(0.15, 1), (0.25, 2), (0.5, 3), (0.99, 5)])
def test_ties_at_the_edge_of_top_p_keep_the_highest_ids(top_p: float, kept: int) -> None:
    """As the sort-based filter of transformers does."""
    from transformers import TopPLogitsWarper

    logits = torch.zeros(1, 5)
    scores = reference.process_logits(logits, torch.ones(1), None, torch.tensor([top_p]), None)
    expected = TopPLogitsWarper(top_p)(torch.zeros(1, 1, dtype=torch.int64), logits.clone())
    assert torch.equal(scores.isfinite(), expected.isfinite())
    assert int(scores.isfinite().sum()) == kept
    assert bool(scores.isfinite()[0, -1])


def test_a_tiny_temperature_keeps_only_the_best() -> None:
    logits = torch.tensor([[80.0, 81.0, -1e30, -math.inf]])
    scores = reference.process_logits(logits, torch.tensor([1e-38]), None, None, None)
    assert scores.softmax(-1).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> tuple[float, int]:
    """The statistic and its degrees of freedom over the tokens expected at least five times."""
    expected = probs * counts.sum()
    usual = expected >= 5
    statistic = ((counts - expected)[usual].square() / expected[usual]).sum()
    return float(statistic), int(usual.sum()) - 1


@pytest.mark.parametrize("how", ["all", "peaked", "top_k", "top_p"])
def test_samples_follow_the_processed_distribution(how: str) -> None:
    """``all`` draws noise for every token, the others only for tokens that can win."""
    vocab, draws = 150, 40_000
    logits = torch.randn(1, vocab, generator=generator(4)) * (12.0 if how == "peaked" else 1.0)
    top_k = torch.tensor([9]) if how == "top_k" else None
    top_p = torch.tensor([0.6]) if how == "top_p" else None
    scores = reference.process_logits(logits, torch.tensor([0.8]), top_k, top_p, None)
    drawn = reference.gumbel_argmax(
        scores.expand(draws, vocab),
        torch.full((draws,), 1234),
        torch.arange(draws),
    )
    probs = scores[0].double().softmax(-1)
    counts = torch.bincount(drawn, minlength=vocab).double()
    assert int(counts[probs == 0].sum()) == 0
    statistic, freedom = chi_square(counts, probs)
    assert freedom > 2
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_noise_is_the_same_whether_drawn_for_all_tokens_or_for_some() -> None:
    scores = torch.zeros(3, 41)
    seeds, positions = torch.tensor([1, 2, 3]), torch.tensor([5, 5, 9])
    groups = torch.arange(11)
    words = philox.random_words(seeds.unsqueeze(1), positions.unsqueeze(1), groups)
    noise = philox.gumbel(words.view(3, -1)[:, :41])
    assert reference.gumbel_argmax(scores, seeds, positions).tolist() == noise.argmax(-1).tolist()
    few = torch.full_like(scores, -math.inf)
    few[:, [3, 18, 40]] = 0
    drawn = reference.gumbel_argmax(few, seeds, positions)
    assert drawn.tolist() == (few + noise).argmax(-1).tolist()
