from __future__ import annotations

import pytest

from engine.cache.block_pool import BlockPool


def test_a_new_pool_is_all_free() -> None:
    pool = BlockPool(4)
    assert (pool.num_free, pool.num_cached, pool.num_evictions) == (4, 0, 0)
    pool.check_integrity()


def test_allocate_hands_out_distinct_blocks_and_release_takes_them_back() -> None:
    pool = BlockPool(4)
    block_ids = pool.allocate(3)
    assert len(set(block_ids)) == 3
    assert pool.num_free == 1
    pool.release(block_ids)
    assert pool.num_free == 4
    pool.check_integrity()


def test_allocating_more_than_is_free_changes_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 are free"):
        pool.allocate(3)
    pool.check_integrity()
    assert pool.num_free == 2


def test_a_double_release_is_refused() -> None:
    pool = BlockPool(2)
    (block_id,) = pool.allocate(1)
    pool.release([block_id])
    with pytest.raises(AssertionError, match="released twice"):
        pool.release([block_id])


def test_a_shared_block_is_free_only_after_its_last_release() -> None:
    pool = BlockPool(1)
    (block_id,) = pool.allocate(1)
    pool.publish(block_id, b"key")
    pool.acquire(block_id)
    pool.release([block_id])
    assert pool.num_free == 0
    pool.release([block_id])
    assert pool.num_free == 1
    pool.check_integrity()


def test_published_content_outlives_its_holder_until_the_block_is_needed() -> None:
    pool = BlockPool(2)
    (block_id,) = pool.allocate(1)
    pool.publish(block_id, b"key")
    pool.release([block_id])
    assert pool.find(b"key") == block_id
    pool.allocate(1)
    assert pool.find(b"key") == block_id, "the blank block goes first"
    pool.allocate(1)
    assert pool.find(b"key") is None
    assert pool.num_evictions == 1
    pool.check_integrity()


def test_the_block_released_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block_id, key in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.publish(block_id, key)
    pool.release([blocks[1], blocks[0], blocks[2]])
    pool.acquire(blocks[1])
    pool.release([blocks[1]])
    pool.allocate(1)
    assert pool.find(b"a") is None
    pool.allocate(1)
    assert pool.find(b"c") is None
    assert pool.find(b"b") == blocks[1]


def test_the_first_block_published_under_a_key_keeps_it() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, b"key")
    pool.publish(second, b"key")
    assert pool.find(b"key") == first
    pool.release([second])
    pool.check_integrity()
    assert pool.num_cached == 1


def test_publishing_needs_a_held_block_without_a_key() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="not held"):
        pool.publish(0, b"key")
    (block_id,) = pool.allocate(1)
    pool.publish(block_id, b"key")
    with pytest.raises(AssertionError, match="published twice"):
        pool.publish(block_id, b"other")


def test_a_cached_block_is_revived_by_acquire() -> None:
    pool = BlockPool(1)
    (block_id,) = pool.allocate(1)
    pool.publish(block_id, b"key")
    pool.release([block_id])
    pool.acquire(block_id)
    assert pool.num_free == 0
    assert pool.ref_count(block_id) == 1
    pool.check_integrity()


def test_integrity_notices_a_lost_block() -> None:
    pool = BlockPool(2)
    pool._blank.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity()
