"""Draft networks in the engine: they draft what they were trained to, and change no output."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.llm import LLM, SamplingParams, TokensPrompt
from engine.runner.drafts.drafting import ChainDrafting, Drafting, ParallelDrafting
from tests.engine.insides import core_of, runner_of
from tests.engine.spec.heads import VOCAB, Networks, chain, parallel, random_heads
from tests.pairs import each_value

METHODS = ("eagle3", "eagle", "medusa")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def heads(folder: Path) -> Networks:
    return random_heads(folder)


def engine(
    folder: Path,
    method: str,
    num_tokens: int = 3,
    *,
    adaptive: bool = False,
    **options: Any,
) -> LLM:
    """With drafts of a network in ``folder``, or plain: of its target, unless a model is given."""
    model = options.pop("model", folder / "target")
    if method != "plain":
        options["speculative_config"] = {
            "method": method,
            "model": str(model if method == "draft_model" else folder / method),
            "num_speculative_tokens": num_tokens,
            "adaptive": adaptive,
        }
    defaults = {"device": "cpu", "num_threads": 1, "max_num_seqs": 6, "block_size": 4}
    defaults["num_gpu_blocks_override"] = 400
    return LLM(model, skip_tokenizer_init=True, **{**defaults, **options})


def workload() -> tuple[list[TokensPrompt], list[SamplingParams]]:
    rng = random.Random(4)
    shared = [rng.randrange(VOCAB) for _ in range(13)]
    lengths = (3, 30, 12, 1, 8, 17, 40, 6)
    prompts = [
        shared[: 5 * (i % 3) + 2 * (i % 2)] + [rng.randrange(VOCAB) for _ in range(n)]
        for i, n in enumerate(lengths)
    ]
    params = [
        SamplingParams(
            max_tokens=6 + 4 * i, temperature=0.0 if i % 2 else 0.8, seed=i, ignore_eos=i % 3 > 0
        )
        for i in range(len(prompts))
    ]
    return [TokensPrompt(prompt_token_ids=p) for p in prompts + prompts[:2]], params + params[:2]


def outputs(llm: LLM) -> list[list[int]]:
    prompts, params = workload()
    found = [r.outputs[0].token_ids for r in llm.generate(prompts, params)]
    core_of(llm).check_integrity()
    return found


@pytest.fixture(scope="module")
def plain(folder: Path, heads: Networks) -> list[list[int]]:
    return outputs(engine(folder, "plain"))


OPTIONS: dict[str, dict[str, Any]] = {
    "alone": {},
    "chunked": {"max_num_batched_tokens": 16},
    "crowded": {"num_gpu_blocks_override": 40, "max_model_len": 110, "forecast_admission": False},
    "overlap": {"async_scheduling": True, "enable_prefix_caching": False},
    "swap": {
        "num_gpu_blocks_override": 40,
        "max_model_len": 110,
        "forecast_admission": False,
        "swap_space": 0.05,
    },
}


@pytest.mark.parametrize(
    ("method", "options"), each_value([*METHODS, "draft_model"], list(OPTIONS))
)
def test_outputs_are_those_without_drafts(
    folder: Path, heads: Networks, plain: list[list[int]], method: str, options: str
) -> None:
    llm = engine(folder, method, **OPTIONS[options])
    assert outputs(llm) == plain
    stats = llm._core.stats()
    assert stats.spec_decode_num_draft_tokens > 50
    assert outputs(llm) == plain, "now with prefixes of the first time"
    if method == "draft_model":
        # The target itself: it is nearly always right, also when it samples.
        stats = llm._core.stats()
        rate = stats.spec_decode_num_accepted_tokens / stats.spec_decode_num_draft_tokens
        assert rate > 0.9


@pytest.mark.parametrize(
    ("method", "overlap"), each_value([*METHODS, "draft_model"], [False, True])
)
def test_outputs_are_the_same_when_the_engine_decides_how_many(
    folder: Path,
    heads: Networks,
    plain: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    overlap: bool,
) -> None:
    rehearsed = set()

    def record(kind: type[Drafting]) -> None:
        rehearse = kind.rehearse

        def recorded(drafting: Drafting, batch: int, num_tokens: int) -> None:
            rehearsed.add(num_tokens)
            rehearse(drafting, batch, num_tokens)

        monkeypatch.setattr(kind, "rehearse", recorded)

    record(ParallelDrafting)
    record(ChainDrafting)
    llm = engine(folder, method, adaptive=True, async_scheduling=overlap)
    costs = runner_of(llm).step_costs
    assert costs is not None
    assert list(costs.lengths) == [0, 1, 3]
    assert rehearsed == {1, 3}, "drafting is a part of what is measured"
    assert outputs(llm) == plain


@pytest.mark.parametrize(("method", "budget"), each_value(list(METHODS), [9, 2048]))
def test_drafts_are_those_of_the_trained_network(
    folder: Path,
    heads: Networks,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    budget: int,
) -> None:
    llm = engine(folder, method, max_num_batched_tokens=budget)
    checked = 0
    runner, speculator = runner_of(llm), core_of(llm)._speculator
    draft = runner.draft
    monkeypatch.setattr(
        runner, "draft", lambda asked, num_tokens, wait: draft(asked, num_tokens, wait=True)
    )
    propose = speculator.propose

    def spy(running: Any) -> None:
        nonlocal checked
        propose(running)
        for request in running:
            drafts = request.draft_token_ids
            if not drafts:
                continue
            known = list(request.token_ids)
            expected = (
                parallel(heads, known)
                if method == "medusa"
                else chain(heads, method, known, len(drafts))
            )
            assert drafts == expected[: len(drafts)]
            checked += 1

    monkeypatch.setattr(speculator, "propose", spy)
    rng = random.Random(0)
    first = [rng.randrange(VOCAB) for _ in range(21)]
    prompts = [first, [rng.randrange(VOCAB) for _ in range(6)]]
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    llm.generate([TokensPrompt(prompt_token_ids=p) for p in prompts], params)
    # A second request goes on from the first one's blocks.
    llm.generate([TokensPrompt(prompt_token_ids=[*first[:18], 5, 6])], params)
    assert llm._core.stats().prefix_cache_hits > 10
    assert checked > 15


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_more_drafts_than_any_request_has_room_for(
    folder: Path, heads: Networks, method: str
) -> None:
    options = {"max_model_len": 9, "num_threads": 1}
    prompt = TokensPrompt(prompt_token_ids=[5, 6, 7])
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    said = []
    for num_tokens, adaptive in ((2, False), (20, False), (20, True)):
        llm = engine(folder, method, num_tokens, adaptive=adaptive, **options)
        (result,) = llm.generate([prompt], params)
        said.append(result.outputs[0].token_ids)
        core_of(llm).check_integrity()
    assert said[0] == said[1] == said[2]
    assert len(said[0]) == 6
