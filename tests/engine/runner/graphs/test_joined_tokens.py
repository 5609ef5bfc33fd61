"""Which steps have one kernel behind each attention: what is measured, and the graphs that follow
from it, on a CPU emulated, with the kernel's reference."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.layers import joined_products, linear
from engine.layers.joined_products import JoinedProducts
from engine.runner import load_runner
from engine.runner.graphs import steps
from engine.runner.graphs.joined_tokens import faster_tokens, measured_sizes
from kernels.reference_products import ReferenceProducts
from tests.engine.insides import runner_of
from tests.engine.runner.conftest import BLOCK_SIZE
from tests.engine.runner.emulated_graphs import emulate
from tests.engine.runner.graphs.test_one_kernel_graphs import graphs_of, run
from tests.engine.runner.test_runner import Greedy, generations
from tests.engine.spec.heads import random_heads
from tests.engine.spec.test_networks import engine, outputs

JOINABLE = range(17, 65)
Measure = Callable[[float], None]


@pytest.mark.parametrize(
    ("joinable", "most", "sizes"),
    [
        (JOINABLE, 512, [32, 48, 64]),
        (JOINABLE, 64, [32, 48, 64]),
        (JOINABLE, 50, [32, 48, 50]),
        (JOINABLE, 17, [17]),
        (JOINABLE, 16, []),
        (range(0), 512, []),
    ],
)
def test_what_is_measured_stands_for_the_steps_before(
    joinable: range, most: int, sizes: list[int]
) -> None:
    assert measured_sizes(joinable, most) == sizes


@pytest.mark.parametrize(
    ("faster", "tokens", "said"),
    [
        (
            {32, 48, 64},
            {*range(17, 65)},
            "one kernel behind each attention in steps of 17 to 32, 33 to 48, 49 to 64 tokens",
        ),
        ({48}, {*range(33, 49)}, "one kernel behind each attention in steps of 33 to 48 tokens"),
        (set(), set(), "layer by layer, steps of 17 to 64 tokens are as fast"),
    ],
)
def test_what_is_faster_is_told(
    faster: set[int], tokens: set[int], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert faster_tokens(JOINABLE, 512, faster.__contains__) == tokens
    assert caplog.messages == [said]


def test_nothing_is_measured_for_a_model_without_such_kernels() -> None:
    assert faster_tokens(range(0), 512, lambda size: pytest.fail("measured")) == frozenset()


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Puts the kernel's reference in its place, for 2 to 16 tokens; the tokens of each of its
    steps, where it ends the last layer."""
    seen: list[int] = []

    class Counted(ReferenceProducts):
        def __call__(
            self, layer: int, attended: torch.Tensor, residual: torch.Tensor
        ) -> torch.Tensor | None:
            qkv = super().__call__(layer, attended, residual)
            if qkv is None:
                seen.append(len(attended))
            return qkv

    monkeypatch.setattr(linear, "_pack", lambda weight, bias: None)
    monkeypatch.setattr(joined_products, "LayerProducts", Counted)
    monkeypatch.setattr(joined_products, "refusal", lambda layers: None)
    monkeypatch.setattr(JoinedProducts, "num_tokens", range(2, 17))
    return seen


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Decides what a joined step takes, in times of the layers'."""

    def decide(ratio: float) -> None:
        monkeypatch.setattr(steps, "time_ratio", lambda *steps: ratio)

    return decide


@pytest.mark.parametrize(("ratio", "is_faster"), [(0.97, True), (0.99, False)])
def test_sequences_decode_the_faster_way(
    ratio: float,
    is_faster: bool,
    joined: list[int],
    measured: Measure,
    tiny_config: EngineConfig,
    greedy: Greedy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured(ratio)
    runner = load_runner(tiny_config)
    decoding, _, _ = emulate(runner, monkeypatch, 1)
    assert graphs_of(runner).joined_tokens == (set(range(2, 17)) if is_faster else set())
    joined.clear()
    shapes = [(length, 20) for length in (3, 5, 9, 4, 7)]
    expected = [greedy(done.prompt, done.max_tokens) for done in generations(*shapes)]
    assert run(runner, *shapes) == expected
    assert decoding.num_runs == 19
    assert joined == ([8] * 19 if is_faster else []), "five run in the graph of eight"


def test_both_ways_are_measured_on_the_same_step(
    joined: list[int], tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(tiny_config)
    tables = runner._table.block_table
    seen: list[int] = []

    def compare(
        ours: Callable[[], torch.Tensor], theirs: Callable[[], torch.Tensor], device: torch.device
    ) -> float:
        size = len(ours())
        seen.append(size)
        seq_len = min(512, runner.max_model_len, runner.num_blocks // size * BLOCK_SIZE)
        used = tables[:size, : seq_len // BLOCK_SIZE]
        assert used.unique().numel() == used.numel(), "each key comes from memory"
        joined.clear()
        one = ours().clone()
        assert joined == [size]
        torch.testing.assert_close(one, theirs(), rtol=1e-3, atol=1e-3)
        assert joined == [size], "the other is layer by layer"
        assert device == runner.device
        return 1.0

    monkeypatch.setattr(steps, "time_ratio", compare)
    emulate(runner, monkeypatch, 1)
    assert seen == [16]
    assert not tables.any()


@pytest.mark.parametrize(("method", "num_drafts"), [("eagle3", 3), ("medusa", 1), ("eagle", 2)])
def test_drafts_are_checked_and_features_kept_by_it(
    method: str,
    num_drafts: int,
    joined: list[int],
    measured: Measure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random_heads(tmp_path)
    expected = outputs(engine(tmp_path, "plain"))
    llm = engine(tmp_path, method, num_drafts)
    measured(0.9)
    _, checking, _ = emulate(runner_of(llm), monkeypatch, num_drafts)
    joined.clear()
    assert outputs(llm) == expected
    assert checking.num_runs
    assert any(tokens % (1 + num_drafts) == 0 for tokens in joined)
