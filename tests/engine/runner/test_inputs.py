from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.groups import LayerGroups, single_group
from engine.cache.table import NO_BLOCK
from engine.runner.inputs import ChunkFields, SampledTokens, build_inputs
from engine.runner.rows import RowTable
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk

BLOCK_SIZE = 4
GROUPS = LayerGroups((None, 5, 3), ((1, 0), (0, 0), (2, 0), (0, 1)))


def table() -> RowTable:
    rows = RowTable(6, 20, BLOCK_SIZE, torch.device("cpu"))
    for row, length, blocks in ((1, 9, [7, 3, 5]), (4, 3, [2]), (2, 6, [9, 8])):
        rows.admit(
            Admission(
                row=row,
                request_id=str(row),
                token_ids=[100 * row + i for i in range(length)],
                num_prompt_tokens=length,
                block_ids=[blocks],
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
    fields = ChunkFields.read(chunks)
    inputs = build_inputs(fields, table(), BLOCK_SIZE)
    assert inputs.token_ids.tolist() == [402, 103, 104, 105, 106, *range(200, 206)]
    assert inputs.positions.tolist() == [2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5]
    assert inputs.groups[0].slots.tolist() == [
        *(10, 31, 12, 13, 14, 36, 37, 38, 39, 32, 33),
    ]
    assert inputs.groups[0].batch.query_lens.tolist() == [1, 4, 6]
    assert inputs.groups[0].batch.seq_lens.tolist() == [3, 7, 6]
    assert inputs.groups[0].batch.rows.tolist() == [4, 1, 2]
    assert inputs.groups[0].batch.block_table[1, :3].tolist() == [7, 3, 5]
    assert inputs.sampled.chunks.tolist() == [0, 2]
    assert inputs.sampled.rows.tolist() == [4, 2]
    assert inputs.sampled.positions.tolist() == [3, 6]
    index = inputs.sampled.index_in(fields)
    assert index is not None
    assert index.tolist() == [0, 10]
    assert not inputs.sampled.once_each


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), min_size=1))
def test_what_is_sampled_is_the_same_whether_or_not_each_chunk_samples_once(
    made: list[tuple[int, int, bool]],
) -> None:
    """Found one by one, for chunks with drafts and without."""
    chunks = [
        Chunk(row % 5, str(row), computed, n, samples, draft_token_ids=(1,) * (samples * (n // 3)))
        for row, (computed, n, samples) in enumerate(made)
    ]
    fields = ChunkFields.read(chunks)
    num_tokens = int(fields.query_lens.sum())
    sampled = SampledTokens.of(fields)
    places, begins = [], 0
    for number, one in enumerate(chunks):
        ends = begins + one.num_scheduled_tokens
        for back in range(one.num_draft_tokens if one.samples else -1, -1, -1):
            end = one.num_computed_tokens + one.num_scheduled_tokens
            places.append((number, one.row, end - back, ends - 1 - back))
        begins = ends
    found = zip(sampled.chunks, sampled.rows, sampled.positions, strict=True)
    assert [tuple(map(int, one)) for one in found] == [place[:3] for place in places]
    index = sampled.index_in(fields)
    where = [*range(num_tokens)] if index is None else index.tolist()
    assert where == [place[3] for place in places]
    assert sampled.once_each == ([place[0] for place in places] == [*range(len(chunks))])


MAX_LEN = 20


@st.composite
def chunks_of_rows(draw: st.DrawFn) -> list[Chunk]:
    chunks = []
    for row in draw(st.lists(st.integers(0, 5), min_size=1, unique=True)):
        n = draw(st.integers(1, 7))
        computed = draw(st.integers(0, MAX_LEN - n))
        samples = draw(st.booleans())
        drafts = range(draw(st.integers(0, n - 1)) if samples else 0)
        chunks.append(Chunk(row, str(row), computed, n, samples, draft_token_ids=tuple(drafts)))
    return chunks


@given(chunks=chunks_of_rows(), seed=st.integers(0, 99))
def test_any_step_is_what_the_module_says(chunks: list[Chunk], seed: int) -> None:
    rows = RowTable(6, MAX_LEN, BLOCK_SIZE, torch.device("cpu"))
    rng = np.random.default_rng(seed)
    block_ids = rng.permutation(30).reshape(6, 5).tolist()
    token_ids = rng.integers(1, 1000, (6, MAX_LEN)).tolist()
    rows.apply(
        [
            Admission(r, str(r), token_ids[r], MAX_LEN, [block_ids[r]], SamplingParams())
            for r in range(6)
        ],
        [],
    )
    fields = ChunkFields.read(chunks)
    inputs = build_inputs(fields, rows, BLOCK_SIZE)
    flat = [
        (index, c.row, c.num_computed_tokens + i)
        for index, c in enumerate(chunks)
        for i in range(c.num_scheduled_tokens)
    ]
    assert inputs.token_ids.tolist() == [token_ids[row][p] for _, row, p in flat]
    assert inputs.positions.tolist() == [p for _, _, p in flat]
    assert inputs.groups[0].slots.tolist() == [
        block_ids[row][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for _, row, p in flat
    ]
    ends = [c.num_computed_tokens + c.num_scheduled_tokens for c in chunks]
    places = [
        (at, index, row, p + 1)
        for at, (index, row, p) in enumerate(flat)
        if chunks[index].samples and p >= ends[index] - len(chunks[index].draft_token_ids) - 1
    ]
    assert inputs.sampled.chunks.tolist() == [index for _, index, _, _ in places]
    assert inputs.sampled.rows.tolist() == [row for _, _, row, _ in places]
    assert inputs.sampled.positions.tolist() == [position for _, _, _, position in places]
    logits_index = inputs.sampled.index_in(fields)
    if logits_index is None:
        assert len(places) == len(flat)
    else:
        assert logits_index.tolist() == [at for at, _, _, _ in places]


def test_a_decode_batch_needs_the_logits_of_every_token() -> None:
    fields = ChunkFields.read([chunk(2, 5, 1, True), chunk(1, 8, 1, True)])
    inputs = build_inputs(fields, table(), BLOCK_SIZE)
    assert inputs.token_ids.tolist() == [205, 108]
    assert inputs.groups[0].slots.tolist() == [33, 20]
    assert inputs.sampled.index_in(fields) is None
    assert inputs.sampled.positions.tolist() == [6, 9]
    assert inputs.sampled.once_each


def test_blocks_are_appended_behind_those_a_row_has() -> None:
    rows = table()
    rows.apply([], [(0, 4, [11, 12]), (0, 2, [13])])
    assert rows.block_table[4, :3].tolist() == [2, 11, 12]
    assert rows.block_table[2, :3].tolist() == [9, 8, 13]
    inputs = build_inputs(ChunkFields.read([chunk(4, 8, 1, False)]), rows, BLOCK_SIZE)
    assert inputs.groups[0].slots.tolist() == [48]


def test_an_admission_starts_the_row_afresh() -> None:
    rows = table()
    rows.admit(
        Admission(
            row=1,
            request_id="new",
            token_ids=[1, 2],
            num_prompt_tokens=2,
            block_ids=[[6]],
            params=SamplingParams(),
        )
    )
    rows.apply([], [(0, 1, [4])])
    assert rows.block_table[1, :2].tolist() == [6, 4]
    assert rows.tokens[1, :2].tolist() == [1, 2]


def test_layer_groups_have_blocks_of_their_own() -> None:
    rows = RowTable(6, 20, BLOCK_SIZE, torch.device("cpu"), GROUPS)
    admission = Admission(
        row=4,
        request_id="r",
        token_ids=range(20),
        num_prompt_tokens=20,
        block_ids=[[2, 9, 5, 7], [NO_BLOCK, 8, 1], [NO_BLOCK, NO_BLOCK, 3]],
        params=SamplingParams(),
    )
    rows.apply([admission], [])
    rows.apply([], [(0, 4, [6]), (1, 4, [10, 11]), (2, 4, [12])])
    assert rows.block_tables[:, 4, :5].tolist() == [
        [2, 9, 5, 7, 6],
        [0, 8, 1, 10, 11],
        [0, 0, 3, 12, 0],
    ]
    assert not rows.block_tables[:, :4].any()
    assert rows.group_of == (1, 0, 2, 0)
    fields = ChunkFields.read([chunk(4, 10, 4, False)])
    groups = build_inputs(fields, rows, BLOCK_SIZE).groups
    assert [group.slots.tolist() for group in groups] == [
        [22, 23, 28, 29],
        [6, 7, 40, 41],
        [14, 15, 48, 49],
    ]
    for number, batch in enumerate(group.batch for group in groups):
        assert batch.window == rows.windows[number]
        assert batch.block_table.data_ptr() == rows.block_tables[number].data_ptr()
        assert (batch.seq_lens.tolist(), batch.rows.tolist()) == ([14], [4])


def test_one_group_with_a_window_says_so() -> None:
    rows = RowTable(1, 8, BLOCK_SIZE, torch.device("cpu"), single_group(2, 5))
    rows.admit(Admission(0, "r", [1, 2], 2, [[1]], SamplingParams()))
    (group,) = build_inputs(ChunkFields.read([chunk(0, 0, 2, True)]), rows, BLOCK_SIZE).groups
    assert group.batch.window == 5


def test_chunks_are_cut_down_to_the_tokens_that_are_sampled() -> None:
    """A whole prompt, one cut short, a decode, and one with two drafts."""
    columns = ([4, 1, 7, 2], [0, 8, 20, 30], [5, 6, 1, 3], [1, 0, 1, 3])
    fields = ChunkFields(*(np.array(column, np.int64) for column in columns))
    sampled = fields.sampled_only()
    assert sampled.rows.tolist() == [4, 7, 2]
    assert sampled.computed.tolist() == [4, 20, 30]
    assert sampled.query_lens.tolist() == sampled.num_sampled.tolist() == [1, 1, 3]


def test_a_step_that_samples_nothing_keeps_one_token() -> None:
    fields = ChunkFields(
        *(np.array(column, np.int64) for column in ([3, 5], [8, 0], [4, 4], [0, 0]))
    )
    sampled = fields.sampled_only()
    assert (sampled.rows.tolist(), sampled.computed.tolist()) == ([3], [8])
    assert (sampled.query_lens.tolist(), sampled.num_sampled.tolist()) == ([1], [0])
