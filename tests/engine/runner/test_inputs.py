from __future__ import annotations

import torch

from engine.messages import SamplingParams
from engine.runner.inputs import ChunkFields, build_inputs
from engine.runner.rows import RowTable
from engine.scheduler.plan import Admission, Chunk

BLOCK_SIZE = 4


def table() -> RowTable:
    rows = RowTable(6, 20, BLOCK_SIZE, torch.device("cpu"))
    for row, length, blocks in ((1, 9, [7, 3, 5]), (4, 3, [2]), (2, 6, [9, 8])):
        rows.admit(
            Admission(
                row=row,
                request_id=str(row),
                token_ids=[100 * row + i for i in range(length)],
                num_prompt_tokens=length,
                block_ids=blocks,
                params=SamplingParams(),
            )
        )
    return rows


def chunk(row: int, computed: int, n: int, samples: bool) -> Chunk:
    return Chunk(
        row=row,
        request_id=str(row),
        num_computed_tokens=computed,
        num_scheduled_tokens=n,
        samples=samples,
    )


def test_mixed_chunks_become_flat_tensors() -> None:
    chunks = [chunk(4, 2, 1, True), chunk(1, 3, 4, False), chunk(2, 0, 6, True)]
    inputs = build_inputs(ChunkFields.read(chunks), table(), BLOCK_SIZE)
    assert inputs.token_ids.tolist() == [402, 103, 104, 105, 106, *range(200, 206)]
    assert inputs.positions.tolist() == [2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5]
    assert inputs.slots.tolist() == [
        *(10, 31, 12, 13, 14, 36, 37, 38, 39, 32, 33),
    ]
    assert inputs.attention.query_lens.tolist() == [1, 4, 6]
    assert inputs.attention.seq_lens.tolist() == [3, 7, 6]
    assert inputs.attention.rows.tolist() == [4, 1, 2]
    assert inputs.attention.block_table[1, :3].tolist() == [7, 3, 5]
    assert inputs.sampled_chunks.tolist() == [0, 2]
    assert inputs.sampled_rows.tolist() == [4, 2]
    assert inputs.sampled_positions.tolist() == [3, 6]
    assert inputs.logits_index is not None
    assert inputs.logits_index.tolist() == [0, 10]


def test_a_decode_batch_needs_the_logits_of_every_token() -> None:
    inputs = build_inputs(
        ChunkFields.read([chunk(2, 5, 1, True), chunk(1, 8, 1, True)]), table(), BLOCK_SIZE
    )
    assert inputs.token_ids.tolist() == [205, 108]
    assert inputs.slots.tolist() == [33, 20]
    assert inputs.logits_index is None
    assert inputs.sampled_positions.tolist() == [6, 9]


def test_blocks_are_appended_behind_those_a_row_has() -> None:
    rows = table()
    rows.append_blocks([(4, [11, 12]), (2, [13])])
    assert rows.block_table[4, :3].tolist() == [2, 11, 12]
    assert rows.block_table[2, :3].tolist() == [9, 8, 13]
    inputs = build_inputs(ChunkFields.read([chunk(4, 8, 1, False)]), rows, BLOCK_SIZE)
    assert inputs.slots.tolist() == [48]


def test_an_admission_starts_the_row_afresh() -> None:
    rows = table()
    rows.admit(
        Admission(
            row=1,
            request_id="new",
            token_ids=[1, 2],
            num_prompt_tokens=2,
            block_ids=[6],
            params=SamplingParams(),
        )
    )
    rows.append_blocks([(1, [4])])
    assert rows.block_table[1, :2].tolist() == [6, 4]
    assert rows.tokens[1, :2].tolist() == [1, 2]
