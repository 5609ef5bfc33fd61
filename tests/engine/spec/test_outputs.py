"""Whole workloads on a real model: speculation changes nothing but the number of steps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.llm import LLM, Logprob, SamplingParams, TokensPrompt
from engine.messages import RequestOutput
from tests.engine.insides import core_of
from tests.engine.runner.tiny_llama import save_tiny_llama

NGRAM = {"adaptive": False, "method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SUFFIX = {"adaptive": False, "method": "suffix", "suffix_decoding_max_spec_factor": 2.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_llama(folder)
    return folder


Output = tuple[list[int], object, object]


def engine(model: Path, **options: Any) -> LLM:
    defaults = {"device": "cpu", "block_size": 4, "num_threads": 1, "max_num_seqs": 8}
    return LLM(model, skip_tokenizer_init=True, **{**defaults, **options})


def workload(vocab_size: int) -> tuple[list[TokensPrompt], list[SamplingParams]]:
    """Loops and copies, greedy and sampled, some of them twice (n > 1), some with a stop."""
    rng = random.Random(1)
    prompts, params = [], []
    for i in range(10):
        run = [rng.randrange(vocab_size) for _ in range(3 + i)]
        prompts.append(TokensPrompt(prompt_token_ids=run * (1 + i % 3)))
        how: dict[str, Any] = {"temperature": 0.0}
        if i % 3 == 0:
            how = {"temperature": 0.4, "top_p": 0.9, "seed": 2**40 + i}
        params.append(
            SamplingParams(
                max_tokens=12 + 3 * i,
                min_tokens=i,
                ignore_eos=i % 2 == 0,
                stop_token_ids=(i * 7 % vocab_size,),
                frequency_penalty=0.2 if i == 4 else 0.0,
                logprobs=2 if i in (0, 5) else None,
                prompt_logprobs=1 if i == 6 else None,
                **how,
            )
        )
    return prompts + prompts[:2], params + params[:2]


def outputs(llm: LLM) -> list[Output]:
    prompts, params = workload(llm.info.vocab_size)
    results = llm.generate(prompts, params)
    core_of(llm).check_integrity()
    return [
        (r.outputs[0].token_ids, r.outputs[0].finish_reason, rounded(r.outputs[0].logprobs))
        for r in results
    ]


def rounded(logprobs: list[dict[int, Logprob]] | None) -> object:
    """Chunks of more than eight tokens take another path, which differs in the last bits."""
    if logprobs is None:
        return None
    return [{i: round(entry.logprob, 3) for i, entry in tops.items()} for tops in logprobs]


@pytest.fixture(scope="module")
def plain(model: Path) -> list[Output]:
    return outputs(engine(model))


@pytest.mark.parametrize("num_tokens", [1, 3, 7, 12])
@pytest.mark.parametrize("method", [NGRAM, SUFFIX], ids=lambda method: method["method"])
def test_the_same_for_every_number_of_drafts(
    model: Path, plain: list[Output], method: dict[str, Any], num_tokens: int
) -> None:
    llm = engine(model, speculative_config={**method, "num_speculative_tokens": num_tokens})
    assert outputs(llm) == plain
    stats = llm._core.stats()
    assert 0 < stats.spec_decode_num_accepted_tokens < stats.spec_decode_num_draft_tokens
    assert len(stats.spec_decode_num_accepted_tokens_per_pos) <= num_tokens


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16},
        {"async_scheduling": True},
        {"num_gpu_blocks_override": 24, "max_model_len": 80, "forecast_admission": False},
        {"enable_prefix_caching": False, "max_num_seqs": 3},
    ],
    ids=["chunked", "overlap", "crowded", "uncached"],
)
def test_the_same_however_it_is_scheduled(
    model: Path, plain: list[Output], options: dict[str, Any]
) -> None:
    llm = engine(model, speculative_config={**NGRAM, "num_speculative_tokens": 4}, **options)
    assert outputs(llm) == plain
    stats = llm._core.stats()
    assert stats.spec_decode_num_accepted_tokens > 0
    assert "num_gpu_blocks_override" not in options or stats.num_preemptions > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_the_same_when_it_decides_itself_how_many(
    model: Path, plain: list[Output], overlap: bool
) -> None:
    config = {**NGRAM, "adaptive": True, "num_speculative_tokens": 5}
    llm = engine(model, speculative_config=config, async_scheduling=overlap)
    assert outputs(llm) == plain


def test_what_a_request_accepted_is_reported(model: Path) -> None:
    llm = engine(model, speculative_config={**NGRAM, "num_speculative_tokens": 3})
    seen: list[RequestOutput] = []
    step = llm._core.step

    def spy() -> list[RequestOutput]:
        outputs = step()
        seen.extend(outputs)
        return outputs

    llm._core.step = spy  # type: ignore[method-assign]
    llm.generate(
        [TokensPrompt(prompt_token_ids=[5, 6, 7] * 4)], SamplingParams(temperature=0, max_tokens=40)
    )
    last = seen[-1]
    assert last.finish_reason is not None
    total = sum(len(output.new_token_ids) for output in seen)
    assert 0 < last.num_accepted_tokens < total
    assert last.num_accepted_tokens <= last.num_draft_tokens
    stats = llm._core.stats()
    assert stats.spec_decode_num_accepted_tokens == last.num_accepted_tokens
    assert stats.spec_decode_num_draft_tokens == last.num_draft_tokens
    # Each step gave one token of its own.
    assert total == last.num_accepted_tokens + len(seen)
