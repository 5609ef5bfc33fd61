"""The law of what comes out, whatever was drafted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import product

import msgspec
import numpy as np
import pytest
import torch

from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Chunk
from engine.spec.rejection import SyntheticAcceptance, accept

VOCAB = 4
LENGTH = 3
# Logits of a token after each token, and after none.
LOGITS = torch.randn(VOCAB + 1, VOCAB, generator=torch.Generator().manual_seed(3)) * 1.5

Drafter = Callable[[list[int], random.Random], int]
"""From the tokens so far to a draft of the next."""

LAWS = {
    "plain": SamplingParams(),
    "temperature": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(top_k=2),
    "top_p": SamplingParams(top_p=0.7, temperature=1.4),
    "min_p": SamplingParams(min_p=0.2),
}
WITH_HISTORY = {
    "greedy": SamplingParams(temperature=0.0),
    "presence": SamplingParams(presence_penalty=1.5),
    "frequency": SamplingParams(frequency_penalty=1.0, temperature=0.7),
    "repetition": SamplingParams(repetition_penalty=1.8),
    "bias": SamplingParams(logit_bias={1: 2.0, 2: -1.0}),
    "bad words": SamplingParams(bad_words_token_ids=((1, 2), (3,))),
    "min_tokens": SamplingParams(min_tokens=2, stop_token_ids=(1,)),
}


def logits_after(tokens: list[int]) -> torch.Tensor:
    return LOGITS[tokens[-1] if tokens else VOCAB]


def exact(tokens: list[int], params: SamplingParams) -> torch.Tensor:
    """The distribution to sample from, computed the slow way."""
    p = (logits_after(tokens).double() / params.temperature).softmax(-1)
    if params.top_k:
        p[p < p.sort(descending=True).values[params.top_k - 1]] = 0
    p /= p.sum()
    order = p.argsort(descending=True)
    before = p[order].cumsum(-1) - p[order]
    p[order[before >= params.top_p]] = 0
    p[p < params.min_p * p.max()] = 0
    return p / p.sum()


DRAFTERS: dict[str, Drafter] = {
    "likeliest": lambda tokens, rng: int(logits_after(tokens).argmax()),
    "least likely": lambda tokens, rng: int(logits_after(tokens).argmin()),
    "always the same": lambda tokens, rng: 2,
    "at random": lambda tokens, rng: rng.randrange(VOCAB),
    "repeats": lambda tokens, rng: tokens[-1] if tokens else 0,
}


def chunk(drafts: list[int]) -> Chunk:
    return Chunk(0, "r", 0, 1 + len(drafts), True, False, tuple(drafts))


def generate(
    sampler: Sampler, params: SamplingParams, seed: int, drafter: Drafter | None, num_drafts: int
) -> tuple[int, ...]:
    """``LENGTH`` tokens, several places at a time, as the runner draws them."""
    sampler.admit(0, "r", msgspec.structs.replace(params, seed=seed), 0)
    rng = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < LENGTH:
        drafts: list[int] = []
        while drafter is not None and len(drafts) < num_drafts:
            drafts.append(drafter(tokens + drafts, rng))
        places = range(len(drafts) + 1)
        logits = torch.stack([logits_after(tokens + drafts[:place]) for place in places])
        positions = np.array([len(tokens) + place for place in places])
        table = torch.tensor([tokens + drafts + [0]])  # as the runner's: drafts behind known tokens
        drawn = sampler.sample(table, logits, np.zeros(len(places), np.int64), positions, None)
        tokens += accept(chunk(drafts), drawn.tolist())
    return tuple(tokens[:LENGTH])


def chi_square_p_value(observed: list[int], expected: list[float]) -> float:
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    degrees = torch.tensor((len(observed) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2).double()))


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(1, VOCAB, frozenset(), seed=0, device=torch.device("cpu"))


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("law", [*LAWS, *WITH_HISTORY])
def test_the_output_is_that_of_sampling_without_drafts(
    sampler: Sampler, law: str, drafter: str
) -> None:
    params = (LAWS | WITH_HISTORY)[law]
    for seed, num_drafts in product(range(8), (1, 2, 4)):
        plain = generate(sampler, params, seed, None, 0)
        assert generate(sampler, params, seed, DRAFTERS[drafter], num_drafts) == plain


@pytest.mark.parametrize("law", LAWS)
def test_the_law_is_the_exact_one(sampler: Sampler, law: str) -> None:
    """Chi-square of whole outputs against the product of the exact distributions."""
    params, count = LAWS[law], 1200
    drawn = Counter(
        generate(sampler, params, seed, DRAFTERS["at random"], 2) for seed in range(count)
    )
    expected: dict[tuple[int, ...], float] = {}
    for tokens in product(range(VOCAB), repeat=LENGTH):
        probability = 1.0
        for place, token_id in enumerate(tokens):
            probability *= float(exact(list(tokens[:place]), params)[token_id])
        expected[tokens] = probability * count
    assert all(expected[tokens] > 0 for tokens in drawn), "a token that the law forbids"
    usual = [tokens for tokens, frequency in expected.items() if frequency >= 5]
    observed = [drawn[tokens] for tokens in usual] + [
        sum(drawn[tokens] for tokens in expected if tokens not in usual)
    ]
    frequencies = [expected[tokens] for tokens in usual]
    frequencies.append(count - sum(frequencies))
    if frequencies[-1] < 1e-6:
        assert observed.pop() == 0
        frequencies.pop()
    assert chi_square_p_value(observed, frequencies) > 1e-3


def test_a_draft_is_accepted_with_its_probability() -> None:
    p = exact([], LAWS["plain"])
    count = 3000
    many = Sampler(count, VOCAB, frozenset(), seed=0, device=torch.device("cpu"))
    for seed in range(count):
        many.admit(seed, "r", SamplingParams(seed=seed), 0)
    first = many.sample(
        torch.zeros(count, 1, dtype=torch.int64),
        logits_after([]).repeat(count, 1),
        np.arange(count),
        np.zeros(count, np.int64),
        None,
    ).tolist()
    for draft in range(VOCAB):
        hits = sum(len(accept(chunk([draft]), [token_id, 0])) == 2 for token_id in first)
        deviation = (count * float(p[draft]) * (1 - float(p[draft]))) ** 0.5
        assert abs(hits - count * float(p[draft])) < 4 * deviation


def test_all_that_follows_a_miss_is_dropped() -> None:
    assert accept(chunk([1, 2, 3]), [1, 9, 3, 4]) == [1, 9]
    assert accept(chunk([1, 2, 3]), [9, 2, 3, 4]) == [9]
    assert accept(chunk([1, 2, 3]), [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert accept(chunk([]), [7]) == [7]
    assert accept(Chunk(0, "r", 0, 4, False), []) == []


def test_synthetic_acceptance_keeps_its_rates() -> None:
    judge = SyntheticAcceptance([0.8, 0.5, 0.1])
    counts = Counter(len(judge(chunk([1, 2, 3]), [9, 9, 9, 9])) for _ in range(4000))
    for place, rate in enumerate((0.8, 0.5, 0.1)):
        kept = sum(count for length, count in counts.items() if length > place + 1)
        assert abs(kept / 4000 - rate) < 0.03
    assert judge(chunk([]), [7]) == [7]
