"""Several ranks give what one gives, whatever the model and the format of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError, ModelLoadError
from engine.llm import LLM, LoRARequest, SamplingParams, StructuredOutputs
from engine.outputs import GenerationOutput
from tests.engine.lora.making import read_weights, write_adapter
from tests.engine.lora.test_families import TARGETS
from tests.engine.models.families import CASES, FALLBACK_CASES, write
from tests.engine.quant import checkpoints
from tests.engine.quant.test_families import MATRIX
from tests.engine.quant.test_layouts import LAYOUTS
from tests.engine.ranks.threads import make
from tests.engine.spec.tiny_heads import draw_medusa, save_medusa
from tests.pairs import each_value

DEMO = Path("engine/demo/model")
LOGPROBS = SamplingParams(
    temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1
)
SAMPLED = SamplingParams(seed=5, max_tokens=12, ignore_eos=True, frequency_penalty=0.2)
CASE_OF = {case.name: case for case in CASES}
BY_DAY = ["llama3", "phi3", "gemma2", "qwen3-moe-mixed", "deepseek-v2", "gpt-oss"]
"""Of each kind of layer one."""
BY_NIGHT = [pytest.param(name, marks=pytest.mark.nightly) for name in CASE_OF if name not in BY_DAY]
DENSE = CASES[0]
CUT = ("gptq desc_act", "compressed-tensors int4 ordered", "fp8 in blocks that do not divide")
WHOLE = {"intermediate_size": 128, "head_dim": 32}


def drafting(method: str, **options: Any) -> dict[str, Any]:
    """Options of an engine, of the demo model's heads; ``with_medusa`` adds those that it lacks."""
    network = {} if method in ("ngram", "suffix") else {"model": f"engine/demo/heads/{method}"}
    if method == "draft_model":
        network = {"model": str(DEMO)}
    return {
        "speculative_config": {"method": method, "num_speculative_tokens": 3, **network},
        **options,
    }


def with_medusa(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """With random heads in ``folder``, if it is these that draft."""
    drafting = options.get("speculative_config")
    if drafting is None or drafting["method"] != "medusa":
        return options
    save_medusa(folder / "medusa", draw_medusa(256, 4096))
    return {**options, "speculative_config": {**drafting, "model": str(folder / "medusa")}}


def outputs(llm: LLM, prompts: list[str], params: SamplingParams) -> list[GenerationOutput]:
    return llm.generate(list(prompts), params)


def tokens(found: list[GenerationOutput]) -> list[list[int]]:
    return [one.outputs[0].token_ids for one in found]


def numbers(found: list[GenerationOutput]) -> np.ndarray:
    """The log-probabilities of all tokens, prompts included."""
    of_tokens = []
    for one in found:
        places = [*(one.prompt_logprobs or ())[1:], *(one.outputs[0].logprobs or ())]
        ids = [*one.prompt_token_ids[1:], *one.outputs[0].token_ids]
        of_tokens += [
            place[token].logprob for token, place in zip(ids, places, strict=True) if place
        ]
    return np.array(of_tokens)


def assert_alike(ours: LLM, theirs: LLM, prompts: list[str]) -> None:
    got, want = (outputs(llm, prompts, LOGPROBS) for llm in (ours, theirs))
    assert tokens(got) == tokens(want)
    assert abs(numbers(got) - numbers(want)).max() < 1e-4
    got, want = (outputs(llm, prompts, SAMPLED) for llm in (ours, theirs))
    assert tokens(got) == tokens(want)


@pytest.mark.parametrize("name", [*BY_DAY, *BY_NIGHT])
def test_every_family(name: str, tmp_path: Path) -> None:
    case = CASE_OF[name]
    # Of two KV heads, four ranks have each one twice.
    size = 2 + 2 * (CASES.index(case) % 2)
    folder = write(case, tmp_path)
    if case.has_states:
        with pytest.raises(ConfigError, match="does not divide the layers with a recurrent state"):
            make(folder, size)
        return
    assert_alike(make(folder, size), make(folder, 1), list(case.prompts))


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("llama2", 4, {}),
        ("phi3", 2, {}),
        ("qwen3-moe-mixed", 2, {}),
        ("deepseek-v3", 2, {"enable_expert_parallel": True}),
        pytest.param("deepseek-v3", 2, {}, marks=pytest.mark.nightly),
        pytest.param(
            *("qwen3-moe-mixed", 2, {"enable_expert_parallel": True}), marks=pytest.mark.nightly
        ),
        pytest.param("llama2", 2, drafting("ngram"), marks=pytest.mark.nightly),
    ],
)
def test_adapters(name: str, size: int, options: dict[str, Any], tmp_path: Path) -> None:
    """In one batch with none, and again after others took their slots."""
    case = CASE_OF[name]
    folder = write(case, tmp_path / "base")
    present = {key.split(".")[-2] for key in read_weights(folder) if ".experts." not in key}
    targets = tuple(target for target in TARGETS if target in present)
    requests = [
        LoRARequest(
            str(seed), write_adapter(tmp_path / str(seed), folder, seed=seed, targets=targets)
        )
        for seed in range(3)
    ]
    prompts = [case.prompts[0]] * 4
    found = []
    for ranks in (size, 1):
        own = options if ranks > 1 else {k: v for k, v in options.items() if "expert" not in k}
        llm = make(folder, ranks, enable_lora=True, max_loras=2, max_cpu_loras=2, **own)
        asked = [None, *requests]
        rounds = [llm.generate(prompts, LOGPROBS, lora_request=asked) for _ in range(2)]
        found.append([one for results in rounds for one in results])
    got, want = found
    assert tokens(got) == tokens(want)
    assert abs(numbers(got) - numbers(want)).max() < 1e-4
    assert len({tuple(one) for one in tokens(got)}) > 1


