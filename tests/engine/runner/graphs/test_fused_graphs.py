"""Graphs of few sequences by the fused executor: on a CPU emulated, with the kernel's
reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.executors import persistent
from engine.layers import linear
from engine.runner import TorchRunner, load_runner
from engine.runner.graphs import fused
from engine.runner.graphs.sized import SizedGraphs
from engine.runner.graphs.steps import Kind, StepGraphs
from engine.runner.inputs import ChunkFields
from tests.engine.insides import runner_of
from tests.engine.runner.conftest import BLOCK_SIZE, MAX_ROWS
from tests.engine.runner.emulated_graphs import EmulatedAttention, emulate
from tests.engine.runner.harness import Harness
from tests.engine.runner.test_runner import Greedy, generations
from tests.engine.spec.heads import random_heads
from tests.engine.spec.test_networks import engine, outputs
from tests.kernels.decoder.reference_decoder import ReferenceDecoder

prepare = EmulatedAttention.prepare_decode


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Puts the kernel's reference in its place; the sequences' tokens in each of its calls."""
    seen: list[int] = []

    class Counted(ReferenceDecoder):
        def __call__(self, *arguments: Any) -> torch.Tensor:
            *_, seq_lens, _ = arguments
            seen.append(int(seq_lens.sum()))
            return super().__call__(*arguments)

    monkeypatch.setattr(linear, "_pack", lambda weight, bias: None)
    monkeypatch.setattr(persistent, "PersistentDecoder", Counted)
    monkeypatch.setattr(persistent, "refusal", lambda layers, **shape: None)
    return seen


Measure = Callable[[int], None]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Decides up to which length one kernel is faster."""

    def decide(max_len: int) -> None:
        monkeypatch.setattr(fused, "longest_faster", lambda *steps, **limits: max_len)

    return decide


def graphs_of(runner: TorchRunner) -> StepGraphs:
    counted: Any = runner._forward_pass.graphs
    assert isinstance(counted._graphs, StepGraphs)
    return counted._graphs


def run(runner: TorchRunner, *shapes: tuple[int, int]) -> list[list[int]]:
    done = generations(*shapes)
    Harness(runner, block_size=BLOCK_SIZE, max_rows=MAX_ROWS).run(done)
    return [generation.output for generation in done]


@pytest.mark.parametrize("max_len", [0, 1, 30, 48, 1000])
def test_serves_a_lone_sequence_up_to_the_measured_length(
    max_len: int,
    calls: list[int],
    measured: Measure,
    tiny_config: EngineConfig,
    greedy: Greedy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured(max_len)
    runner = load_runner(tiny_config)
    decoding, _, _ = emulate(runner, monkeypatch, 1)
    assert bool(graphs_of(runner)._fused) == (max_len > 0)
    calls.clear()
    (done,) = generations((28, 22))
    assert run(runner, (28, 22)) == [greedy(done.prompt, 22)]
    assert decoding.num_runs == 21
    assert calls == [length for length in range(29, 50) if length <= max_len]


@pytest.mark.parametrize(("max_len", "max_tokens"), [(25, 50), (1000, 1000)])
def test_serves_few_sequences_by_their_tokens_together(
    max_len: int,
    max_tokens: int,
    calls: list[int],
    measured: Measure,
    tiny_config: EngineConfig,
    greedy: Greedy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measured with sequences of one length, of which each may be longer."""
    measured(max_len)
    runner = load_runner(tiny_config)
    decoding, _, _ = emulate(runner, monkeypatch, 1)
    calls.clear()
    shapes = (9, 30), (5, 30)
    expected = [greedy(done.prompt, done.max_tokens) for done in generations(*shapes)]
    assert run(runner, *shapes) == expected
    assert decoding.num_runs == 29
    assert calls == [n for n in range(16, 74, 2) if n <= max_tokens]


