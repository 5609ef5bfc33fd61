"""Stages of layers give what one rank gives, with several steps in flight."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.llm import LLM, LoRARequest, SamplingParams, StructuredOutputs
from engine.parallel.stage import Stage, rank_of, stage_of
from engine.scheduler.plan import StepPlan
from tests.engine.lora.making import write_adapter
from tests.engine.models.families import FALLBACK_CASES, write
from tests.engine.quant import checkpoints
from tests.engine.quant.test_families import MATRIX
from tests.engine.quant.test_layouts import LAYOUTS
from tests.engine.ranks.test_tensor_parallel import (
    CASE_OF,
    DEMO,
    LOGPROBS,
    assert_alike,
    drafting,
    numbers,
    outputs,
    tokens,
    with_medusa,
)
from tests.engine.ranks.threads import make
from tests.engine.runner.emulated_graphs import emulate

BY_DAY = ["llama3", "gemma2", "deepseek-v2"]
"""A plain one, windows and a tied embedding, latent attention with layers that differ."""
FAMILIES = [
    pytest.param(name, marks=[] if name in BY_DAY else pytest.mark.nightly) for name in CASE_OF
]
SHORT = {"num_gpu_blocks_override": 24, "forecast_admission": False}


def staged(folder: Path | str, count: int, size: int = 1, **options: Any) -> LLM:
    return make(folder, size, pipeline_parallel_size=count, **options)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, tmp_path: Path) -> None:
    case = CASE_OF[name]
    folder = write(case, tmp_path)
    if case.has_states:
        with pytest.raises(ConfigError, match="pipeline_parallel_size: the layers of"):
            staged(folder, 2)
        return
    ours = staged(folder, 2, async_scheduling=bool(len(name) % 2))
    assert_alike(ours, make(folder, 1), list(case.prompts))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["llama3", "qwen3-moe-mixed", "deepseek-v3", "gpt-oss"])
@pytest.mark.parametrize("whole_experts", [False, True])
def test_stages_that_are_divided(name: str, whole_experts: bool, tmp_path: Path) -> None:
    folder, case = write(CASE_OF[name], tmp_path), CASE_OF[name]
    if whole_experts and name == "llama3":
        return
    ours = staged(folder, 2, 2, enable_expert_parallel=whole_experts)
    assert_alike(ours, make(folder, 1), list(case.prompts))


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_adapters(size: int, tmp_path: Path) -> None:
    """Each stage keeps its layers' part."""
    case = CASE_OF["llama3"]
    folder = write(case, tmp_path / "base")
    requests = [
        LoRARequest(str(seed), write_adapter(tmp_path / str(seed), folder, seed=seed))
        for seed in range(3)
    ]
    found = []
    for llm in (
        staged(folder, 2, size, enable_lora=True, max_loras=2),
        make(folder, 1, enable_lora=True, max_loras=2),
    ):
        asked = [None, *requests]
        found.append(llm.generate([case.prompts[0]] * 4, LOGPROBS, lora_request=asked))
    assert tokens(found[0]) == tokens(found[1])
    assert abs(numbers(found[0]) - numbers(found[1])).max() < 1e-4
    assert len({tuple(one) for one in tokens(found[0])}) > 1


