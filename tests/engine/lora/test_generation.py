"""Requests with adapters generate what the merged weights generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import AdapterLoadError, ConfigError, EngineError, InvalidRequest
from engine.llm import LLM, LoRARequest, SamplingParams
from engine.messages import AdapterRef, GenerateRequest, RequestOutput
from engine.outputs import GenerationOutput
from tests.engine import toys
from tests.engine.lora.making import merge, write_adapter

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "num_threads": 1,
    "num_gpu_blocks_override": 128,
    "block_size": 4,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=3)
PROMPTS = ["the cat sat on the mat", "naïve café on the mat", "你好 the cat", "a"]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def adapters(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    """Of different ranks and targets."""
    folder = tmp_path_factory.mktemp("adapters")
    write_adapter(folder / "all", model_dir, rank=8, seed=1)
    write_adapter(folder / "attention", model_dir, rank=16, seed=2, targets=("q_proj", "v_proj"))
    write_adapter(folder / "root", model_dir, rank=64, seed=3, use_rslora=True)
    return [LoRARequest(name, folder / name) for name in ("all", "attention", "root")]


@pytest.fixture(scope="module")
def merged(
    model_dir: Path, adapters: list[LoRARequest], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[GenerationOutput]]:
    """What each adapter's merged weights answer to all prompts; "" is the base."""
    folder = tmp_path_factory.mktemp("merged")
    found = {"": LLM(model_dir, **OPTIONS).generate(PROMPTS, GREEDY)}
    for adapter in adapters:
        name = adapter.lora_name
        llm = LLM(merge(model_dir, Path(adapter.lora_path), folder / name), **OPTIONS)
        found[name] = llm.generate(PROMPTS, GREEDY)
    return found


@pytest.fixture(scope="module")
def llm(model_dir: Path) -> LLM:
    return LLM(model_dir, enable_lora=True, max_loras=3, max_lora_rank=64, **OPTIONS)


def assert_same(result: GenerationOutput, expected: GenerationOutput) -> None:
    one, other = result.outputs[0], expected.outputs[0]
    assert one.token_ids == other.token_ids
    assert one.logprobs is not None
    assert other.logprobs is not None
    for found, wanted in zip(one.logprobs, other.logprobs, strict=True):
        for token_id, logprob in wanted.items():
            assert found[token_id].logprob == pytest.approx(logprob.logprob, abs=1e-4)


def check_all_at_once(
    llm: LLM, adapters: list[LoRARequest], merged: dict[str, list[GenerationOutput]]
) -> None:
    every = [None, *adapters]
    asked = [(prompt, adapter) for prompt in range(len(PROMPTS)) for adapter in every]
    results = llm.generate(
        [PROMPTS[prompt] for prompt, _ in asked],
        GREEDY,
        lora_request=[adapter for _, adapter in asked],
    )
    for (prompt, adapter), result in zip(asked, results, strict=True):
        assert_same(result, merged["" if adapter is None else adapter.lora_name][prompt])


def test_the_adapters_change_what_is_generated(merged: dict[str, list[GenerationOutput]]) -> None:
    answers = {tuple(results[0].outputs[0].token_ids) for results in merged.values()}
    assert len(answers) == 4


def test_many_adapters_in_a_batch_equal_their_merged_weights(
    llm: LLM, adapters: list[LoRARequest], merged: dict[str, list[GenerationOutput]]
) -> None:
    check_all_at_once(llm, adapters, merged)


def test_cached_prefixes_are_kept_apart(
    llm: LLM, adapters: list[LoRARequest], merged: dict[str, list[GenerationOutput]]
) -> None:
    check_all_at_once(llm, adapters, merged)
    again = llm.generate(PROMPTS[0], GREEDY, lora_request=adapters[0])[0]
    assert again.num_cached_tokens > 0
    check_all_at_once(llm, adapters, merged)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 5, "max_num_seqs": 4},  # chunks of prompts
        {"num_gpu_blocks_override": 20, "forecast_admission": False},  # preemptions
        {"max_loras": 1},  # one after the other in one slot
        {"max_loras": 2, "policy": "fair_share", "max_num_seqs": 3},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"async_scheduling": True},
    ],
    ids=str,
)
def test_under_every_pressure(
    options: dict[str, Any],
    model_dir: Path,
    adapters: list[LoRARequest],
    merged: dict[str, list[GenerationOutput]],
) -> None:
    settings = {**OPTIONS, "enable_lora": True, "max_loras": 3, "max_lora_rank": 64, **options}
    llm = LLM(model_dir, **settings)
    check_all_at_once(llm, adapters, merged)
    if "forecast_admission" in options:
        assert llm.stats().num_preemptions > 0


def test_an_adapter_is_replaced_under_its_name(
    model_dir: Path, adapters: list[LoRARequest], merged: dict[str, list[GenerationOutput]]
) -> None:
    llm = LLM(model_dir, enable_lora=True, max_lora_rank=64, **OPTIONS)
    for adapter in adapters:
        same_name = LoRARequest("mine", adapter.lora_path)
        results = llm.generate(PROMPTS, GREEDY, lora_request=same_name)
        for result, expected in zip(results, merged[adapter.lora_name], strict=True):
            assert_same(result, expected)
        other = LoRARequest("mine", "elsewhere")
        with pytest.raises(InvalidRequest, match="lora_name 'mine' is in use for"):
            llm.generate("a", GREEDY, lora_request=other)
        llm.unload_lora("mine")
    with pytest.raises(InvalidRequest, match="adapter 'mine' is not loaded"):
        llm.unload_lora("mine")


