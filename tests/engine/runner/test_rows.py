"""What the device holds of running rows: tokens and blocks, appended and overwritten."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.groups import LayerGroups
from engine.cache.table import NO_BLOCK
from engine.runner.rows import RowTable
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import UNSEEN, Admission, Chunk

BLOCK, MAX_LEN, ROWS = 4, 22, 3
WIDTH = 6
"""Blocks of the longest row: 22 tokens fill five, and half of one."""
TWO_GROUPS = LayerGroups(windows=(None, 8), places=((0, 0), (1, 0), (1, 1)))


def row_table(groups: LayerGroups | None = None, device: str = "cpu") -> RowTable:
    return RowTable(ROWS, MAX_LEN, BLOCK, torch.device(device), groups)


def admission(row: int, tokens: list[int], *blocks: list[int]) -> Admission:
    return Admission(
        row=row,
        request_id=f"r{row}",
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        block_ids=blocks,
        params=SamplingParams(),
    )


def drafts(row: int, computed: int, scheduled: int, draft_ids: tuple[int, ...]) -> Chunk:
    return Chunk(row, f"r{row}", computed, scheduled, samples=True, draft_token_ids=draft_ids)


def test_a_row_holds_its_tokens_and_blocks_on_the_device_and_on_the_host() -> None:
    table = row_table()
    assert table.block_table.shape == (ROWS, WIDTH)
    table.admit(admission(1, [7, 8, 9], [5, 2]))
    table.apply([], [(0, 1, [4]), (0, 1, [3])])
    assert table.tokens[1, :3].tolist() == [7, 8, 9]
    assert table.block_table[1].tolist() == [5, 2, 4, 3, 0, 0]
    assert table.block_ids[1].tolist() == [5, 2, 4, 3, 0, 0]
    assert not table.tokens[[0, 2]].any()
    assert not table.block_table[[0, 2]].any()


def test_a_row_that_is_given_out_again_begins_anew() -> None:
    table = row_table()
    table.admit(admission(0, [1, 2, 3, 4, 5], [9, 8]))
    table.apply([], [(0, 0, [7])])
    before = table.num_admissions
    table.apply([admission(0, [6], [3])], [])
    assert table.num_admissions == before + 1
    assert table.tokens[0, 0] == 6
    table.apply([], [(0, 0, [4])])
    assert table.block_ids[0, :2].tolist() == [3, 4]


@given(
    prompts=st.dictionaries(
        st.integers(0, ROWS - 1),
        st.lists(st.integers(1, 99), min_size=1, max_size=MAX_LEN),
        min_size=1,
    )
)
def test_requests_admitted_together_are_written_as_one_by_one(
    prompts: dict[int, list[int]],
) -> None:
    together, one_by_one = row_table(), row_table()
    for table in (together, one_by_one):
        table.apply([admission(row, [50] * MAX_LEN, [1]) for row in range(ROWS)], [])
    admissions = [admission(row, tokens, [2]) for row, tokens in prompts.items()]
    together.apply(admissions, [])
    for each in admissions:
        one_by_one.admit(each)
    assert together.tokens.tolist() == one_by_one.tokens.tolist()
    for row, tokens in prompts.items():
        left = [50] * (MAX_LEN - len(tokens))
        assert together.tokens[row].tolist() == tokens + left, "nothing past its end is touched"
    assert together.block_tables.tolist() == one_by_one.block_tables.tolist()


@pytest.mark.gpu
def test_a_gpu_is_given_what_a_cpu_is() -> None:
    tables = [row_table(device=device) for device in ("cpu", "cuda")]
    for table in tables:
        table.apply([admission(2, [5] * 9, [1, 2, 3])], [])
        table.apply([admission(0, [7, 8], [4]), admission(1, [9], [5])], [(0, 2, [6])])
        table.apply([], [(0, 0, [8, 9])])
        table.write_drafts([drafts(2, 9, 4, (30, 31, 32))])
        table.write_drafts([drafts(0, 2, 3, (33, 34)), drafts(1, 1, 2, (35,))])
    on_cpu, on_gpu = tables
    assert torch.equal(on_gpu.tokens.cpu(), on_cpu.tokens)
    assert torch.equal(on_gpu.block_tables.cpu(), on_cpu.block_tables)


def test_one_plan_admits_some_rows_and_appends_to_others() -> None:
    table = row_table()
    table.admit(admission(2, [1], [6]))
    table.apply([admission(0, [2], [1])], [(0, 2, [5])])
    assert table.block_ids[:, :2].tolist() == [[1, 0], [0, 0], [6, 5]]


def test_each_layer_group_has_its_own_blocks() -> None:
    table = row_table(TWO_GROUPS)
    assert table.windows == (None, 8)
    table.apply([admission(1, [1] * 9, [1, 2, 3], [NO_BLOCK, 7, 8])], [])
    table.apply([], [(0, 1, [4]), (1, 1, [9])])
    assert table.block_tables[:, 1, :4].tolist() == [[1, 2, 3, 4], [0, 7, 8, 9]]
    assert table.block_table.data_ptr() == table.block_tables[0].data_ptr()


def test_each_layer_has_a_group() -> None:
    assert row_table().group_of == ()
    assert row_table(TWO_GROUPS).group_of == (0, 1, 1)


@pytest.mark.parametrize(
    ("computed", "scheduled", "draft_ids", "expected"),
    [
        (5, 1, (), []),
        (5, 3, (30, 31), [30, 31]),  # at 6 and 7: behind the last known token
        (0, 6, (32,), [0, 32]),  # the end of a chunk of a prompt
        (5, 3, (UNSEEN, UNSEEN), []),
    ],
)
def test_drafts_stand_behind_the_known_tokens(
    computed: int, scheduled: int, draft_ids: tuple[int, ...], expected: list[int]
) -> None:
    table = row_table()
    table.write_drafts([drafts(0, 2, 1, ()), drafts(1, computed, scheduled, draft_ids)])
    end = computed + scheduled
    assert table.tokens[1, end - len(expected) : end].tolist() == expected
    assert table.tokens.count_nonzero() == sum(token > 0 for token in expected)


@given(
    st.lists(
        st.tuples(
            st.integers(0, ROWS - 1), st.booleans(), st.lists(st.integers(1, 99), max_size=2)
        ),
        max_size=12,
    )
)
def test_device_and_host_always_hold_the_same(steps: list[tuple[int, bool, list[int]]]) -> None:
    table = row_table()
    held: dict[int, list[int]] = {row: [] for row in range(ROWS)}
    for row, admits, blocks in steps:
        if admits:
            held[row] = []
            table.admit(admission(row, [row + 1], blocks))
        elif len(held[row]) + len(blocks) <= WIDTH:
            table.apply([], [(0, row, blocks)])
        else:
            continue
        held[row] = held[row] + blocks
        for other, expected in held.items():
            assert table.block_ids[other, : len(expected)].tolist() == expected
    assert torch.equal(table.block_table, torch.from_numpy(table.block_ids))
