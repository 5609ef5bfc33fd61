from __future__ import annotations

import pytest

from engine.cache.manager import BlockTable, CacheManager


def written(manager: CacheManager, token_ids: list[int], salt: str = "") -> BlockTable:
    """A table whose tokens were all computed and published."""
    table = BlockTable({"salt": salt})
    manager.admit(table, manager.lookup(table, token_ids), len(token_ids))
    manager.publish(table, token_ids, len(token_ids))
    return table


def test_a_table_gets_as_many_blocks_as_its_tokens_need() -> None:
    manager = CacheManager(4, 4)
    table = BlockTable({})
    manager.admit(table, [], 5)
    assert len(table.block_ids) == 2
    assert manager.num_fresh_blocks(table, 8) == 0
    assert manager.num_fresh_blocks(table, 9) == 1
    assert manager.grow(table, 1) == [table.block_ids[2]]


def test_the_blocks_an_admission_lacks() -> None:
    manager = CacheManager(4, 4)
    assert manager.num_blocks_lacking([], 17) == 1
    assert manager.num_blocks_lacking([], 16) == 0
    assert manager.num_blocks_lacking([], 3) == -3
    with pytest.raises(AssertionError, match="5 blocks wanted, 4 are free"):
        manager.admit(BlockTable({}), [], 17)


def test_lookup_finds_the_longest_published_prefix() -> None:
    manager = CacheManager(8, 2)
    table = written(manager, [1, 2, 3, 4, 5, 6])
    other = BlockTable({"salt": ""})
    assert manager.lookup(other, [1, 2, 3, 4, 9, 9, 9]) == table.block_ids[:2]
    assert manager.lookup(BlockTable({"salt": ""}), [9, 2, 3, 4]) == []


def test_the_last_token_is_never_served_from_the_cache() -> None:
    manager = CacheManager(8, 2)
    table = written(manager, [1, 2, 3, 4])
    assert manager.lookup(BlockTable({"salt": ""}), [1, 2, 3, 4]) == table.block_ids[:1]
    assert manager.lookup(BlockTable({"salt": ""}), [1, 2]) == []


def test_two_salts_share_nothing() -> None:
    manager = CacheManager(8, 2)
    written(manager, [1, 2, 3, 4], "one")
    assert manager.lookup(BlockTable({"salt": "two"}), [1, 2, 3, 4]) == []


def test_unwritten_blocks_cannot_be_found() -> None:
    manager = CacheManager(8, 2)
    table = BlockTable({})
    manager.admit(table, [], 6)
    manager.publish(table, [1, 2, 3, 4, 5, 6], 3)
    assert manager.lookup(BlockTable({}), [1, 2, 3, 4, 5]) == table.block_ids[:1]


def test_idle_hits_count_as_taken_when_room_is_checked() -> None:
    manager = CacheManager(3, 2)
    manager.release(written(manager, [1, 2, 3, 4]))
    table = BlockTable({"salt": ""})
    hits = manager.lookup(table, [1, 2, 3, 4, 5])
    assert len(hits) == 2
    assert manager.num_blocks_lacking(hits, 8) == 1, "two hits and two fresh blocks in three"
    assert manager.num_blocks_lacking(hits, 5) == 0
    manager.admit(table, hits, 5)
    assert manager.num_free_blocks == 0
    manager.pool.check_integrity()


def test_shared_blocks_are_not_freed_by_one_of_their_holders() -> None:
    manager = CacheManager(4, 2)
    first = written(manager, [1, 2, 3, 4])
    second = BlockTable({"salt": ""})
    manager.admit(second, manager.lookup(second, [1, 2, 3]), 3)
    assert manager.num_sole_blocks(first) == 1
    manager.release(first)
    assert manager.num_free_blocks == 2
    manager.release(second)
    assert manager.num_free_blocks == 4
    manager.pool.check_integrity()


def test_the_tail_of_a_released_table_is_evicted_before_its_head() -> None:
    manager = CacheManager(3, 2)
    manager.release(written(manager, [1, 2, 3, 4, 5, 6]))
    manager.pool.allocate(1)
    assert len(manager.lookup(BlockTable({"salt": ""}), [1, 2, 3, 4, 5, 6, 7])) == 2


def test_without_prefix_caching_nothing_is_found() -> None:
    manager = CacheManager(8, 2, enable_prefix_caching=False)
    written(manager, [1, 2, 3, 4])
    assert manager.lookup(BlockTable({"salt": ""}), [1, 2, 3, 4]) == []
    assert manager.pool.num_cached == 0


def test_a_released_table_can_be_admitted_again_and_finds_itself() -> None:
    manager = CacheManager(4, 2)
    table = written(manager, [1, 2, 3, 4, 5])
    before = table.block_ids[:2]
    manager.release(table)
    assert manager.lookup(table, [1, 2, 3, 4, 5, 6]) == before
