from __future__ import annotations

import gc
from typing import ClassVar

import pytest
import torch

from engine.runner.graphs import sized
from engine.runner.graphs.sized import SizedGraphs, capture_all
from tests.engine.runner.emulated_graphs import record


def test_a_batch_runs_in_the_next_larger_size() -> None:
    graphs = SizedGraphs([1, 2, 8], lambda size: torch.zeros(size))
    assert [graphs.size_for(batch) for batch in (1, 2, 3, 8)] == [1, 2, 8, 8]
    assert graphs.max_batch == 8
    with pytest.raises(IndexError):
        graphs.size_for(9)


def test_the_largest_are_recorded_first_on_padding_and_replayed_on_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sized, "record", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    memory = torch.arange(8.0)
    seen: list[tuple[int, int]] = []
    done: list[float] = []

    def family(num_queries: int, sizes: list[int]) -> SizedGraphs:
        def compute(size: int) -> torch.Tensor:
            seen.append((num_queries, size))
            return memory[:size] * num_queries

        return SizedGraphs(sizes, compute, num_queries)

    def pad(size: int) -> None:
        memory[:size] = -1

    one, three = family(1, [1, 2, 8]), family(3, [2, 4])
    capture_all([one, three], pad, done.append)
    assert seen == [(3, 4), (1, 8), (3, 2), (1, 2), (1, 1)]
    assert done == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert memory[:8].tolist() == [-1.0] * 8
    memory[:] = torch.arange(8.0)
    assert three.replay(2).tolist() == [0, 3]
    assert one.replay(8).tolist() == list(range(8))


class Garbage:
    """What stands for an engine that is gone, graphs and all: two objects that hold each other."""

    freed: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.freed.append("freed")


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_graphs_are_recorded(
    collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sized, "record", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(Garbage, "freed", [])
    seen: list[tuple[list[str], bool]] = []

    def compute(size: int) -> torch.Tensor:
        seen.append((Garbage.freed[:], gc.isenabled()))
        return torch.zeros(size)

    was = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        Garbage()
        capture_all([SizedGraphs([1], compute)], lambda size: None)
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was else gc.disable)()
    assert set(map(str, seen)) == {str((["freed"], False))}
