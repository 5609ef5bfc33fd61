"""Whole generations with adapters on a GPU, within CUDA graphs and without."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.llm import LLM, LoRARequest, SamplingParams, TokensPrompt
from tests.engine.insides import runner_of
from tests.engine.lora.making import write_adapter
from tests.engine.lora.test_generation import (
    GREEDY,
    OPTIONS,
    PROMPTS,
    adapters,
    check_all_at_once,
    merged,
    model_dir,
)
from tests.engine.runner.emulated_graphs import Counted, CountedSteps
from tests.engine.runner.tiny_llama import save_tiny_llama

pytestmark = pytest.mark.gpu
__all__ = ["adapters", "merged", "model_dir"]  # its fixtures serve here, too

OUTPUT_LEN = 40
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}


@pytest.mark.parametrize("max_loras", [1, 3])
def test_equals_the_merged_weights_on_the_cpu(
    model_dir: Path, adapters: list[LoRARequest], merged: dict[str, Any], max_loras: int
) -> None:
    options = {**OPTIONS, "device": "cuda", "dtype": "float32", "block_size": 16}
    llm = LLM(model_dir, enable_lora=True, max_loras=max_loras, max_lora_rank=64, **options)
    check_all_at_once(llm, adapters, merged)
    assert [r.outputs[0].token_ids for r in llm.generate(PROMPTS, GREEDY)] == [
        r.outputs[0].token_ids for r in merged[""]
    ]


@pytest.fixture(scope="module")
def wide_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose decode steps run in CUDA graphs, and adapters that change much."""
    folder = tmp_path_factory.mktemp("wide")
    save_tiny_llama(
        folder / "base",
        hidden_size=256,
        intermediate_size=512,
        head_dim=64,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1000,
        max_position_embeddings=512,
        initializer_range=0.08,
    )
    for seed, rank in enumerate((8, 16, 64)):
        write_adapter(folder / str(rank), folder / "base", rank=rank, seed=seed, strength=0.1)
    return folder


def wide_llm(folder: Path, **options: Any) -> LLM:
    settings = {"device": "cuda", "dtype": "bfloat16", "num_gpu_blocks_override": 300, **options}
    return LLM(
        folder / "base",
        enable_lora=True,
        max_lora_rank=64,
        max_num_seqs=16,
        skip_tokenizer_init=True,
        **settings,
    )


def wide_outputs(llm: LLM, folder: Path) -> list[list[int]]:
    """Of twelve requests at once, every fourth of which has no adapter and is left out here; then
    two with each adapter, one after the other."""
    rng = random.Random(0)
    names = [LoRARequest(name, folder / name) for name in ("8", "16", "64")]
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_LEN, ignore_eos=True)
    prompts = [
        TokensPrompt(prompt_token_ids=[rng.randrange(1000) for _ in range(rng.randint(1, 60))])
        for _ in range(12)
    ]
    results = llm.generate(prompts, params, lora_request=[*names, None] * 3)
    results = [result for i, result in enumerate(results) if i % 4 < 3]
    for name in names:
        for prompt in prompts[:2]:  # alone, a request's drafts are as many as those of all
            results += llm.generate(prompt, params, lora_request=name)
    return [result.outputs[0].token_ids for result in results]


def agreement(ones: list[list[int]], others: list[list[int]]) -> float:
    """The share of the tokens before the first that differs."""
    common = [
        next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
        for a, b in zip(ones, others, strict=True)
    ]
    return sum(common) / (OUTPUT_LEN * len(common))


@pytest.mark.parametrize(
    "options", [{"max_loras": 3}, {"max_loras": 1}, {"max_loras": 3, "speculative_config": NGRAM}]
)
def test_graphs_with_adapters_change_nothing_but_near_ties(
    wide_dir: Path, options: dict[str, Any]
) -> None:
    llm = wide_llm(wide_dir, **options)
    runner = runner_of(llm)
    assert runner._forward_pass.graphs is not None
    counted = CountedSteps(runner._forward_pass.graphs)
    runner._forward_pass.graphs = counted  # type: ignore[assignment]
    ours = wide_outputs(llm, wide_dir)
    assert counted.decoding.num_adapted > 0
    if "speculative_config" in options:
        assert counted.checking.num_adapted > 0
    eager = wide_outputs(wide_llm(wide_dir, max_loras=3, enforce_eager=True), wide_dir)
    # Another adapter, or none, would part them at the second token, the first of a graph.
    assert agreement(ours, eager) > 0.2


def test_logits_of_prompts_in_graphs_are_those_of_other_steps(wide_dir: Path) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("prompts are captured on Hopper")
    llm = wide_llm(wide_dir, max_loras=1, enable_prefix_caching=False)
    runner = runner_of(llm)
    rng = random.Random(1)
    lengths = (2, 17, 129, 300, 384, 385)
    prompts = [[rng.randrange(1000) for _ in range(n)] for n in lengths]
    first = SamplingParams(temperature=0.0, max_tokens=1, logprobs=5)

    def logprobs(prompt: list[int], name: str) -> dict[int, float]:
        asked = TokensPrompt(prompt_token_ids=prompt)
        result = llm.generate(asked, first, lora_request=LoRARequest(name, wide_dir / name))[0]
        found = result.outputs[0].logprobs
        assert found is not None
        return {token: of.logprob for token, of in found[0].items()}

    counted = Counted(runner._forward_pass.prompt_graphs)
    found = []
    for graphs in (counted, None):
        runner._forward_pass.prompt_graphs = graphs  # type: ignore[assignment]
        found.append([logprobs(prompt, name) for name in ("8", "64") for prompt in prompts])
    assert counted.num_adapted == 2 * (len(lengths) - 1)
    for captured, eager in zip(*found, strict=True):
        common = captured.keys() & eager.keys()
        assert len(common) >= 3
        for token in common:
            assert captured[token] == pytest.approx(eager[token], abs=0.2)


def test_adapters_change_what_is_generated(wide_dir: Path) -> None:
    outputs = wide_outputs(wide_llm(wide_dir, max_loras=3, enforce_eager=True), wide_dir)
    alone = outputs[9:]
    assert agreement(alone[:2], alone[2:4]) < 0.1
    assert agreement(alone[2:4], alone[4:]) < 0.1