@pytest.mark.parametrize(
    "layout", ["awq", pytest.param("gptq desc_act", marks=pytest.mark.nightly)]
)
def test_quantized_weights(layout: str, tmp_path: Path) -> None:
    case = CASE_OF["llama3"]
    folder = write(case, tmp_path)
    checkpoints.quantize_in_place(folder, *LAYOUTS[layout], MATRIX)
    assert_alike(staged(folder, 2), make(folder, 1), list(case.prompts))


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"async_scheduling": True, **SHORT}, 2),
        ({"kv_cache_dtype": "fp8", "swap_space": 0.001, **SHORT}, 3),
        (drafting("eagle", async_scheduling=True), 2),
        pytest.param({}, 8, marks=pytest.mark.nightly),
        pytest.param(drafting("ngram"), 2, marks=pytest.mark.nightly),
        pytest.param(drafting("draft_model"), 2, marks=pytest.mark.nightly),
        pytest.param(drafting("medusa", async_scheduling=True), 3, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_what_else_an_engine_does(options: dict[str, Any], count: int, tmp_path: Path) -> None:
    """Prefixes are found again, requests preempted, masks applied."""
    options = with_medusa(options, tmp_path)
    ours, theirs = (
        make(DEMO, 1, pipeline_parallel_size=n, max_num_seqs=4, max_model_len=72, **options)
        for n in (count, 1)
    )
    story = "Tell me a story about a fox. " * 3
    prompts = [story + end for end in ("Begin.", "Begin.", "And then?", "Stop.", "A mask:")]
    params = [SamplingParams(temperature=0.7, seed=3, max_tokens=24, ignore_eos=True)] * 4
    choice = StructuredOutputs(choice=("a fox runs home", "the end of it"))
    params.append(SamplingParams(temperature=0.7, seed=3, structured_outputs=choice))
    for _ in range(2):
        assert tokens(ours.generate(prompts, params)) == tokens(theirs.generate(prompts, params))
    stats = ours.stats()
    assert stats.prefix_cache_hits > 0
    assert stats.num_preemptions > 0 or SHORT.keys().isdisjoint(options)


def test_stages_have_as_much_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that generate take turns: as many steps as stages are in flight, with other rows."""
    ours = staged(DEMO, 2, max_num_seqs=6, async_scheduling=True)
    core: Any = ours._core
    runner = core._runner
    plans: list[StepPlan] = []
    forward: Callable[[StepPlan], None] = runner.forward
    most = 0

    def noted(plan: StepPlan) -> None:
        nonlocal most
        plans.append(plan)
        most = max(most, len(core.scheduler.in_flight))
        forward(plan)

    monkeypatch.setattr(runner, "forward", noted, raising=False)
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    outputs(
        ours, [f"The {word} went" for word in ("fox", "cat", "dog", "owl", "hen", "cow")], params
    )
    assert most == 3
    rows = [{chunk.row for chunk in plan.chunks} for plan in plans[3:-3]]
    assert all(one.isdisjoint(other) for one, other in pairwise(rows))
    assert max(map(len, rows)) == 3


def test_recorded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages record the same graphs in the same order, and pass things on within them."""
    options = drafting("eagle", async_scheduling=True, max_num_seqs=4, max_model_len=72)
    ours, theirs = staged(DEMO, 2, **options), make(DEMO, 1, **options)
    core: Any = ours._core
    ranks = core._runner.ranks
    counts = core._runner._each(lambda rank: emulate(ranks[rank], monkeypatch, 3))
    prompts = [f"The {word} went" for word in ("fox", "cat", "dog")]
    assert_alike(ours, theirs, prompts)
    for decoding, checking, _ in counts:
        assert decoding.num_runs + checking.num_runs > 10


@pytest.mark.parametrize(("num_layers", "count"), [(5, 2), (7, 3), (8, 8), (80, 4)])
def test_layers_of_stages(num_layers: int, count: int) -> None:
    stages = [Stage(index, count).layers(num_layers) for index in range(count)]
    assert [layer for layers in stages for layer in layers] == list(range(num_layers))
    sizes = [len(layers) for layers in stages]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes), "the head is more work"


@pytest.mark.parametrize(("size", "count"), [(1, 2), (2, 2), (2, 3)])
def test_ranks_of_stages(size: int, count: int) -> None:
    assert stage_of(0, size, count) == count - 1, "the core is where tokens are sampled"
    for rank in range(size * count):
        assert rank_of(stage_of(rank, size, count), rank % size, size, count) == rank


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"pipeline_parallel_size": 9},
            "more than the 8 layers of LlamaForCausalLM",
        ),
        ({"pipeline_parallel_size": 2, **drafting("eagle3")}, "'eagle3' reads the hidden states"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size must be at least 1"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(DEMO, 1, **options)


def test_a_model_of_transformers(tmp_path: Path) -> None:
    folder = write(FALLBACK_CASES[0], tmp_path)
    with pytest.raises(ConfigError, match="pipeline_parallel_size 2 needs a native model"):
        staged(folder, 2)


def test_models_that_pool_run_on_one_device() -> None:
    with pytest.raises(ConfigError, match="pipeline_parallel_size"):
        staged(DEMO, 2, runner="pooling")
