from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.cache.groups import LayerGroups
from engine.runner.graphs.static_inputs import SentRows, SequenceBuffers
from engine.runner.rows import RowTable
from kernels import cuda
from tests.engine.runner.emulated_graphs import step_inputs

CPU = torch.device("cpu")


def test_what_is_sent_is_read_by_graphs_of_that_size() -> None:
    sent = SentRows(8, CPU)
    for size, rows in ((4, [5, 0, 3]), (2, [1, 2]), (4, [7])):
        values = np.array(rows)
        sent.send(values, 10 * values, size=size)
        num_others = size - len(rows)
        found = [part.tolist() for part in sent.of(size)]
        assert found[0] == rows + [-1] * num_others
        assert found[1] == [10 * row for row in rows] + [0] * num_others


def test_parts_are_the_same_memory_whenever_they_are_asked_for() -> None:
    sent = SentRows(8, CPU)
    graph_reads = sent.of(4)
    sent.send(np.array([3, 1]), np.array([30, 10]), size=4)
    assert [part.tolist() for part in graph_reads] == [[3, 1, -1, -1], [30, 10, 0, 0]]
    sent.pad(2)
    assert sent.of(2)[0].tolist() == [-1, -1]

    table = RowTable(6, 20, 4, CPU)
    buffers = SequenceBuffers(table, 4, 6, 3)
    for size in (2, 5, 2):
        token_ids, positions = buffers.tokens(size)
        slots = buffers.slots(size)
        assert len(token_ids) == len(positions) == len(slots) == 3 * size
        batch = buffers.batch(size)
        assert batch.cu_queries.tolist() == [3 * i for i in range(size + 1)]
        assert len(batch.seq_lens) == len(batch.block_table) == size


def test_tokens_that_fill_a_sequence_up_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.native, "step_inputs", step_inputs, raising=False)
    table = RowTable(6, 20, 4, CPU)
    buffers = SequenceBuffers(table, 4, 6, 4, num_parts=2)
    for rows, num_filled, written in (
        ([5, 2], [1, 0], [0, 1, 1, 1, 1, 1, 1, 1]),
        ([3], [2], [0, 0, 1, 1, 0, 0, 0, 0]),
        ([3, 4], [0, 0], [1] * 8),
    ):
        buffers.send(np.array(rows), np.full(len(rows), 6), size=2)
        buffers.send_filled(np.array(num_filled))
        buffers.note_sampled(2)
        assert (buffers.slots(2) >= 0).int().tolist() == written
        of_rows, positions = buffers.sampled(len(rows)).tolist()
        assert of_rows == [row for row in rows for _ in range(4)]
        assert positions == [7, 8, 9, 10] * len(rows)


def test_what_the_host_knows_is_looked_up_and_the_rest_is_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda.native, "step_inputs", step_inputs, raising=False)
    groups = LayerGroups(windows=(None, 8), places=((0, 0), (1, 0)))
    table = RowTable(6, 20, 4, CPU, groups)
    table.tokens.copy_(torch.arange(120).view(6, 20))
    table.block_tables.copy_(torch.arange(60).view(2, 6, 5))
    buffers = SequenceBuffers(table, 4, 6, 1)
    buffers.send(np.array([5, 0]), np.array([6, 19]), size=4)
    assert buffers.rows(4).tolist() == [5, 0, -1, -1]
    token_ids, positions = buffers.tokens(4)
    assert token_ids.tolist() == [106, 19, 0, 0]
    assert positions.tolist() == [6, 19, 0, 0]
    assert buffers.slots(4).tolist() == [26 * 4 + 2, 4 * 4 + 3, -1, -1]
    for group, first in ((0, 0), (1, 30)):
        batch = buffers.batch(4, group)
        assert batch.seq_lens.tolist() == [7, 20, 0, 0]
        assert batch.block_table[1].tolist() == [first + i for i in range(5)]


def test_parts_of_a_sequence_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.native, "step_inputs", step_inputs, raising=False)
    table = RowTable(6, 20, 4, CPU)
    table.tokens.copy_(torch.arange(120).view(6, 20))
    table.block_table.copy_(torch.arange(30).view(6, 5))
    whole, cut = SequenceBuffers(table, 4, 3, 6), SequenceBuffers(table, 4, 3, 6, num_parts=2)
    for buffers in (whole, cut):
        buffers.send(np.array([5, 0]), np.array([6, 14]), size=3)
    for ours, expected in zip(cut.tokens(3), whole.tokens(3), strict=True):
        assert ours.tolist() == expected.tolist()
    assert cut.slots(3).tolist() == whole.slots(3).tolist()
    batch = cut.batch(3)
    assert batch.in_parts
    assert not whole.batch(3).in_parts
    assert cut.part_length == 3
    assert batch.cu_queries.tolist() == [0, 3, 6, 9, 12, 15, 18]
    assert batch.seq_lens.tolist() == [9, 12, 17, 20, 0, 0]
    assert batch.block_table[1].tolist()[:3] == [25, 26, 27]
    assert batch.block_table[2].tolist() == [0, 1, 2, 3, 4]
