"""Groups share what they say, save the most, and are cut into work that covers them once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runner.graphs.shared_prefix import TILE, Group, Layout, find_groups


def groups_of(tables: list[list[int]], block_size: int = TILE) -> list[tuple[list[int], int]]:
    width = max(map(len, tables))
    ids = np.zeros((len(tables), width), np.int32)
    for row, table in zip(ids, tables, strict=True):
        row[: len(table)] = table
    found = find_groups(ids, np.array([len(table) for table in tables]), block_size)
    return sorted((group.members.tolist(), group.num_tokens // block_size) for group in found)


def test_one_prompt_for_all() -> None:
    assert groups_of([[1, 2, 3], [1, 2, 4], [1, 2, 5, 6]]) == [([0, 1, 2], 2)]


def test_two_prompts_and_a_loner() -> None:
    tables = [[1, 2, 3], [7, 8, 9], [1, 2, 5], [4, 4, 4], [7, 8, 6]]
    assert groups_of(tables) == [([0, 2], 2), ([1, 4], 2)]


def test_the_deeper_groups_win_when_they_save_more() -> None:
    long = [[1, 2, 3, 4, 5, n] for n in (10, 11)] + [[1, 6, 7, 8, 9, n] for n in (10, 11)]
    assert groups_of(long) == [([0, 1], 5), ([2, 3], 5)]


def test_the_wider_group_wins_when_it_saves_more() -> None:
    tables = [[1, 2, 3, 10], [1, 2, 3, 11], [1, 2, 12, 13], [1, 2, 14, 15]]
    assert groups_of(tables) == [([0, 1, 2, 3], 2)]


def test_blocks_not_yet_computed_are_not_shared() -> None:
    assert groups_of([[1, 2, 3], [1, 2]]) == [([0, 1], 2)]
    assert groups_of([[1], [1, 2]], block_size=16) == []


@pytest.mark.parametrize("batch", [1, 3])
def test_sequences_without_a_whole_block_share_nothing(batch: int) -> None:
    assert groups_of([[]] * batch) == []


def test_only_whole_tiles_count() -> None:
    assert groups_of([[*range(1, 8), 10], [*range(1, 8), 11]], block_size=16) == [([0, 1], 4)]


trees = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=6), min_size=1, max_size=9)


def best_saving(tables: list[list[int]]) -> int:
    """By trying every way to group by a common start."""

    def best(members: list[int], depth: int) -> int:
        children: dict[int, list[int]] = {}
        for i in members:
            if len(tables[i]) > depth:
                children.setdefault(tables[i][depth], []).append(i)
        split = sum(best(child, depth + 1) for child in children.values() if len(child) > 1)
        return max((len(members) - 1) * depth, split)

    return best(list(range(len(tables))), 0)


@given(trees)
def test_groups_agree_on_their_blocks_and_save_the_most(tables: list[list[int]]) -> None:
    found = groups_of(tables)
    taken = [i for members, _ in found for i in members]
    assert len(taken) == len(set(taken))
    for members, blocks in found:
        assert blocks >= 1
        assert len({tuple(tables[i][:blocks]) for i in members}) == 1
        assert min(len(tables[i]) for i in members) >= blocks
    saved = sum((len(members) - 1) * blocks for members, blocks in found)
    assert saved == best_saving(tables)


@given(
    st.lists(st.tuples(st.integers(2, 40), st.integers(1, 60)), min_size=1, max_size=5),
    st.sampled_from([1, 4, 32]),
    st.sampled_from([(64, 16), (300, 3), (200, 1)]),
)
def test_tiles_cover_every_member_and_key_once(
    sizes: list[tuple[int, int]], per_tile: int, limits: tuple[int, int]
) -> None:
    batch = sum(count for count, _ in sizes)
    layout = Layout(batch, max(limits[0], batch), limits[1])
    order = np.random.default_rng(0).permutation(batch)
    starts = np.cumsum([0, *(count for count, _ in sizes)])
    groups = [
        Group(order[start : start + count], tokens * TILE)
        for start, (count, tokens) in zip(starts, sizes, strict=False)
    ]
    into = np.full(layout.size, -7, np.int32)
    layout.fill(into, groups, per_tile, heads=8, sms=132)
    tiles, tile_splits, skipped, splits, members, num_tiles = (into[p] for p in layout.parts())
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for i in range(num_tiles[0]):
        first, count, begin, end = tiles[4 * i : 4 * i + 4]
        assert 0 < count <= per_tile
        assert begin < end
        for member in members[first : first + count]:
            seen.setdefault(int(member), []).append((int(begin), int(end), int(tile_splits[i])))
    for group in groups:
        for member in group.members:
            ranges = sorted(seen.pop(int(member)))
            assert [split for _, _, split in ranges] == list(range(splits[member]))
            assert [begin for begin, _, _ in ranges] == [0, *(end for _, end, _ in ranges[:-1])]
            assert ranges[-1][1] == group.num_tokens == skipped[member]
    assert not seen