def test_a_batch_for_which_it_is_not_faster_goes_layer_by_layer(
    calls: list[int], tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is for smaller ones."""
    limits = itertools.chain([1000], itertools.repeat(0))
    monkeypatch.setattr(fused, "longest_faster", lambda *steps, **limit: next(limits))
    runner = load_runner(tiny_config)
    emulate(runner, monkeypatch, 1)
    calls.clear()
    run(runner, (9, 12), (5, 30))
    assert calls == list(range(17, 35)), "the second, once the first is done"


def test_both_graphs_are_measured_on_the_same_step(
    calls: list[int], tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(tiny_config)
    tables = runner._table.block_table
    of_one = [(size, 1) for size in (1, 2, 4, 8, 16)]
    kinds = iter([*of_one, (1, 2), (2, 2), (4, 2), (1, 3), (2, 3)])

    def compare(
        fused: Callable[[], torch.Tensor],
        layers: Callable[[], torch.Tensor],
        prepare: Callable[[int], None],
        *,
        max_len: int,
        device: torch.device,
    ) -> int:
        size, queries = next(kinds)
        room = runner.num_blocks // size * BLOCK_SIZE
        assert (max_len, device) == (min(runner.max_model_len, room), runner.device)
        used = tables[:size, : -(-max_len // BLOCK_SIZE)]
        assert used.unique().numel() == used.numel(), "each key comes from memory"
        for seq_len in (queries, 33, max_len):
            prepare(seq_len)
            calls.clear()
            ours = fused().clone()
            assert calls == [size * seq_len]
            torch.testing.assert_close(ours, layers(), rtol=1e-3, atol=1e-3)
        return 0

    monkeypatch.setattr(fused, "longest_faster", compare)
    emulate(runner, monkeypatch, 2)
    assert next(kinds, None) is None
    assert not tables.any()


def test_layers_that_are_not_one_kernel_are_not_measured(
    tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent, "refusal", lambda layers, **shape: "none here")
    monkeypatch.delattr(fused, "longest_faster")
    runner = load_runner(tiny_config)
    emulate(runner, monkeypatch, 1)
    assert not graphs_of(runner)._fused


def test_attention_that_keeps_its_work_to_itself_is_not_replaced(
    tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        EmulatedAttention, "prepare_decode", lambda self, *step: partial(prepare(self, *step))
    )
    monkeypatch.delattr(fused, "longest_faster")
    runner = load_runner(tiny_config)
    assert runner._forward_pass.executors.fused is not None
    emulate(runner, monkeypatch, 1)
    assert not graphs_of(runner)._fused


@pytest.mark.parametrize(("method", "has_aux"), [("eagle3", True), ("eagle", False)])
def test_features_are_kept_from_it_unless_they_are_taken_within(
    method: str,
    has_aux: bool,
    calls: list[int],
    measured: Measure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured(1000)
    random_heads(tmp_path)
    expected = outputs(engine(tmp_path, "plain"))
    llm = engine(tmp_path, method, 3)
    runner = runner_of(llm)
    emulate(runner, monkeypatch, 3)
    decoding = graphs_of(runner)
    assert (Kind() in decoding._fused) == (not has_aux)
    for kind in [kind for kind in decoding._fused if kind.num_queries > 1]:
        del decoding._fused[kind]
    calls.clear()
    assert outputs(llm) == expected
    assert bool(calls) == (not has_aux)
    # Steps that keep no features have it in any case.
    one = np.ones(1, np.int64)
    fields = ChunkFields(0 * one, 4 * one, one, one)
    calls.clear()
    ours = decoding.run(fields, keeps_features=False)[1].clone()
    assert calls == [5]
    decoding._fused.clear()
    torch.testing.assert_close(
        ours, decoding.run(fields, keeps_features=False)[1], rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(("method", "num_drafts"), [("eagle3", 3), ("medusa", 1), ("eagle", 2)])
def test_drafts_are_checked_by_it(
    method: str,
    num_drafts: int,
    calls: list[int],
    measured: Measure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Features that are taken within the layers, too, and sequences that are filled up."""
    random_heads(tmp_path)
    expected = outputs(engine(tmp_path, "plain"))
    llm = engine(tmp_path, method, num_drafts)
    runner = runner_of(llm)
    measured(1000)
    _, checking, _ = emulate(runner, monkeypatch, num_drafts)
    served: list[bool] = []
    choose = StepGraphs._choose

    def spy(self: StepGraphs, fields: ChunkFields, kind: Kind) -> SizedGraphs:
        graphs = choose(self, fields, kind)
        if kind.num_queries > 1:
            served.append(graphs in self._fused.values())
        return graphs

    monkeypatch.setattr(StepGraphs, "_choose", spy)
    calls.clear()
    assert outputs(llm) == expected
    assert len(served) == checking.num_runs
    assert {True, False} == set(served), "larger batches go layer by layer"
    assert len(calls) >= sum(served)


@pytest.mark.parametrize(("max_tokens", "is_one"), [(0, False), (39, False), (40, True)])
def test_drafts_of_long_sequences_go_layer_by_layer(
    max_tokens: int, is_one: bool, tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(tiny_config)
    monkeypatch.setattr(fused, "longest_faster", lambda *steps, **limits: 1)
    emulate(runner, monkeypatch, 3)
    graphs = graphs_of(runner)
    graphs._max_tokens[3, 2] = max_tokens
    lens = np.array([3, 2])
    fields = ChunkFields(np.arange(2), np.array([25, 10]), lens, lens)
    layers, as_one = graphs._families[Kind(3)], graphs._fused[Kind(3)]
    assert graphs._choose(fields, Kind(3)) is (as_one if is_one else layers)