def test_names_of_one_content_run_in_one_slot(
    model_dir: Path, adapters: list[LoRARequest], merged: dict[str, list[GenerationOutput]]
) -> None:
    llm = LLM(model_dir, enable_lora=True, max_loras=1, max_lora_rank=64, **OPTIONS)
    names = [LoRARequest(f"tenant {i}", adapters[0].lora_path) for i in range(len(PROMPTS))]
    results = llm.generate(PROMPTS, GREEDY, lora_request=names)
    for result, expected in zip(results, merged["all"], strict=True):
        assert_same(result, expected)
    stats = llm.stats()
    assert (stats.num_loaded_adapters, stats.num_adapter_swaps) == (len(PROMPTS), 1)


def test_one_that_is_unloaded_serves_its_running_requests(
    model_dir: Path, adapters: list[LoRARequest], merged: dict[str, list[GenerationOutput]]
) -> None:
    llm = LLM(model_dir, enable_lora=True, max_loras=2, max_lora_rank=64, **OPTIONS)
    stream = llm.stream(PROMPTS[0], GREEDY, lora_request=adapters[0])
    next(stream)
    llm.unload_lora("all")
    with pytest.raises(AdapterLoadError, match="'all' was unloaded, and 1 requests still use it"):
        llm.load_lora(adapters[0])
    llm.load_lora(adapters[1])
    *_, last = stream
    assert_same(last, merged["all"][0])
    assert llm.stats().num_loaded_adapters == 1
    again = llm.generate(PROMPTS[1], GREEDY, lora_request=adapters[0])
    assert_same(again[0], merged["all"][1])


def test_those_put_away_are_read_again(
    model_dir: Path, adapters: list[LoRARequest], merged: dict[str, list[GenerationOutput]]
) -> None:
    options = {**OPTIONS, "enable_lora": True, "max_lora_rank": 64, "max_cpu_loras": 1}
    llm = LLM(model_dir, **options)
    for _ in range(2):
        check_all_at_once(llm, adapters, merged)
    stats = llm.stats()
    assert stats.num_loaded_adapters == 1
    assert stats.num_adapter_reads > 3
    assert stats.num_adapter_swaps > 3
    assert stats.num_waiting == 0


def test_files_that_changed_are_not_taken_for_what_was_loaded(
    model_dir: Path, tmp_path: Path
) -> None:
    llm = LLM(model_dir, enable_lora=True, max_cpu_loras=1, max_lora_rank=64, **OPTIONS)
    one, two = (LoRARequest(name, tmp_path / name) for name in ("one", "two"))
    write_adapter(tmp_path / "one", model_dir, seed=1)
    write_adapter(tmp_path / "two", model_dir, seed=2)
    for request in (one, two):
        llm.generate("a", GREEDY, lora_request=request)
    write_adapter(tmp_path / "one", model_dir, seed=3)
    with pytest.raises(EngineError, match="the adapter's files cannot be used at the moment"):
        llm.generate("a", GREEDY, lora_request=one)
    llm.unload_lora("one")
    assert llm.generate("a", GREEDY, lora_request=one)


def test_refusals(llm: LLM, model_dir: Path, adapters: list[LoRARequest]) -> None:
    with pytest.raises(InvalidRequest, match="1 lora_request for 2 prompts"):
        llm.generate(PROMPTS[:2], GREEDY, lora_request=adapters[:1])
    without = LLM(model_dir, **OPTIONS)
    with pytest.raises(AdapterLoadError, match="'all' cannot be loaded: enable_lora is not set"):
        without.generate("a", GREEDY, lora_request=adapters[0])
    with pytest.raises(ConfigError, match="max_loras must be at least 1, got 0"):
        LLM(model_dir, enable_lora=True, max_loras=0, **OPTIONS)
    with pytest.raises(ConfigError, match="max_cpu_loras must be at least max_loras, got 1"):
        LLM(model_dir, enable_lora=True, max_loras=2, max_cpu_loras=1, **OPTIONS)
    with pytest.raises(ConfigError, match="enable_lora needs a native model"):
        LLM(model_dir, enable_lora=True, model_impl="transformers", **OPTIONS)


def test_a_request_for_an_unknown_adapter_is_answered(llm: LLM) -> None:
    llm._core.add_request(
        GenerateRequest(
            request_id="r",
            prompt_token_ids=[5],
            params=GREEDY,
            adapter=AdapterRef(name="nobody's", path="/nowhere"),
        )
    )
    outputs: list[RequestOutput] = []
    while not outputs:
        outputs = llm._core.step()
    assert outputs[0].error == "the adapter's files cannot be used at the moment"
    assert outputs[0].error_code == "adapter_unavailable"


def test_beside_quantized_weights(model_dir: Path, tmp_path: Path) -> None:
    """An adapter that adds nothing changes nothing; one that does, does."""
    none = LoRARequest("none", write_adapter(tmp_path / "none", model_dir, strength=0.0))
    some = LoRARequest("some", write_adapter(tmp_path / "some", model_dir))
    llm = LLM(model_dir, enable_lora=True, max_loras=2, quantization="fp8", **OPTIONS)
    base, same, other = (
        [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY, lora_request=it)]
        for it in (None, none, some)
    )
    assert base == same
    assert base != other
