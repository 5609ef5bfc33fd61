from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.block_pool import BlockPool
from engine.cache.prefix import Content


def content(name: str, **fields: Any) -> Content:
    fields = {"parent": b"root", "data": b"", "owner": ""} | fields
    return Content(name.encode(), **fields)


def cached(pool: BlockPool, *names: str, **fields: Any) -> list[int]:
    """Blocks that were published and released, in this order."""
    block_ids = pool.allocate(len(names))
    for block_id, name in zip(block_ids, names, strict=True):
        pool.publish(block_id, content(name, **fields))
    pool.release(block_ids)
    return block_ids


def found(pool: BlockPool, *names: str) -> list[str]:
    return [name for name in names if pool.index.find(name.encode()) is not None]


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_many_at_once_are_those_that_would_come_one_by_one(count: int) -> None:
    at_once, one_by_one = BlockPool(4), BlockPool(4)
    expected = [block_id for _ in range(count) for block_id in one_by_one.allocate(1)]
    assert at_once.allocate(count) == expected
    assert at_once.num_free == 4 - count
    assert [at_once.ref_count(block_id) for block_id in expected] == [1] * count
    at_once.check_integrity()


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
    pool.publish(block_id, content("a"))
    pool.acquire(block_id)
    pool.release([block_id])
    assert pool.num_free == 0
    pool.release([block_id])
    assert pool.num_free == 1
    pool.check_integrity()


def test_published_content_outlives_its_holder_until_the_block_is_needed() -> None:
    pool = BlockPool(2)
    cached(pool, "a")
    pool.allocate(1)
    assert found(pool, "a") == ["a"], "the blank block goes first"
    pool.allocate(1)
    assert found(pool, "a") == []
    assert pool.num_evictions == 1
    pool.check_integrity()


def test_the_block_released_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(3)
    a, _, _ = cached(pool, "a", "b", "c")
    pool.acquire(a)
    pool.release([a])
    pool.allocate(1)
    assert found(pool, "a", "b", "c") == ["a", "c"]
    pool.allocate(1)
    assert found(pool, "a", "b", "c") == ["a"]


def test_partly_filled_blocks_go_before_full_ones() -> None:
    pool = BlockPool(3)
    cached(pool, "full")
    cached(pool, "part 1", "part 2", partial=True)
    pool.allocate(1)
    assert found(pool, "full", "part 1", "part 2") == ["full", "part 2"]
    pool.allocate(1)
    assert found(pool, "full", "part 1", "part 2") == ["full"]
    pool.check_integrity()


def test_a_partly_filled_block_can_be_acquired_as_a_source() -> None:
    pool = BlockPool(2)
    (block_id,) = cached(pool, "part", partial=True)
    pool.acquire(block_id)
    assert pool.num_free == 1
    pool.release([block_id])
    pool.check_integrity()
    assert found(pool, "part") == ["part"]


def test_the_first_block_published_under_a_key_keeps_it() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, content("a"))
    pool.publish(second, content("a"))
    assert pool.index.find(b"a") == first
    pool.release([second])
    pool.check_integrity()
    assert len(pool.index) == 1


def test_publishing_needs_a_held_block_without_content() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="not held"):
        pool.publish(0, content("a"))
    (block_id,) = pool.allocate(1)
    pool.publish(block_id, content("a"))
    with pytest.raises(AssertionError, match="published twice"):
        pool.publish(block_id, content("b"))


def test_above_its_ceiling_an_owner_gives_up_its_own_oldest() -> None:
    pool = BlockPool(8, ceiling=2)
    cached(pool, "other", owner="quiet")
    cached(pool, "a", "b", "c", owner="loud")
    assert found(pool, "other", "a", "b", "c") == ["other", "b", "c"]
    assert pool.num_free == 8
    pool.check_integrity()


def test_a_ceiling_of_zero_keeps_nothing() -> None:
    pool = BlockPool(2, ceiling=0)
    cached(pool, "a")
    assert found(pool, "a") == []
    pool.check_integrity()


