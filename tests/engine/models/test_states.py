"""Layers that keep a state against transformers, while states that nobody may read are NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cache.groups import kinds_of, peak_blocks
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.layers.recurrent import Run
from engine.llm import LLM
from engine.models.base import RecurrentLayers
from engine.runner import load_runner
from engine.runner.inputs import ChunkFields
from engine.runner.states import StateCache
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Chunk
from tests.engine.models.families import CASES, PROMPT_LEN, Case, write
from tests.engine.models.test_families import TOLERANCE
from tests.engine.models.test_hybrid import BLOCK_SIZE, DRAFTS, Poisoned, Subject
from tests.pairs import each_value

KINDS: dict[str, Case] = {case.family: case for case in reversed(CASES) if case.has_states}
"""One case of each family whose layers keep a state."""


@pytest.fixture(scope="module", params=KINDS.values(), ids=lambda case: case.name)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, tmp_path_factory.mktemp(request.param.name))


def each_subject(names: str, options: list[Any]) -> pytest.MarkDecorator:
    """By day each subject with one of the options, in turn."""
    rows = each_value(list(KINDS.values()), options)
    return pytest.mark.parametrize(
        ("subject", names),
        rows,
        indirect=["subject"],
        ids=lambda value: getattr(value, "name", None),
    )


def assert_likeliest(subject: Subject, prompt: list[int], tokens: list[int]) -> None:
    expected = subject.logits(prompt + tokens)[len(prompt) - 1 : -1]
    chosen = expected.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    assert (expected.max(1).values - chosen).max() < TOLERANCE, "another token is likelier"


def test_a_conversation_goes_on_from_where_its_prompt_ended(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Poisoned(subject, monkeypatch)
    engine.add("first", subject.prompt)
    engine.run()
    engine.seen.clear()
    prompt = [*subject.prompt, *engine.tokens["first"], 5, 6, 7]
    engine.add("second", prompt)
    engine.run()
    kept = (PROMPT_LEN - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert engine.core.stats().prefix_cache_hits == kept
    ours, theirs = torch.cat(engine.seen), subject.logits(prompt + engine.tokens["second"][:-1])
    assert (ours - theirs[len(prompt) - 1 :]).abs().max() < TOLERANCE


def test_what_begins_many_prompts_is_computed_twice(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, shared = Poisoned(subject, monkeypatch), subject.prompt[:24]
    hits = []
    for name in ("3", "4", "5"):
        before = engine.core.stats().prefix_cache_hits
        prompt = [*shared, *[int(name)] * 9]
        engine.add(name, prompt)
        engine.run()
        hits.append(engine.core.stats().prefix_cache_hits - before)
        assert_likeliest(subject, prompt, engine.tokens[name])
    assert hits == [0, 0, 24]


@each_subject(
    "options",
    [
        {},
        {"enable_prefix_caching": False, "watermark": 0.0},
        {"async_scheduling": True, "num_state_snapshots": 1},
        {"watermark": 0.0, "max_num_batched_tokens": 7},
    ],
)
def test_batches_generate_what_transformers_does(
    subject: Subject, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scarce = "watermark" in options
    if scarce:
        need = peak_blocks(kinds_of([None]), 73, BLOCK_SIZE, 32)
        options = {**options, "num_gpu_blocks_override": need + 6}
    engine = Poisoned(subject, monkeypatch, **{"max_num_batched_tokens": 16, **options})
    prompts = {str(i): subject.prompt[: 40 - i] + [3 + i] * i for i in range(4)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, max_tokens=30)
    engine.run()
    for name, prompt in prompts.items():
        assert len(engine.tokens[name]) == 30
        assert_likeliest(subject, prompt, engine.tokens[name])
    assert (engine.core.stats().num_preemptions > 0) == scarce


@each_subject("caching", [True, False])
def test_choices_of_a_prompt_share_its_state(subject: Subject, caching: bool) -> None:
    llm = LLM(
        subject.folder,
        device="cpu",
        num_gpu_blocks_override=100,
        num_threads=1,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=caching,
    )
    params = SamplingParams(n=3, temperature=0.0, max_tokens=8, ignore_eos=True)
    (result,) = llm.generate([{"prompt_token_ids": subject.prompt}], params)
    for choice in result.outputs:
        assert_likeliest(subject, subject.prompt, list(choice.token_ids))
    # Two choices compute one prompt token: the others are those of the first.
    computed = llm.stats().scheduled_tokens
    assert computed == PROMPT_LEN + 2 * ((PROMPT_LEN - 1) % BLOCK_SIZE + 1) + 3 * 7


def test_graphs_find_the_states_of_their_rows(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Poisoned(subject, monkeypatch, attention_backend="torch", num_graphed=1)
    prompts = {str(i): subject.prompt[i : 40 + i] for i in range(3)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, max_tokens=12)
    engine.run()
    assert engine.graphs[0].num_runs > 0
    for name, prompt in prompts.items():
        assert_likeliest(subject, prompt, engine.tokens[name])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"speculative_config": DRAFTS}, "speculative_config: a rejected draft .* recurrent"),
        ({"swap_space": 1.0}, "swap_space: the recurrent states"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: .* recurrent state"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size 2 .* recurrent state"),
    ],
)
def test_what_states_cannot_do_is_refused_by_name(
    subject: Subject, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        load_runner(EngineConfig(model=str(subject.folder), device="cpu", **options))


def test_snapshots_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_state_snapshots must be at least 1, got 0"):
        EngineConfig(model="m", num_state_snapshots=0)
    config = EngineConfig(model=str(write(CASES[0], tmp_path)), num_state_snapshots=2)
    with pytest.raises(ConfigError, match="num_state_snapshots: no layer of Llama"):
        load_runner(config)


class OneState:
    """The config of layers with a state of one number."""

    state = ()


def test_a_chunk_is_cut_where_its_state_is_kept() -> None:
    cache = StateCache(
        RecurrentLayers((0,), OneState()), 4, 3, dtype=torch.float32, device=torch.device("cpu")
    )
    chunks = [Chunk(2, "a", 0, 10, True), Chunk(0, "b", 7, 1, True), Chunk(1, "c", 4, 8, True)]
    step = cache.step(ChunkFields.read(chunks), [(2, 4, 1), (2, 8, 0), (1, 12, 2), (0, 8, 2)])
    assert step.single is not None
    assert (step.single.tolist(), step.slots.tolist(), step.begins.tolist()) == ([10], [0], [False])
    assert step.runs == [
        Run(0, 4, None, 6),
        Run(4, 8, 6, 5),
        Run(8, 10, 5, 2),
        Run(11, 19, 1, 1),
    ]
