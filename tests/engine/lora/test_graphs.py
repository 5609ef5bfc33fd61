"""Steps with adapters in CUDA graphs, which are emulated on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.llm import LLM, LoRARequest
from tests.engine.insides import runner_of
from tests.engine.lora.test_generation import (
    GREEDY,
    OPTIONS,
    PROMPTS,
    adapters,
    assert_same,
    check_all_at_once,
    merged,
    model_dir,
)
from tests.engine.runner.emulated_graphs import emulate, emulate_prompts
from tests.pairs import each_value

__all__ = ["adapters", "merged", "model_dir"]  # its fixtures serve here, too


def make(model_dir: Path, **options: Any) -> LLM:
    settings = {**OPTIONS, "enable_lora": True, "max_loras": 3, "max_lora_rank": 64, **options}
    return LLM(model_dir, **settings)


@pytest.mark.parametrize(
    "options",
    each_value([{"max_loras": 1, "max_num_seqs": 3}, {}, {"num_gpu_blocks_override": 20}], most=1),
    ids=str,
)
def test_graphs_with_adapters_equal_the_merged_weights(
    options: dict[str, Any],
    model_dir: Path,
    adapters: list[LoRARequest],
    merged: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = make(model_dir, **options)
    decoding, _, _ = emulate(runner_of(llm), monkeypatch, 1)
    for _ in range(2):
        check_all_at_once(llm, adapters, merged)
    assert decoding.num_runs >= 2 * (GREEDY.max_tokens or 0) - 2


def test_drafts_are_checked_in_graphs_with_adapters(
    model_dir: Path,
    adapters: list[LoRARequest],
    merged: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    llm = make(model_dir, max_num_seqs=4, speculative_config={**drafts, "adaptive": False})
    _, checking, _ = emulate(runner_of(llm), monkeypatch, 3)
    check_all_at_once(llm, adapters, merged)
    before = checking.num_adapted
    for adapter in adapters:  # alone, each request has as many drafts as the others
        results = llm.generate(PROMPTS[:1], GREEDY, lora_request=adapter)
        assert_same(results[0], merged[adapter.lora_name][0])
    assert checking.num_adapted > before


def test_prompts_with_adapters_run_in_graphs(
    model_dir: Path,
    adapters: list[LoRARequest],
    merged: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other, in graphs that hold more tokens than they have, and in a slot that
    others had before."""
    llm = make(model_dir, max_loras=1, max_num_seqs=1, enable_prefix_caching=False)
    prompts = emulate_prompts(runner_of(llm), monkeypatch, [4, 7, 32])
    for adapter in [*adapters, None, *adapters[::-1]]:
        before = prompts.num_runs, prompts.num_adapted
        results = llm.generate(PROMPTS, GREEDY, lora_request=adapter)
        of_several = sum(len(result.prompt_token_ids) > 1 for result in results)
        assert of_several >= 3
        assert prompts.num_runs == before[0] + of_several
        assert prompts.num_adapted == before[1] + (0 if adapter is None else of_several)
        for result, expected in zip(
            results, merged["" if adapter is None else adapter.lora_name], strict=True
        ):
            assert_same(result, expected)


def test_adapters_come_and_go_between_the_steps(
    model_dir: Path,
    adapters: list[LoRARequest],
    merged: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph reads matrices where they always are: those of an adapter that took the slot."""
    llm = make(model_dir, max_loras=1)
    decoding, _, _ = emulate(runner_of(llm), monkeypatch, 1)
    for adapter in [*adapters, None, *adapters[::-1]]:
        before = decoding.num_runs, decoding.num_adapted
        results = llm.generate(PROMPTS, GREEDY, lora_request=adapter)
        assert decoding.num_runs > before[0]
        assert (decoding.num_adapted > before[1]) is (adapter is not None)
        for result, expected in zip(
            results, merged["" if adapter is None else adapter.lora_name], strict=True
        ):
            assert_same(result, expected)
        if adapter is not None:
            llm.unload_lora(adapter.lora_name)
    assert llm.stats().num_adapter_swaps >= 2 * len(adapters)


def test_a_step_without_adapters_reads_none(
    model_dir: Path, adapters: list[LoRARequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base requests pay for no adapter, though some are loaded."""
    from kernels import ops

    llm = make(model_dir)
    decoding, _, _ = emulate(runner_of(llm), monkeypatch, 1)
    llm.generate(PROMPTS[0], GREEDY, lora_request=adapters[0])
    before = decoding.num_runs

    def fail(*_: object) -> None:
        raise AssertionError("an adapter was added")

    monkeypatch.setattr(ops, "shrink_lora", fail)
    llm.generate(PROMPTS, GREEDY)
    assert decoding.num_runs > before
    with pytest.raises(AssertionError, match="an adapter was added"):
        llm.generate(PROMPTS[0], GREEDY, lora_request=adapters[0])