def test_above_the_ceiling_of_a_group_its_own_oldest_go() -> None:
    pool = BlockPool(9)
    (group,) = pool.ceilings_of({"group": 2})
    cached(pool, "other")
    cached(pool, "a", "b", "c", ceilings=(group,))
    assert found(pool, "other", "a", "b", "c") == ["other", "b", "c"]
    cached(pool, "rest", partial=True, ceilings=(group,))
    assert found(pool, "b", "c", "rest") == ["c", "rest"], "partly filled ones count, too"
    pool.ceilings_of({"group": 1})
    assert found(pool, "c", "rest") == ["rest"], "a lower ceiling holds at once"
    assert pool.num_free == 9
    pool.check_integrity()


def test_held_blocks_of_a_group_do_not_count() -> None:
    pool = BlockPool(4)
    (group,) = pool.ceilings_of({"group": 1})
    blocks = [cached(pool, name, ceilings=(group,))[0] for name in "a"]
    pool.acquire(blocks[0])
    cached(pool, "b", ceilings=(group,))
    assert found(pool, "a", "b") == ["a", "b"]
    pool.release(blocks)
    assert found(pool, "a", "b") == ["a"]
    pool.check_integrity()


def test_a_block_counts_for_all_its_groups() -> None:
    pool = BlockPool(6)
    wide, narrow = pool.ceilings_of({"tenant": 3, "key": 1})
    cached(pool, "a", "b", ceilings=(narrow, wide))
    assert found(pool, "a", "b") == ["b"]
    cached(pool, "c", "d", "e", ceilings=(wide,))
    assert found(pool, "b", "c", "d", "e") == ["c", "d", "e"]
    pool.check_integrity()


def test_a_loud_owner_cannot_evict_the_floor_of_another() -> None:
    pool = BlockPool(6, floor=2)
    cached(pool, "q1", "q2", owner="quiet")
    cached(pool, "l1", "l2", "l3", "l4", owner="loud")
    for i in range(20):
        cached(pool, f"more {i}", owner="loud")
    assert found(pool, "q1", "q2") == ["q1", "q2"]


def test_a_floor_never_keeps_a_block_from_a_request() -> None:
    pool = BlockPool(3, floor=3)
    cached(pool, "a", "b", "c")
    assert len(pool.allocate(3)) == 3
    pool.check_integrity()


def test_integrity_notices_a_lost_block() -> None:
    pool = BlockPool(2)
    pool._blank.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity()


@given(
    operations=st.lists(
        st.tuples(
            st.sampled_from(["allocate", "release", "publish", "acquire"]), st.integers(0, 99)
        ),
        max_size=100,
    ),
    floor=st.integers(0, 3),
    ceiling=st.integers(0, 8),
    bounds=st.lists(
        st.dictionaries(st.sampled_from("xy"), st.integers(0, 4)), min_size=1, max_size=4
    ),
)
def test_no_order_of_calls_breaks_it(
    operations: list[tuple[str, int]], floor: int, ceiling: int, bounds: list[dict[str, int]]
) -> None:
    pool = BlockPool(8, floor=floor, ceiling=ceiling)
    held: list[int] = []
    published: set[int] = set()
    for step, (operation, number) in enumerate(operations):
        if operation == "allocate" and number % 4 <= pool.num_free:
            new = pool.allocate(number % 4)
            published -= set(new)
            held += new
        elif operation == "acquire":
            block_id = pool.index.find(str(number).encode())
            if block_id is not None:
                pool.acquire(block_id)
                held.append(block_id)
        elif held and operation == "release":
            pool.release([held.pop(number % len(held))])
        elif held and operation == "publish":
            block_id = held[number % len(held)]
            if block_id not in published:
                published.add(block_id)
                pool.publish(
                    block_id,
                    content(
                        str(number),
                        owner=str(number % 3),
                        partial=step % 5 == 0,
                        ceilings=pool.ceilings_of(bounds[step % len(bounds)]),
                    ),
                )
        pool.check_integrity()
        # A block whose content was a duplicate is unpublished, but must not be published again.
        published = {b for b in published if pool.ref_count(b) > 0 or pool._contents[b]}
    pool.release(held)
    pool.check_integrity()
    assert pool.num_free == 8