@pytest.mark.parametrize(
    ("name", "layout"), [("gpt-oss", None), ("deepseek-v3", None), ("qwen3-moe", "awq")]
)
def test_whole_experts(name: str, layout: str | None, tmp_path: Path) -> None:
    case = CASE_OF[name]
    folder = write(case, tmp_path)
    if layout is not None:
        checkpoints.quantize_in_place(folder, *LAYOUTS[layout], MATRIX)
    divided = make(folder, 2, enable_expert_parallel=True)
    assert_alike(divided, make(folder, 1), list(case.prompts))


def test_whole_experts_where_there_are_none(tmp_path: Path) -> None:
    folder = write(DENSE, tmp_path)
    with pytest.raises(ConfigError, match="has no mixture of experts"):
        make(folder, 2, enable_expert_parallel=True)
    with pytest.raises(ConfigError, match="needs tensor_parallel_size above 1"):
        make(folder, 1, enable_expert_parallel=True)


@pytest.mark.parametrize("layout", each_value([*sorted({*LAYOUTS} - {*CUT})], most=3))
def test_every_format_of_weights(layout: str, tmp_path: Path) -> None:
    quantize, document = LAYOUTS[layout]
    # Two shards of whole groups and blocks; one per channel needs as many inputs everywhere.
    square = {"hidden_size": 48, "intermediate_size": 48, "head_dim": 12}
    sizes = square if "channel" in layout else WHOLE
    folder = write(DENSE, tmp_path, **sizes)
    checkpoints.quantize_in_place(folder, quantize, document, MATRIX)
    assert_alike(make(folder, 2), make(folder, 1), list(DENSE.prompts))


@pytest.mark.parametrize("layout", CUT)
def test_a_format_that_ranks_would_cut(layout: str, tmp_path: Path) -> None:
    quantize, document = LAYOUTS[layout]
    folder = write(DENSE, tmp_path, **WHOLE)
    checkpoints.quantize_in_place(folder, quantize, document, MATRIX)
    with pytest.raises(ModelLoadError, match="tensor_parallel_size"):
        make(folder, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "fp8"},
        {"quantization": "fp8", "quantize_lm_head": True},
        {"num_gpu_blocks_override": 20, "swap_space": 0.001},
        drafting("ngram"),
        drafting("eagle3"),
        drafting("medusa", async_scheduling=True),
        pytest.param(drafting("suffix"), marks=pytest.mark.nightly),
        pytest.param(drafting("draft_model"), marks=pytest.mark.nightly),
        pytest.param(drafting("eagle", kv_cache_dtype="fp8"), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_what_else_an_engine_does(options: dict[str, Any], tmp_path: Path) -> None:
    """Prefixes are found again, requests preempted, and masks applied, as on one rank."""
    options = with_medusa(options, tmp_path)
    llms = [make(DEMO, size, max_num_seqs=3, max_model_len=72, **options) for size in (2, 1)]
    story = "Tell me a story about a fox. " * 3
    prompts = [story + end for end in ("Begin.", "Begin.", "And then?", "Stop.", "A mask:")]
    rounds: list[list[list[list[int]]]] = [[], []]
    params = [SamplingParams(temperature=0.7, seed=3, max_tokens=24, ignore_eos=True)] * 4
    choice = StructuredOutputs(choice=("a fox runs home", "the end of it"))
    params.append(SamplingParams(temperature=0.7, seed=3, structured_outputs=choice))
    for found, llm in zip(rounds, llms, strict=True):
        found += [tokens(llm.generate(prompts, params)) for _ in range(2)]
    stats = [llm.stats() for llm in llms]
    if "quantization" not in options:  # whose rounding depends on what a rank has of a row
        assert rounds[0] == rounds[1]
        assert stats[0].num_preemptions == stats[1].num_preemptions
    assert stats[0].prefix_cache_hits == stats[1].prefix_cache_hits > 0


@pytest.mark.parametrize(
    ("case", "size", "words"),
    [
        ("llama2", 3, "num_attention_heads 4 of LlamaForCausalLM: take one of 1, 2, 4"),
        ("qwen3-moe", 4, None),
        ("qwen3-moe", 8, "num_attention_heads 4"),
    ],
)
def test_sizes(case: str, size: int, words: str | None, tmp_path: Path) -> None:
    folder = write(CASE_OF[case], tmp_path)
    if words is None:
        make(folder, size)
        return
    with pytest.raises(ConfigError, match=words):
        make(folder, size)


def test_a_model_of_transformers(tmp_path: Path) -> None:
    folder = write(FALLBACK_CASES[0], tmp_path)
    with pytest.raises(ConfigError, match="tensor_parallel_size 2 needs a native model"):
        make(folder, 2)
