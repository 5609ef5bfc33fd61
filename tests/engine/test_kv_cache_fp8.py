"""Generating over a KV cache in FP8: the same whatever the steps, and close to full precision."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.demo import MODEL_DIR
from engine.demo.evaluate import evaluate, held_out_examples
from engine.llm import LLM, SamplingParams
from tests.engine.models.families import CASES, FALLBACK_CASES, Case, write
from tests.engine.runner.tiny_llama import save_tiny_llama

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "num_threads": 1,
    "skip_tokenizer_init": True,
    "kv_cache_dtype": "fp8",
}
WAYS: dict[str, dict[str, Any]] = {
    "chunked": {"max_num_batched_tokens": 11, "max_num_seqs": 6},
    "op by op": {"attention_backend": "torch"},
    "no prefix cache": {"enable_prefix_caching": False},
    "drafted": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "swapped": {
        "num_gpu_blocks_override": 34,
        "forecast_admission": False,
        "scheduler_reserve_full_isl": False,
        "watermark": 0.0,
        "swap_space": 0.01,
    },
}


def prompts(vocab_size: int, lengths: list[int]) -> list[dict[str, list[int]]]:
    """They begin alike."""
    rng = random.Random(0)
    ids = [rng.randrange(vocab_size) for _ in range(max(lengths))]
    return [{"prompt_token_ids": [*ids[: n - 1], n]} for n in lengths]


def generated(llm: LLM, asked: list[dict[str, list[int]]], max_tokens: int) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    outputs = llm.generate(asked, params)  # type: ignore[arg-type]
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def alone(tiny: Path) -> list[list[int]]:
    llm = LLM(tiny, block_size=4, num_gpu_blocks_override=300, **OPTIONS)
    asked = prompts(200, [5, 33, 34, 40, 21, 38])
    return [generated(llm, [prompt], 30)[0] for prompt in asked]


@pytest.mark.parametrize("way", WAYS)
def test_steps_do_not_matter(tiny: Path, alone: list[list[int]], way: str) -> None:
    """A prompt's own keys are read back from the cache, so chunks see what decoding sees."""
    settings = {"block_size": 4, "num_gpu_blocks_override": 300, **OPTIONS, **WAYS[way]}
    llm = LLM(tiny, **settings)
    asked = prompts(200, [5, 33, 34, 40, 21, 38])
    assert generated(llm, asked, 30) == alone
    assert generated(llm, asked, 30) == alone, "with what the first run left"


@pytest.mark.parametrize(
    "case",
    [
        next(case for case in CASES if case.architecture == "DeepseekV2ForCausalLM"),
        next(case for case in CASES if case.architecture == "Gemma2ForCausalLM"),
        next(case for case in FALLBACK_CASES if case.architecture == "GPT2LMHeadModel"),
    ],
    ids=lambda case: case.name,
)
def test_latents_windows_and_foreign_models(case: Case, tmp_path: Path) -> None:
    """Log-probabilities of a prompt stay close to those of a cache of float32."""
    write(case, tmp_path)
    scores = []
    for dtype in ("auto", "fp8"):
        llm = LLM(
            tmp_path,
            **{**OPTIONS, "kv_cache_dtype": dtype},
            block_size=4,
            num_gpu_blocks_override=60,
        )
        params = SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=0, ignore_eos=True)
        (output,) = llm.generate(prompts(100, [30]), params)  # type: ignore[arg-type]
        assert output.prompt_logprobs is not None
        scores.append([next(iter(at.values())).logprob for at in output.prompt_logprobs if at])
    drift = [abs(a - b) for a, b in zip(*scores, strict=True)]
    assert max(drift) > 0, "nothing was rounded"
    assert sum(drift) / len(drift) < 0.05
    assert max(drift) < 0.3


def test_the_demo_model_answers_as_before() -> None:
    """A held-out prompt of each kind: nearly every greedy answer stays right or wrong."""
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    examples = held_out_examples(1)
    right = []
    for dtype in ("auto", "fp8"):
        llm = LLM(MODEL_DIR, **{**OPTIONS, "kv_cache_dtype": dtype})

        def generate(asked: list[list[int]], max_tokens: int, llm: LLM = llm) -> list[list[int]]:
            params = SamplingParams(temperature=0, max_tokens=max_tokens, skip_special_tokens=False)
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in asked], params)
            return [list(output.outputs[0].token_ids) for output in outputs]

        right.append([o.right for o in evaluate(generate, tokenizer, examples).outcomes])
    changed = sum(a != b for a, b in zip(*right, strict=True))
    assert changed <= 0.05 * len(right[0]), f"{changed} of {len(right[0])} answers changed"
