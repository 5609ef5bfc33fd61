"""Whole engines with one kernel behind each attention, against the layers', on a GPU."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.llm import LLM, GenerationOutput, TokensPrompt
from engine.runner.graphs import steps
from engine.runner.graphs.one_kernel import time_ratio
from engine.sampling_params import SamplingParams
from tests.engine.insides import runner_of

pytestmark = pytest.mark.gpu

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TOLERANCE = 0.03
"""Of logprobs in float16: rounding is all that parts the two ways."""
NUM_TOKENS = 24


@pytest.fixture(scope="module", autouse=True)
def capability() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not for this GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama_8b_of_two_layers")
    (made / "config.json").write_text(json.dumps(CONFIG))
    return made


def load(folder: Path, joined: bool | None = None, **options: Any) -> LLM:
    """joined: whether it is said to be faster; None: as measured."""
    common: dict[str, Any] = {
        "device": "cuda",
        "dtype": "float16",
        "load_format": "dummy",
        "max_num_seqs": 64,
        "max_model_len": 1024,
        "num_gpu_blocks_override": 2000,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
    }
    with pytest.MonkeyPatch.context() as patch:
        if joined is not None:
            patch.setattr(steps, "time_ratio", lambda *steps: 0.9 if joined else 1.1)
        llm = LLM(folder, **{**common, **options})
    decoding: Any = runner_of(llm)._graphs
    if joined is not None:
        assert decoding.joined_tokens == (set(range(17, 65)) if joined else set())
    return llm


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[LLM, LLM]:
    """One kernel behind each attention, and the layers' own."""
    return load(folder, joined=True), load(folder, joined=False)


def prompts(*lens: int, shared: int = 0) -> list[TokensPrompt]:
    """Random ones; the first ``shared`` tokens are those of all."""
    rng = random.Random(7)
    base = [rng.randrange(1000) for _ in range(shared)]
    return [
        {"prompt_token_ids": base + [rng.randrange(1000) for _ in range(length)]} for length in lens
    ]


def generate(llm: LLM, given: list[TokensPrompt], **sampling: Any) -> list[GenerationOutput]:
    params = SamplingParams(
        temperature=0.0, logprobs=5, max_tokens=NUM_TOKENS, ignore_eos=True, **sampling
    )
    return llm.generate(given, [params] * len(given))


def assert_near(ours: list[GenerationOutput], layers: list[GenerationOutput]) -> None:
    """The same logprobs but for rounding, up to where two tokens are as likely as each other."""
    num_same = 0
    for mine, other in zip(ours, layers, strict=True):
        (a,), (b,) = mine.outputs, other.outputs
        assert a.logprobs is not None
        assert b.logprobs is not None
        for token, chosen, found, expected in zip(
            a.token_ids, b.token_ids, a.logprobs, b.logprobs, strict=True
        ):
            assert abs(found[token].logprob - expected[token].logprob) < TOLERANCE
            if token != chosen:
                assert expected[chosen].logprob - expected[token].logprob < 2 * TOLERANCE
                break
            num_same += 1
    assert num_same > 0.5 * NUM_TOKENS * len(ours)


@pytest.mark.parametrize("num_sequences", [17, 40, 64])
def test_decoding_changes_but_for_rounding(both: tuple[LLM, LLM], num_sequences: int) -> None:
    given = prompts(*range(5, 5 + 7 * num_sequences, 7))
    ours, layers = (generate(llm, given) for llm in both)
    assert_near(ours, layers)
    again = generate(both[0], given)
    assert [one.outputs[0].token_ids for one in ours] == [one.outputs[0].token_ids for one in again]


def test_whatever_comes_behind_the_layers(both: tuple[LLM, LLM]) -> None:
    given = prompts(*range(5, 45))
    ours, layers = (generate(llm, given, frequency_penalty=0.5, min_tokens=4) for llm in both)
    assert_near(ours, layers)


def test_shared_prefixes_and_a_cache_in_fp8(folder: Path) -> None:
    """The first request runs alone, and the others find its blocks."""
    given = prompts(*[4 + i % 5 for i in range(40)], shared=320)
    found = []
    for joined in (True, False):
        llm = load(folder, joined, kv_cache_dtype="fp8", enable_prefix_caching=True)
        generate(llm, given[:1])
        found.append(generate(llm, given))
    assert_near(*found)


def test_drafts_are_checked_by_it(folder: Path) -> None:
    """Four tokens of each of ten sequences."""
    drafting = {
        "method": "ngram",
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
        "num_speculative_tokens": 3,
        "adaptive": False,
    }
    given = [
        TokensPrompt(prompt_token_ids=one["prompt_token_ids"] * 3) for one in prompts(*[20] * 10)
    ]
    engines = (load(folder, joined, speculative_config=drafting) for joined in (True, False))
    assert_near(*(generate(llm, given) for llm in engines))


def test_whether_it_is_faster_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []

    def spy(*steps: Any) -> float:
        found.append(time_ratio(*steps))
        return found[-1]

    monkeypatch.setattr(steps, "time_ratio", spy)
    decoding: Any = runner_of(load(folder))._graphs
    assert len(found) == 3
    assert all(0.5 < ratio < 1.5 for ratio in found)
    pieces = zip((17, 33, 49), (32, 48, 64), found, strict=True)
    faster = {n for first, last, r in pieces if r <= 0.98 for n in range(first, last + 1)}
    assert decoding.joined_tokens == faster
    assert not torch.any(decoding._table.block_table)
