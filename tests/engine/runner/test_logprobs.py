"""Log-probabilities as callers see them, against those of transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.llm import LLM, GenerationOutput, Logprob, SamplingParams, TokensPrompt
from tests.engine.runner.tiny_llama import VOCAB_SIZE

Reference = Callable[[list[int]], torch.Tensor]

PROMPTS: list[TokensPrompt] = [
    {"prompt_token_ids": [random.Random(i).randrange(VOCAB_SIZE) for _ in range(length)]}
    for i, length in enumerate((1, 2, 9, 33, 70, 90))
]
PROMPTS.append(PROMPTS[-1])
"""The last one is a prefix hit where the cache may be read."""


@pytest.fixture(scope="module")
def reference(tiny_dir: Path) -> Reference:
    """From token ids to the log-probabilities after each: [num_tokens, vocab]."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32).eval()

    def logprobs(token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            result: torch.Tensor = model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
        return result

    return logprobs


def llm(folder: Path, **options: Any) -> LLM:
    options = {"num_gpu_blocks_override": 200, "block_size": 4, **options}
    return LLM(folder, skip_tokenizer_init=True, num_threads=1, device="cpu", **options)


def assert_entry(
    entry: dict[int, Logprob], token_id: int, expected: torch.Tensor, num_top: int
) -> None:
    best = expected.topk(num_top)
    assert next(iter(entry)) == token_id
    assert set(entry) == {token_id, *best.indices.tolist()}
    for i, found in entry.items():
        assert found.logprob == pytest.approx(float(expected[i]), abs=1e-3)
        assert found.rank == 1 + int((expected > expected[i]).sum())
        assert found.decoded_token is None


def check(result: GenerationOutput, reference: Reference, params: SamplingParams) -> None:
    (completion,), prompt = result.outputs, result.prompt_token_ids
    expected = reference(prompt + completion.token_ids)
    assert completion.logprobs is not None
    assert params.logprobs is not None
    entries = zip(completion.logprobs, completion.token_ids, strict=True)
    for i, (entry, token_id) in enumerate(entries, len(prompt) - 1):
        assert_entry(entry, token_id, expected[i], params.logprobs)
    if params.prompt_logprobs is None:
        assert result.prompt_logprobs is None
        return
    assert result.prompt_logprobs is not None
    first, *rest = result.prompt_logprobs
    assert first is None
    for i, (given, token_id) in enumerate(zip(rest, prompt[1:], strict=True)):
        assert given is not None
        assert_entry(given, token_id, expected[i], params.prompt_logprobs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 13, "max_num_seqs": 4},
        {"async_scheduling": True, "long_prefill_token_threshold": 20},
        {"enable_prefix_caching": False},
        {"num_gpu_blocks_override": 60, "forecast_admission": False, "watermark": 0.0},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
def test_they_are_those_of_transformers(
    tiny_dir: Path, reference: Reference, options: dict[str, Any]
) -> None:
    engine = llm(tiny_dir, **options)
    common: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
    params = [
        SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=2, **common),
        SamplingParams(seed=1, logprobs=0, prompt_logprobs=0, **common),
        SamplingParams(seed=2, logprobs=20, presence_penalty=2.0, logit_bias={5: 9}, **common),
    ]
    wanted = [params[i % 3] for i in range(len(PROMPTS))]
    results = engine.generate(PROMPTS, wanted)
    for result, how in zip(results, wanted, strict=True):
        check(result, reference, how)
    stats = engine._core.stats()
    assert (stats.num_preemptions > 0) == ("watermark" in options)
    again = engine.generate(PROMPTS[-1:], params[0])[0]
    check(again, reference, params[0])
    assert again.num_cached_tokens == 0, "its whole prompt had to be computed"


def test_those_who_ask_for_none_get_none(tiny_dir: Path) -> None:
    engine = llm(tiny_dir)
    asking, plain = engine.generate(
        PROMPTS[2:4], [SamplingParams(logprobs=1, seed=1), SamplingParams(seed=1)]
    )
    assert asking.outputs[0].logprobs is not None
    assert plain.outputs[0].logprobs is None
    assert (
        plain.outputs[0].token_ids
        == engine.generate(PROMPTS[3], SamplingParams(seed=1))[0].outputs[0].token_ids
    )


def test_the_whole_vocabulary(tiny_dir: Path) -> None:
    engine = llm(tiny_dir, max_logprobs=-1)
    params = SamplingParams(logprobs=-1, prompt_logprobs=-1, max_tokens=1)
    (result,) = engine.generate(PROMPTS[2], params)
    assert result.outputs[0].logprobs is not None
    assert result.prompt_logprobs is not None
    entries = [*result.outputs[0].logprobs, *result.prompt_logprobs[1:]]
    assert [len(entry or ()) for entry in entries] == [VOCAB_SIZE] * 9
