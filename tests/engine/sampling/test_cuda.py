"""The sampler on a GPU gives what the one in plain torch gives."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from engine.sampling.sampler import RowMask, Sampler
from engine.sampling_params import SamplingParams

pytestmark = pytest.mark.gpu
VOCAB, ROWS, MAX_LEN = 5003, 24, 200
EOS = frozenset({17})

OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.7, "temperature": 0.0},
    {"repetition_penalty": 1.3, "top_p": 0.9},
    {"logit_bias": {3: 5.0, 99: -100.0, 700: 8.5}},
    {"allowed_token_ids": [3, 5, 8, 13, 21]},
    {"bad_words_token_ids": [[3], [1, 2], [7, 7, 7]]},
    {"min_tokens": 100, "stop_token_ids": (5, 6)},
    {
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "repetition_penalty": 0.8,
        "logit_bias": {4: 3.25},
        "bad_words_token_ids": [[4, 4], [5]],
        "min_tokens": 150,
        "top_k": 40,
        "min_p": 0.01,
        "top_n_sigma": 2.5,
        "temperature": 0.8,
    },
]


@pytest.fixture(autouse=True)
def _kernels() -> None:
    from kernels import cuda

    cuda.register()


def case(dtype: torch.dtype, seed: int) -> tuple[Any, ...]:
    rng = random.Random(seed)
    gpu, cpu = (
        Sampler(ROWS, VOCAB, EOS, seed=0, device=torch.device(device)) for device in ("cuda", "cpu")
    )
    for row in range(ROWS):
        options = {"seed": row, "max_tokens": None, **OPTIONS[row % len(OPTIONS)]}
        num_prompt = rng.randrange(1, 50)
        for sampler in (gpu, cpu):
            sampler.admit(row, str(row), SamplingParams(**options), num_prompt)
    gen = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 12, (ROWS, MAX_LEN), generator=gen)
    rows = np.array(rng.sample(range(ROWS), 16))
    positions = np.array([rng.randrange(50, MAX_LEN - 1) for _ in rows])
    logits = (torch.randn(16, VOCAB, generator=gen) * 3).to(dtype)
    bits = np.random.default_rng(seed).integers(-(2**31), 2**31, (2, -(-VOCAB // 32)))
    mask = RowMask(np.array([2, 9]), bits.astype(np.int32))
    return gpu, cpu, tokens, logits, rows, positions, mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(4))
def test_processed_logits_are_the_same_bits(dtype: torch.dtype, seed: int) -> None:
    gpu, cpu, tokens, logits, rows, positions, mask = case(dtype, seed)
    ours = gpu.process(tokens.cuda(), logits.cuda(), rows, positions, mask)
    assert ours.dtype == torch.float32
    assert torch.equal(ours.cpu(), cpu.process(tokens, logits.clone(), rows, positions, mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_the_same(dtype: torch.dtype) -> None:
    different = total = 0
    for seed in range(20):
        gpu, cpu, tokens, logits, rows, positions, mask = case(dtype, seed)
        table = tokens.cuda()
        host = torch.full((len(rows),), -9).pin_memory()
        ours = gpu.sample_into(table, logits.cuda(), rows, positions, mask, host=host).cpu()
        assert torch.equal(ours, host)
        theirs = cpu.sample_into(tokens, logits, rows, positions, mask)
        different += int((ours != theirs).sum())
        total += len(ours)
        if torch.equal(ours, theirs):
            assert torch.equal(table.cpu(), tokens)
    # Only where two sums round to different sides of an edge of top-p.
    assert different <= total // 100


def test_the_drafts_of_a_request_are_rows_like_others() -> None:
    gpu, cpu, tokens, logits, rows, positions, _ = case(torch.bfloat16, 3)
    rows, positions = rows.repeat(3), (positions[:, None] + np.array([-2, -1, 0])).ravel()
    logits = logits.repeat_interleave(3, 0)
    ours = gpu.process(tokens.cuda(), logits.cuda(), rows, positions, None)
    assert torch.equal(ours.cpu(), cpu.process(tokens, logits, rows, positions, None))
