"""Sampled frequencies against the exact distribution: each parameter, and many at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from engine.sampling.sampler import RowMask, Sampler
from engine.sampling_params import SamplingParams
from kernels import cpu
from tests.engine.sampling import naive

VOCAB, EOS, DRAWS = 12, 11, 5000
PROMPT, OUTPUT = [0, 1, 2, 2], [3, 3, 4, 1, 5]
# No two are equal before or after what the cases below do to them.
LOGITS = [0.3, 1.1, -0.4, 0.9, 1.7, -1.2, 0.05, 2.2, -0.7, 1.37, 0.55, 1.9]

CASES: list[dict[str, Any]] = [
    {"temperature": 0.6},
    {"temperature": 1.8},
    {"top_k": 4},
    {"top_p": 0.7},
    {"min_p": 0.3},
    {"top_n_sigma": 0.8, "temperature": 1.5},
    {"presence_penalty": 1.5},
    {"presence_penalty": -1.0},
    {"frequency_penalty": 1.2},
    {"repetition_penalty": 2.5},
    {"repetition_penalty": 0.5},
    {"logit_bias": {7: -100.0, 5: 3.0}},
    {"allowed_token_ids": [1, 4, 5, 9]},
    {"bad_words_token_ids": [[7], [1, 5, 4], [5, 9], [3, 2]]},
    {"min_tokens": 9, "stop_token_ids": [4]},
    {"temperature": 0.8, "top_k": 7, "top_p": 0.85, "min_p": 0.05},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3, "top_p": 0.9},
    {
        "temperature": 1.3,
        "logit_bias": {0: 2.0, 10: 1.0},
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.7,
        "bad_words_token_ids": [[5, 7]],
        "allowed_token_ids": [0, 1, 3, 4, 5, 7, 10, 11],
        "min_tokens": 6,
        "top_n_sigma": 2.0,
        "top_k": 6,
        "min_p": 0.02,
    },
]


@pytest.fixture(autouse=True)
def _kernels() -> None:
    if cpu.available():
        cpu.register()


def counts(params: dict[str, Any], mask: RowMask | None = None) -> list[int]:
    """Of the next token, drawn with as many seeds; a request with each of them."""
    sampler = Sampler(DRAWS, VOCAB, frozenset({EOS}), seed=0, device=torch.device("cpu"))
    for row in range(DRAWS):
        sampler.admit(row, "", SamplingParams(seed=row, **params), len(PROMPT))
    history = [*PROMPT, *OUTPUT]
    tokens = torch.tensor([history]).repeat(DRAWS, 1)
    logits = torch.tensor([LOGITS]).repeat(DRAWS, 1)
    rows, positions = np.arange(DRAWS), np.full(DRAWS, len(history))
    drawn = sampler.sample(tokens, logits, rows, positions, mask)
    result: list[int] = drawn.bincount(minlength=VOCAB).tolist()
    return result


def exact(params: dict[str, Any]) -> list[float]:
    how = SamplingParams(**params)
    processed = naive.processed(LOGITS, PROMPT, OUTPUT, how, frozenset({EOS}))
    return naive.probabilities(processed, how)


def deviation(found: Sequence[int], expected: Sequence[float]) -> float:
    """Standard deviations that Pearson's statistic is above its mean; infinite if something was
    drawn that cannot be."""
    if any(count and not p for count, p in zip(found, expected, strict=True)):
        return math.inf
    total = sum(found)
    freedom = sum(p > 0 for p in expected) - 1
    statistic = math.fsum(
        (count - total * p) ** 2 / (total * p)
        for count, p in zip(found, expected, strict=True)
        if p
    )
    return (statistic - freedom) / math.sqrt(2 * max(freedom, 1))


@pytest.mark.parametrize("params", CASES, ids=lambda case: "+".join(case))
def test_frequencies_are_those_of_the_distribution(params: dict[str, Any]) -> None:
    found = counts(params)
    assert deviation(found, exact(params)) < 5
    # The parameter did something, and the test would have seen it if not.
    assert deviation(found, exact({})) > 20


def test_without_any_parameter() -> None:
    assert deviation(counts({}), exact({})) < 5


def test_a_mask_cuts_the_distribution_and_changes_nothing_else() -> None:
    allowed = [0, 2, 3, 7, 9]
    bits = np.array([[sum(1 << i for i in allowed)]], np.int32).repeat(DRAWS, 0)
    params = {"presence_penalty": 0.8, "top_p": 0.9, "top_n_sigma": 1.5}
    found = counts(params, RowMask(np.arange(DRAWS), bits))
    assert deviation(found, exact({**params, "allowed_token_ids": allowed})) < 5
