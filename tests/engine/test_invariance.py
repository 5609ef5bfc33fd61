"""What a request generates depends on its seed, its prompt and its parameters, and on nothing else:
not on who runs beside it, nor on chunks, preemptions, cached prefixes or steps in flight."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.llm import LLM, CompletionOutput, GenerationOutput, SamplingParams, TokensPrompt
from tests.engine.runner.tiny_llama import VOCAB_SIZE, save_tiny_llama

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunked": {"max_num_batched_tokens": 11, "max_num_seqs": 6},
    "short chunks": {"long_prefill_token_threshold": 5},
    "overlap": {"async_scheduling": True},
    "no prefix cache": {"enable_prefix_caching": False, "async_scheduling": True},
    "crowded": {
        "num_gpu_blocks_override": 34,
        "forecast_admission": False,
        "scheduler_reserve_full_isl": False,
        "watermark": 0.0,
        "max_num_batched_tokens": 40,
    },
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LLM]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    common = {"block_size": 4, "num_gpu_blocks_override": 300, "max_num_seqs": 16}
    return {
        name: LLM(
            folder, device="cpu", skip_tokenizer_init=True, num_threads=1, **{**common, **options}
        )
        for name, options in SETTINGS.items()
    }


token_ids = st.integers(0, VOCAB_SIZE - 1)
few_ids = st.integers(0, 30)


@st.composite
def requests(draw: st.DrawFn) -> tuple[TokensPrompt, SamplingParams]:
    rng = random.Random(draw(st.integers(0, 3)))  # few: prompts begin alike
    length = draw(st.integers(1, 40))
    prompt = [rng.randrange(31) for _ in range(length)]
    options: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {
                "seed": st.integers(0, 2**64 - 1),
                "max_tokens": st.integers(1, 20),
                "temperature": st.sampled_from([0.0, 0.7, 1.0, 1.5]),
            },
            optional={
                "n": st.integers(1, 3),
                "top_k": st.integers(1, 60),
                "top_p": st.floats(0.1, 1.0),
                "min_p": st.floats(0.0, 0.3),
                "top_n_sigma": st.floats(0.0, 3.0),
                "presence_penalty": st.floats(-2, 2),
                "frequency_penalty": st.floats(-2, 2),
                "repetition_penalty": st.floats(0.5, 2),
                "logit_bias": st.dictionaries(few_ids, st.floats(-5, 5), max_size=6),
                "allowed_token_ids": st.sets(few_ids, min_size=3, max_size=20).map(sorted),
                "bad_words_token_ids": st.lists(
                    st.lists(few_ids, min_size=1, max_size=3), max_size=6
                ),
                "stop_token_ids": st.lists(few_ids, max_size=3),
                "min_tokens": st.just(1),
                "logprobs": st.integers(0, 5),
                "prompt_logprobs": st.integers(0, 3),
            },
        )
    )
    return {"prompt_token_ids": prompt}, SamplingParams(ignore_eos=True, **options)


def assert_equal(ours: GenerationOutput, alone: GenerationOutput) -> None:
    for mine, theirs in zip(ours.outputs, alone.outputs, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert (mine.finish_reason, mine.stop_reason) == (theirs.finish_reason, theirs.stop_reason)
        assert scores(mine) == scores(theirs)  # to the bit
    assert (ours.prompt_logprobs is None) == (alone.prompt_logprobs is None)
    mine_p, theirs_p = (result.prompt_logprobs or [] for result in (ours, alone))
    for entry, other in zip(mine_p, theirs_p, strict=True):
        assert (entry or {}).keys() == (other or {}).keys()


def scores(completion: CompletionOutput) -> list[float]:
    return [
        found.logprob
        for entry, token_id in zip(completion.logprobs or (), completion.token_ids, strict=False)
        for found in (entry[token_id],)
    ]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(requests(), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_in_any_company_and_under_any_settings(
    engines: dict[str, LLM],
    wanted: list[tuple[TokensPrompt, SamplingParams]],
    rng: random.Random,
) -> None:
    plain = engines["no prefix cache"]
    alone = [plain.generate(prompt, params)[0] for prompt, params in wanted]
    for engine in engines.values():
        order = list(range(len(wanted)))
        rng.shuffle(order)
        results = engine.generate([wanted[i][0] for i in order], [wanted[i][1] for i in order])
        for i, result in zip(order, results, strict=True):
            assert_equal(result, alone[i])


def test_the_settings_bring_about_what_they_are_for(engines: dict[str, LLM]) -> None:
    params = SamplingParams(seed=1, max_tokens=30, ignore_eos=True, presence_penalty=1.0)
    prompts: list[TokensPrompt] = [{"prompt_token_ids": [7, 8, 9] * 9 + [i]} for i in range(8)]
    expected = [engines["plain"].generate(prompt, params)[0].outputs for prompt in prompts]
    for engine in engines.values():
        assert [result.outputs for result in engine.generate(prompts, params)] == expected
    stats = {name: engine._core.stats() for name, engine in engines.items()}
    assert stats["crowded"].num_preemptions > 0
    assert stats["plain"].prefix_cache_hits > 0
    assert stats["no prefix cache"].prefix_cache_hits == 0
