"""Speculation by graphs, emulated on the CPU: the same outputs, and the same drafts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.demo import MODEL_DIR
from engine.demo.evaluate import HELD_OUT_SEED
from engine.demo.heads import HEADS_DIR
from engine.demo.heads.answers import draw_prompts
from engine.llm import LLM, SamplingParams, TokensPrompt
from engine.runner.graphs.sized import capture_lengths, capture_sizes, cut, max_checked_tokens
from engine.runner.inputs import ChunkFields
from tests.engine.insides import core_of, runner_of
from tests.engine.runner.conftest import BLOCK_SIZE
from tests.engine.runner.emulated_graphs import MAX_QUERIES, emulate, emulate_prompts
from tests.engine.spec.heads import Networks, random_heads
from tests.engine.spec.test_networks import engine, outputs
from tests.pairs import each_value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def heads(folder: Path) -> Networks:
    return random_heads(folder)


@pytest.fixture(scope="module")
def plain(folder: Path, heads: Networks) -> list[list[int]]:
    return outputs(engine(folder, "plain"))


def test_lengths_worth_a_graph() -> None:
    assert [capture_lengths(n) for n in (1, 2, 4, 5, 7, 9, 15)] == [
        [1],
        [1, 2],
        [1, 2, 3, 4],
        [1, 2, 3, 5],
        [1, 2, 3, 5, 7],
        [1, 2, 3, 5, 7, 9],
        [1, 2, 3, 5, 7, 11, 15],
    ]


def test_sequences_are_cut_into_equal_parts() -> None:
    assert [cut(n, 8) for n in (2, 8, 9, 12, 16, 17, 33)] == [
        (1, 2),
        (1, 8),
        (2, 5),
        (2, 6),
        (2, 8),
        (3, 6),
        (5, 7),
    ]
    assert cut(4, 1) == (4, 1)


@pytest.mark.parametrize("max_num_seqs", [1, 3, 40, 128, 400])
@pytest.mark.parametrize("num_drafts", [1, 7, 8, 15, 32])
def test_no_step_has_more_tokens_than_are_provided_for(max_num_seqs: int, num_drafts: int) -> None:
    most = max_checked_tokens(max_num_seqs, num_drafts)
    for length in capture_lengths(num_drafts):
        for max_queries in (1, 2, 4, 8):
            num_parts, part_length = cut(1 + length, max_queries)
            num_queries = num_parts * part_length
            assert num_queries > length
            assert capture_sizes(max_num_seqs, num_queries)[-1] * num_queries <= most


def test_plain_decoding_is_the_same(
    folder: Path, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(folder, "plain")
    decoding, checking, drafting = emulate(runner_of(llm), monkeypatch, 1)
    assert outputs(llm) == plain
    assert decoding.num_runs > 10
    assert checking.num_runs == 0
    assert drafting is None


@pytest.mark.parametrize("method", ["eagle3", "eagle", "draft_model", "medusa"])
def test_outputs_are_those_without_graphs(
    folder: Path,
    heads: Networks,
    plain: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    num_tokens = 3
    eager = engine(folder, method, num_tokens)
    assert outputs(eager) == plain
    llm = engine(folder, method, num_tokens)
    _, checking, drafting = emulate(runner_of(llm), monkeypatch, num_tokens)
    assert outputs(llm) == plain
    assert checking.num_runs > 5
    if drafting is not None:
        assert drafting.num_runs > 5
    assert accepted(llm) == pytest.approx(accepted(eager), abs=0.05)


def accepted(llm: LLM) -> float:
    stats = llm.stats()
    return stats.spec_decode_num_accepted_tokens / stats.spec_decode_num_draft_tokens


@pytest.mark.parametrize("length", [1, 4])
def test_any_number_of_drafts_up_to_the_most(
    folder: Path,
    heads: Networks,
    plain: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    length: int,
) -> None:
    """Where there is no graph for so many, the next longer one is filled up."""
    llm = engine(folder, "eagle3", 5)
    _, checking, drafting = emulate(runner_of(llm), monkeypatch, 5)
    monkeypatch.setattr(core_of(llm)._speculator, "_max_tokens", length)
    assert outputs(llm) == plain
    stats = llm.stats()
    assert stats.spec_decode_num_draft_tokens <= length * stats.spec_decode_num_drafts
    assert drafting is not None
    assert drafting.num_runs > 10
    assert checking.num_runs > 20


@pytest.mark.parametrize(
    ("options", "num_drafts"),
    each_value(
        [{"max_num_seqs": 3}, {"max_model_len": 64}, {"async_scheduling": True}], [4, 8, 15]
    ),
)
def test_requests_with_different_numbers_of_drafts_share_a_graph(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], num_drafts: int
) -> None:
    """Prompt lookup finds many tokens to follow for some, few or none for others. More than 7 and
    the token before them are two sequences for attention."""
    rng = random.Random(3)
    prompts, params = [], []
    for i in range(9):
        run = [rng.randrange(4096) for _ in range(4 + i)]
        prompts.append(TokensPrompt(prompt_token_ids=run * (1 + i % 3)))
        params.append(SamplingParams(temperature=0.0, max_tokens=4 + 5 * (i % 5), ignore_eos=True))

    def said(llm: LLM) -> list[list[int]]:
        return [result.outputs[0].token_ids for result in llm.generate(prompts, params)]

    options = {**options, "model": MODEL_DIR}  # which repeats itself
    expected = said(engine(folder, "plain", **options))
    config = {
        "method": "ngram",
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
        "num_speculative_tokens": num_drafts,
        "adaptive": False,
    }
    llm = engine(folder, "plain", speculative_config=config, **options)
    _, checking, _ = emulate(runner_of(llm), monkeypatch, num_drafts)
    lengths: set[frozenset[int]] = set()
    graphs: Any = runner_of(llm)._forward_pass.graphs
    fits = graphs.fits

    def spy(fields: ChunkFields, **options: bool) -> bool:
        found: bool = fits(fields, **options)
        if found:
            lengths.add(frozenset(fields.query_lens.tolist()))
        return found

    monkeypatch.setattr(graphs, "fits", spy, raising=False)
    replay = graphs.run

    def check(fields: ChunkFields, **options: bool) -> Any:
        sampled, logits = replay(fields, **options)
        assert len(logits) == len(sampled.rows) == fields.query_lens.sum()
        assert sampled.on_device.rows.tolist() == sampled.rows.tolist()
        assert sampled.on_device.positions.tolist() == sampled.positions.tolist()
        return sampled, logits

    monkeypatch.setattr(graphs, "run", check)
    assert said(llm) == expected
    core_of(llm).check_integrity()
    assert any(len(kinds) > 1 for kinds in lengths), "no step was uneven"
    assert checking.num_runs > 3
    assert max(map(max, lengths)) > min(num_drafts, MAX_QUERIES)
    assert llm.stats().spec_decode_num_accepted_tokens > 0


@pytest.mark.parametrize("method", ["eagle3", "eagle", "medusa"])
def test_at_rest_nothing_is_kept_for_drafts(
    folder: Path,
    heads: Networks,
    plain: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """Decode steps run the graphs of an engine without a head; drafts that are wanted later wait
    for one step that keeps what they are made of, and say the same."""
    llm = engine(folder, method, 3)
    decoding, checking, _ = emulate(runner_of(llm), monkeypatch, 3)
    speculator = core_of(llm)._speculator
    wanted = 0

    def length(batch: int) -> int:
        speculator.keeps_features = wanted > 0
        return wanted

    monkeypatch.setattr(speculator, "_length", length)
    kept: list[int] = []
    drafting = runner_of(llm)._drafting
    assert drafting is not None
    features = drafting._features
    assert features is not None
    keep = features.keep

    def spy(slots: torch.Tensor, source: torch.Tensor, *, is_padded: bool) -> None:
        kept.append(len(slots))
        keep(slots, source, is_padded=is_padded)

    monkeypatch.setattr(features, "keep", spy)
    assert outputs(llm) == plain
    num_plain, num_kept = decoding.num_runs, len(kept)
    assert num_plain > 20
    assert checking.num_runs == 0
    assert num_kept < 14, "prompts alone, in a few steps"
    wanted = 3
    assert outputs(llm) == plain
    assert checking.num_runs > 5
    assert len(kept) > num_kept + checking.num_runs


@pytest.mark.parametrize("method", each_value(["eagle3", "eagle"], most=1))
def test_prompts_run_as_graphs_beside_a_head(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """And leave what drafts are made of: as many of these are right."""
    drawn = draw_prompts(MODEL_DIR, "heldout", HELD_OUT_SEED, 6)
    prompts = [TokensPrompt(prompt_token_ids=prompt.token_ids) for prompt in drawn]
    params = SamplingParams(temperature=0.0, max_tokens=16)
    said, found = [], []
    for with_graphs in (False, True):
        llm = engine(HEADS_DIR, method, 3, model=MODEL_DIR, block_size=BLOCK_SIZE, max_num_seqs=1)
        if with_graphs:
            counted = emulate_prompts(runner_of(llm), monkeypatch, (64, 128, 192))
        said.append([result.outputs[0].token_ids for result in llm.generate(prompts, params)])
        found.append(accepted(llm))
    assert counted.num_runs > 3
    assert said[0] == said[1]
    assert found[0] > 0.15
    assert found[0] == pytest.approx(found[1], abs=0.05)
