from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.manager import CacheManager
from engine.cache.swap import Swapped, SwapSpace
from engine.cache.table import BlockTable, PrefixHit

TOKENS = list(range(1, 11))


def blocks(of: BlockTable | PrefixHit) -> list[int]:
    """Those of the only layer group that are its own or shared."""
    groups = of.layer_groups if isinstance(of, BlockTable) else of.groups
    return groups[0].block_ids if groups else []


class TestSwapSpace:
    def test_blocks_are_lent_once(self) -> None:
        space = SwapSpace(5)
        one, two = space.take(2, 7, (0,)), space.take(3, 9, (0,))
        assert sorted(one.block_ids + two.block_ids) == [0, 1, 2, 3, 4]
        assert (space.num_free, space.num_holders) == (0, 2)
        space.give_back(one)
        assert (space.num_free, space.num_holders) == (2, 1)
        space.check_integrity()

    def test_more_than_there_is_cannot_be_taken(self) -> None:
        with pytest.raises(AssertionError, match="3 wanted, 2 are free"):
            SwapSpace(2).take(3, 1, (0,))

    def test_giving_back_twice_raises_at_once(self) -> None:
        space = SwapSpace(2)
        swapped = space.take(2, 1, (0,))
        space.give_back(swapped)
        with pytest.raises(AssertionError, match="given back twice"):
            space.give_back(swapped)

    @given(st.lists(st.one_of(st.integers(1, 6), st.none()), max_size=40))
    def test_any_order_of_taking_and_giving_back(self, moves: list[int | None]) -> None:
        space, held = SwapSpace(12), list[Swapped]()
        for move in moves:
            if move is None and held:
                space.give_back(held.pop(len(held) // 2))
            elif move is not None and move <= space.num_free:
                held.append(space.take(move, move, (0,)))
            space.check_integrity()
            assert space.num_holders == len(held)
            owned = [block_id for swapped in held for block_id in swapped.block_ids]
            assert len(set(owned)) == len(owned) == 12 - space.num_free


def swapped_out(manager: CacheManager, num_tokens: int = 10) -> tuple[BlockTable, list[int]]:
    """A table whose tokens were computed, copied out and released; and its former blocks."""
    table = BlockTable({"salt": "s"}, owner="s")
    manager.admit(table, manager.lookup(table, TOKENS), num_tokens)
    manager.publish(table, TOKENS, num_tokens)
    block_ids = list(blocks(table))
    pairs = manager.swap_out(table, num_tokens)
    assert [block_id for block_id, _ in pairs] == block_ids
    manager.release(table, TOKENS)
    return table, block_ids


class TestTables:
    def test_what_is_swapped_out_is_a_hit(self) -> None:
        manager = CacheManager(8, 4, enable_prefix_caching=False, num_swap_blocks=4)
        table, _ = swapped_out(manager)
        known = [*TOKENS, 99]
        hit = manager.lookup(table, known)
        assert (hit.num_tokens, blocks(hit), hit.is_swapped) == (10, [], True)
        assert manager.num_blocks_lacking(hit, 11) == 3 - 8
        manager.admit(table, hit, 11)
        pairs = manager.swap_in(table, hit)
        assert [block_id for block_id, _ in pairs] == blocks(table)
        assert table.swapped is None
        assert manager.swap.num_free == 4

    def test_blocks_still_cached_are_not_copied_back(self) -> None:
        manager = CacheManager(8, 4, num_swap_blocks=4)
        table, before = swapped_out(manager)
        hit = manager.lookup(table, [*TOKENS, 99])
        assert hit.num_tokens == 10
        assert not hit.is_swapped, "all of it is still there"
        # The tail goes first: now the host has more than the cache.
        rest = manager.pool.allocate(6)
        hit = manager.lookup(table, [*TOKENS, 99])
        assert (hit.num_tokens, blocks(hit), hit.is_swapped) == (10, before[:2], True)
        manager.pool.release(rest)
        manager.admit(table, hit, 11)
        assert len(manager.swap_in(table, hit)) == 1
        assert manager.swap.num_blocks_in == 1
        assert manager.swap.num_free == 4

    def test_a_full_hit_gives_the_host_blocks_up(self) -> None:
        manager = CacheManager(8, 4, num_swap_blocks=4)
        table, _ = swapped_out(manager)
        hit = manager.lookup(table, [*TOKENS, 99])
        manager.admit(table, hit, 11)
        assert manager.swap_in(table, hit) == []
        assert (table.swapped, manager.swap.num_free) == (None, 4)

    def test_never_all_tokens_are_a_hit(self) -> None:
        """Rejected drafts: more was scheduled than is known in the end."""
        manager = CacheManager(8, 4, enable_prefix_caching=False, num_swap_blocks=4)
        table, _ = swapped_out(manager)
        assert manager.lookup(table, TOKENS[:9]).num_tokens == 8

    def test_dropping_is_idempotent(self) -> None:
        manager = CacheManager(8, 4, num_swap_blocks=4)
        table, _ = swapped_out(manager)
        manager.drop_swapped(table)
        manager.drop_swapped(table)
        assert manager.swap.num_free == 4
        manager.swap.check_integrity()

    def test_another_request_never_hits_it(self) -> None:
        manager = CacheManager(8, 4, enable_prefix_caching=False, num_swap_blocks=4)
        swapped_out(manager)
        assert manager.lookup(BlockTable({"salt": "s"}), [*TOKENS, 99]).num_tokens == 0
