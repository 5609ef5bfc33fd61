from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.eviction import EvictionOrder


def drain(order: EvictionOrder) -> list[int]:
    return [order.pop() for _ in range(len(order))]


def test_without_a_floor_it_is_the_order_of_release() -> None:
    order = EvictionOrder()
    for block_id, owner in [(3, "a"), (1, "b"), (2, "a")]:
        order.add(block_id, owner)
    assert 1 in order
    assert len(order) == 3
    assert drain(order) == [3, 1, 2]


def test_the_loud_owner_evicts_its_own() -> None:
    order = EvictionOrder(floor=2)
    for block_id, owner in enumerate("aabbbb"):
        order.add(block_id, owner)
    # b comes down to its floor first; then both stand in one line.
    assert drain(order) == [2, 3, 0, 1, 4, 5]


def test_an_owner_that_falls_to_its_floor_is_safe_until_all_are() -> None:
    order = EvictionOrder(floor=1)
    for block_id, owner in enumerate("aab"):
        order.add(block_id, owner)
    order.remove(0)
    assert drain(order) == [1, 2]


def test_an_owner_that_falls_to_its_floor_is_safe_with_its_oldest_block() -> None:
    order = EvictionOrder(floor=1)
    for block_id, owner in enumerate("aabb"):
        order.add(block_id, owner)
    order.remove(1)
    assert drain(order) == [2, 0, 3]


def test_an_owner_that_rises_above_its_floor_stands_where_its_oldest_does() -> None:
    order = EvictionOrder(floor=1)
    order.add(0, "a")
    order.add(1, "b")
    order.add(2, "b")
    order.add(3, "a")
    assert order.pop() == 0


def test_pop_from_one_owner() -> None:
    order = EvictionOrder()
    for block_id, owner in enumerate("abab"):
        order.add(block_id, owner)
    assert order.pop_from("b") == 1
    assert order.count("b") == 1
    assert order.count("nobody") == 0
    assert drain(order) == [0, 2, 3]


def test_the_heap_does_not_grow_with_the_traffic() -> None:
    order = EvictionOrder(floor=1)
    for i in range(10_000):
        order.add(0, "a")
        order.add(1, "a")
        order.remove(i % 2)
        order.remove(1 - i % 2)
    assert len(order._heap) < 200
    assert len(order._shares) == 0


class Model:
    """The definition, in O(n)."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.blocks: OrderedDict[int, str] = OrderedDict()

    def pop(self) -> int:
        owners = list(self.blocks.values())
        above = [b for b, owner in self.blocks.items() if owners.count(owner) > self.floor]
        block_id = (above or list(self.blocks))[0]
        del self.blocks[block_id]
        return block_id


@pytest.mark.parametrize(("num_owners", "fewest", "most"), [(40, 12, 20), (60, 16, 40)])
@pytest.mark.parametrize("floor", [0, 1, 3])
def test_long_traffic_leaves_the_order_right_and_the_heap_small(
    floor: int, num_owners: int, fewest: int, most: int
) -> None:
    """Owners come and go, each time with a new entry in the heap: it is rebuilt now and then."""
    order, model, draw = EvictionOrder(floor), Model(floor), random.Random(floor)
    size, num_rebuilt = 0, 0
    for block_id in range(6000):
        if len(order) < fewest or (len(order) < most and draw.random() < 0.5):
            owner = f"owner {draw.randrange(num_owners)}"
            order.add(block_id, owner)
            model.blocks[block_id] = owner
        elif draw.random() < 0.97:
            victim = draw.choice(list(model.blocks))
            order.remove(victim)
            del model.blocks[victim]
        else:
            assert order.pop() == model.pop()
        size, before = len(order._heap), size
        num_rebuilt += size < before - 60
        assert size <= 2 * most + 64
    assert num_rebuilt > 0
    assert drain(order) == [model.pop() for _ in range(len(model.blocks))]


@pytest.mark.parametrize("floor", [0, 1, 3])
@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["add", "add", "remove", "pop"]), st.integers(0, 3)), max_size=150
    )
)
def test_it_does_what_the_definition_says(floor: int, operations: list[tuple[str, int]]) -> None:
    order, model = EvictionOrder(floor), Model(floor)
    for block_id, (operation, number) in enumerate(operations):
        if operation == "add":
            order.add(block_id, f"owner {number}")
            model.blocks[block_id] = f"owner {number}"
        elif model.blocks and operation == "remove":
            victim = list(model.blocks)[number % len(model.blocks)]
            order.remove(victim)
            del model.blocks[victim]
        elif model.blocks:
            assert order.pop() == model.pop()
        assert len(order) == len(model.blocks)
        for owner in {f"owner {i}" for i in range(4)}:
            assert order.count(owner) == list(model.blocks.values()).count(owner)
    assert drain(order) == [model.pop() for _ in range(len(model.blocks))]
