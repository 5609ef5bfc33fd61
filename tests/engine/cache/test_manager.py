from __future__ import annotations

import pytest

from engine.cache.manager import CacheManager
from engine.cache.table import BlockTable, GroupHit, PrefixHit

TOKENS = [1, 2, 3, 4, 5, 6]


def table(salt: str = "", num_public_tokens: int = 0) -> BlockTable:
    return BlockTable({"salt": salt}, owner=salt, num_public_tokens=num_public_tokens)


def blocks(of: BlockTable | PrefixHit) -> list[int]:
    """Those of the only layer group."""
    groups = of.layer_groups if isinstance(of, BlockTable) else of.groups
    return groups[0].block_ids if groups else []


def written(
    manager: CacheManager, token_ids: list[int], salt: str = "", num_public_tokens: int = 0
) -> BlockTable:
    """A table whose tokens were all computed and published."""
    new = table(salt, num_public_tokens)
    hit = manager.lookup(new, token_ids)
    manager.admit(new, hit, len(token_ids))
    if hit.num_copied:
        manager.pool.release([hit.groups[0].source])
    manager.publish(new, token_ids, len(token_ids))
    return new


class TestRoom:
    def test_a_table_gets_as_many_blocks_as_its_tokens_need(self) -> None:
        manager = CacheManager(4, 4)
        new = table()
        manager.admit(new, PrefixHit(), 5)
        assert len(blocks(new)) == 2
        assert manager.num_blocks_to_grow(new, 3) == 1
        assert manager.grow(new, 3) == [blocks(new)[2:]]
        manager.check_table(new)
        assert manager.num_blocks_to_grow(new, 4) == 1
        assert manager.num_logical_blocks_within(new, 1) == 4

    def test_the_blocks_an_admission_lacks(self) -> None:
        manager = CacheManager(4, 4)
        assert manager.num_blocks_lacking(PrefixHit(), 17) == 1
        assert manager.num_blocks_lacking(PrefixHit(), 16) == 0
        assert manager.num_blocks_lacking(PrefixHit(), 3) == -3
        with pytest.raises(AssertionError, match="5 blocks wanted, 4 are free"):
            manager.admit(table(), PrefixHit(), 17)

    def test_idle_hits_count_as_taken(self) -> None:
        manager = CacheManager(3, 2)
        manager.release(written(manager, [1, 2, 3, 4]), [1, 2, 3, 4])
        new = table()
        hit = manager.lookup(new, [1, 2, 3, 4, 5])
        assert len(blocks(hit)) == 2
        assert manager.num_blocks_lacking(hit, 8) == 1, "two hits and two fresh blocks in three"
        assert manager.num_blocks_lacking(hit, 5) == 0
        manager.admit(new, hit, 5)
        assert manager.num_free_blocks == 0
        manager.pool.check_integrity()

    def test_the_source_of_a_copy_counts_as_taken(self) -> None:
        manager = CacheManager(3, 4)
        manager.release(written(manager, TOKENS), TOKENS)
        hit = manager.lookup(table(), [1, 2, 3, 4, 5, 9, 9, 9])
        assert hit.num_copied == 1
        assert manager.num_blocks_lacking(hit, 8) == 0
        assert manager.num_blocks_lacking(hit, 9) == 1
        assert manager.num_blocks_lacking(hit.without_copy(), 9) == 0

    def test_the_source_of_a_copy_costs_nothing_while_somebody_holds_it(self) -> None:
        manager = CacheManager(4, 4)
        holder = written(manager, TOKENS)
        hit = manager.lookup(table(), [1, 2, 3, 4, 5, 9, 9, 9])
        assert (blocks(hit), hit.num_copied) == (blocks(holder)[:1], 0)
        hit = manager.lookup(table(), [1, 2, 9, 9, 9, 9, 9, 9])
        assert (hit.groups[0].source, hit.num_copied) == (blocks(holder)[0], 2)
        assert manager.num_blocks_lacking(hit, 8) == 0
        assert manager.num_blocks_lacking(hit, 9) == 1

    def test_shared_blocks_are_not_freed_by_one_of_their_holders(self) -> None:
        manager = CacheManager(6, 2)
        first = written(manager, [1, 2, 3, 4])
        second = table()
        manager.admit(second, manager.lookup(second, [1, 2, 9]), 3)
        assert manager.num_sole_blocks(first) == 1
        assert manager.num_sole_tokens(first) == 2
        assert manager.num_sole_blocks(second) == 1
        assert manager.num_sole_blocks(written(manager, [5, 6, 7, 8])) == 2
        manager.release(first, [1, 2, 3, 4])
        assert manager.num_free_blocks == 2
        manager.release(second, [1, 2, 9])
        assert manager.num_free_blocks == 4, "two are the third one's"
        manager.pool.check_integrity()


class TestFullBlocks:
    def test_lookup_finds_the_longest_published_prefix(self) -> None:
        manager = CacheManager(8, 2)
        first = written(manager, TOKENS)
        assert manager.lookup(table(), [1, 2, 3, 4, 9, 9, 9]) == PrefixHit(
            4, 2, (GroupHit(0, blocks(first)[:2]),)
        )
        assert manager.lookup(table(), [9, 2, 3, 4]) == PrefixHit()

    def test_the_last_token_is_never_served_from_the_cache(self) -> None:
        manager = CacheManager(8, 2)
        written(manager, [1, 2, 3, 4])
        assert manager.lookup(table(), [1, 2, 3, 4]).num_tokens == 3
        assert manager.lookup(table(), [1, 2]).num_tokens == 1
        assert manager.lookup(table(), [1]).num_tokens == 0

    def test_a_quick_look_counts_full_blocks(self) -> None:
        manager = CacheManager(8, 2)
        written(manager, TOKENS)
        assert manager.num_matching_tokens(table(), [1, 2, 3, 4, 5, 9]) == 4
        assert manager.num_matching_tokens(table("other"), TOKENS) == 0
        uncached = CacheManager(8, 2, enable_prefix_caching=False)
        written(uncached, TOKENS)
        assert uncached.num_matching_tokens(table(), TOKENS) == 0

    def test_a_quick_look_ends_at_the_first_block_that_is_not_there(self) -> None:
        manager = CacheManager(8, 2)
        written(manager, TOKENS[:2])
        assert manager.num_matching_tokens(table(), TOKENS[:5]) == 2
        assert manager.num_matching_tokens(table(), TOKENS) == 2

    def test_a_quick_look_follows_what_comes_and_goes(self) -> None:
        """The keys are known from the look before; what is cached has changed."""
        manager, new = CacheManager(8, 2), table()
        assert manager.num_matching_tokens(new, TOKENS) == 0
        assert len(new.keys) == 1, "only what it had to know"
        first = written(manager, TOKENS)
        assert manager.num_matching_tokens(new, TOKENS) == 4
        manager.release(first, TOKENS)
        manager.pool.release(manager.pool.allocate(8))
        assert manager.num_matching_tokens(new, TOKENS) == 0

    def test_who_reads_nothing_still_says_what_it_computes(self) -> None:
        manager = CacheManager(8, 2)
        first = written(manager, TOKENS)
        new = table()
        new.skip_reading = True
        assert manager.lookup(new, [*TOKENS, 7]) == PrefixHit()
        assert manager.num_matching_tokens(new, [*TOKENS, 7]) == 0
        assert new.keys == first.keys, "others may wait for these"

    def test_unwritten_blocks_cannot_be_found(self) -> None:
        manager = CacheManager(8, 2)
        first = table()
        manager.admit(first, PrefixHit(), 6)
        manager.publish(first, TOKENS, 3)
        assert blocks(manager.lookup(table(), TOKENS)) == blocks(first)[:1]
        assert manager.lookup(table(), TOKENS).num_tokens == 2

    def test_blocks_can_be_found_as_soon_as_they_are_written(self) -> None:
        manager = CacheManager(8, 2)
        first = table()
        manager.admit(first, PrefixHit(), 6)
        for num_written, num_found in ((1, 0), (2, 2), (3, 2), (6, 6), (6, 6)):
            manager.publish(first, TOKENS, num_written)
            assert manager.lookup(table(), [*TOKENS, 7]).num_tokens == num_found
        manager.pool.check_integrity()

    def test_the_tail_of_a_released_table_is_evicted_before_its_head(self) -> None:
        manager = CacheManager(3, 2)
        manager.release(written(manager, TOKENS), TOKENS)
        manager.pool.allocate(1)
        assert manager.lookup(table(), [*TOKENS, 7]).num_tokens == 4

    def test_a_released_table_can_be_admitted_again_and_finds_itself(self) -> None:
        manager = CacheManager(4, 2)
        first = written(manager, [1, 2, 3, 4, 5])
        before = blocks(first)[:2]
        manager.release(first, [1, 2, 3, 4, 5])
        hit = manager.lookup(first, [1, 2, 3, 4, 5, 6])
        assert blocks(hit) == before
        assert hit.num_tokens == 5, "its partly filled block is there as well"


class TestTails:
    def test_a_block_that_matches_in_part_is_copied(self) -> None:
        manager = CacheManager(8, 4)
        first = written(manager, [1, 2, 3, 4, 5, 6, 7, 8])
        hit = manager.lookup(table(), [1, 2, 3, 4, 5, 6, 9, 9, 9])
        assert hit == PrefixHit(6, 1, (GroupHit(0, blocks(first)[:1], blocks(first)[1]),), 2)
        assert hit.without_copy() == PrefixHit(4, 1, (GroupHit(0, blocks(first)[:1]),))

    def test_a_partly_filled_block_is_given_up_before_full_ones(self) -> None:
        manager = CacheManager(4, 2)
        manager.release(written(manager, [1, 2, 3, 4], "old"), [1, 2, 3, 4])
        manager.release(written(manager, [5, 6, 7], "new"), [5, 6, 7])
        manager.pool.release(manager.pool.allocate(1))
        assert manager.lookup(table("new"), [5, 6, 7, 8]).num_tokens == 2
        assert manager.lookup(table("old"), [1, 2, 3, 4, 5]).num_tokens == 4

    def test_it_takes_a_reference_on_the_source(self) -> None:
        manager = CacheManager(8, 4)
        first = written(manager, [1, 2, 3, 4])
        manager.release(first, [1, 2, 3, 4])
        second = table()
        hit = manager.lookup(second, [1, 2, 9])
        manager.admit(second, hit, 3)
        assert manager.pool.ref_count(hit.groups[0].source) == 1
        assert hit.groups[0].source not in blocks(second)
        manager.pool.release([hit.groups[0].source])
        manager.release(second, [1, 2, 9])
        assert manager.num_free_blocks == 8

    def test_the_rest_of_a_released_table_can_be_continued(self) -> None:
        manager = CacheManager(8, 4)
        manager.release(written(manager, TOKENS), TOKENS)
        assert manager.lookup(table(), [*TOKENS, 7, 8]).num_tokens == 6

    def test_only_what_was_written_is_published(self) -> None:
        manager = CacheManager(8, 4)
        first = table()
        manager.admit(first, PrefixHit(), 6)
        manager.publish(first, TOKENS, 5)
        manager.release(first, TOKENS)
        assert manager.lookup(table(), [*TOKENS, 7, 8]).num_tokens == 5

    def test_nothing_is_published_that_only_an_earlier_admission_wrote(self) -> None:
        manager = CacheManager(2, 4)
        first = written(manager, [1, 2, 3])
        manager.release(first, [1, 2, 3])
        manager.pool.release(manager.pool.allocate(2))  # Its block serves others meanwhile.
        manager.admit(first, manager.lookup(first, [1, 2, 3]), 3)
        manager.release(first, [1, 2, 3])
        assert manager.lookup(table(), [1, 2, 3, 4]) == PrefixHit()


class TestRegions:
    def test_two_salts_share_nothing(self) -> None:
        manager = CacheManager(8, 2)
        manager.release(written(manager, [1, 2, 3], "one"), [1, 2, 3])
        assert manager.lookup(table("two"), [1, 2, 3, 4]) == PrefixHit()
        assert manager.lookup(table("one"), [1, 2, 3, 4]).num_tokens == 3

    def test_a_public_prefix_is_shared_by_its_full_blocks_only(self) -> None:
        manager = CacheManager(16, 2)
        written(manager, TOKENS, "one", num_public_tokens=5)
        assert manager.lookup(table("two", 5), [*TOKENS, 7]).num_tokens == 4
        assert manager.lookup(table("one", 5), [*TOKENS, 7]).num_tokens == 6

    def test_who_does_not_opt_in_shares_nothing(self) -> None:
        manager = CacheManager(16, 2)
        written(manager, TOKENS, "one", num_public_tokens=4)
        assert manager.lookup(table("two"), [*TOKENS, 7]) == PrefixHit()
        written(manager, [8, 8, 8, 8], "two")
        assert manager.lookup(table("one", 4), [8, 8, 8, 8, 8]) == PrefixHit()

    def test_what_follows_a_public_prefix_stays_private(self) -> None:
        manager = CacheManager(16, 2)
        written(manager, [1, 2, 7, 7, 7, 7], "one", num_public_tokens=2)
        assert manager.lookup(table("two", 2), [1, 2, 7, 7, 7, 7, 7]).num_tokens == 2

    def test_what_follows_one_public_prefix_does_not_follow_another(self) -> None:
        manager = CacheManager(16, 2)
        written(manager, [1, 2, 7, 7], "one", num_public_tokens=2)
        written(manager, [3, 4, 8, 8], "one", num_public_tokens=2)
        assert manager.lookup(table("one", 2), [1, 2, 7, 7, 9]).num_tokens == 4
        assert manager.lookup(table("one", 2), [3, 4, 7, 7, 9]).num_tokens == 2

    @pytest.mark.parametrize("other", [[9, 9, 3, 4], [1, 2, 9, 9]])
    def test_it_commits_to_every_block_of_the_public_prefix(self, other: list[int]) -> None:
        manager = CacheManager(16, 2)
        written(manager, [1, 2, 3, 4, 7, 7], "one", num_public_tokens=4)
        written(manager, [*other, 8, 8], "one", num_public_tokens=4)
        assert manager.lookup(table("one", 4), [*other, 7, 7, 9]).num_tokens == 4

    @pytest.mark.parametrize("num_public_tokens", [0, 4])
    def test_without_prefix_caching_each_group_shares_by_itself(
        self, num_public_tokens: int
    ) -> None:
        def grouped(group: str) -> BlockTable:
            return BlockTable({"salt": ""}, group=group, num_public_tokens=num_public_tokens)

        manager = CacheManager(16, 2, enable_prefix_caching=False)
        first = grouped("one")
        manager.admit(first, PrefixHit(), len(TOKENS))
        manager.publish(first, TOKENS, len(TOKENS))
        assert manager.lookup(grouped("one"), [*TOKENS, 7]).num_tokens == 6
        for other in ("two", ""):
            assert manager.lookup(grouped(other), [*TOKENS, 7]) == PrefixHit()
            assert manager.num_matching_tokens(grouped(other), [*TOKENS, 7]) == 0

    def test_with_prefix_caching_groups_share_with_everybody(self) -> None:
        manager = CacheManager(16, 2)
        written(manager, TOKENS)
        for group in ("one", "two"):
            found = manager.lookup(BlockTable({"salt": ""}, group=group), [*TOKENS, 7])
            assert found.num_tokens == 6


class TestShares:
    def test_a_loud_tenant_leaves_the_floor_of_a_quiet_one(self) -> None:
        for floor, want in ((0.0, 0), (0.25, 4)):
            manager = CacheManager(16, 2, tenant_floor=floor)
            quiet = [1, 2, 3, 4]
            manager.release(written(manager, quiet, "quiet"), quiet)
            for i in range(10, 200, 4):
                loud = [i, i + 1, i + 2, i + 3]
                manager.release(written(manager, loud, "loud"), loud)
            assert manager.lookup(table("quiet"), [*quiet, 5]).num_tokens == want

    def test_a_tenant_does_not_cache_above_its_ceiling(self) -> None:
        manager = CacheManager(16, 2, tenant_ceiling=0.25)
        tokens = list(range(16))
        manager.release(written(manager, tokens, "loud"), tokens)
        assert manager.lookup(table("loud"), [*tokens, 1]).num_tokens == 8
        manager.pool.check_integrity()

    def test_nor_above_one_of_its_own(self) -> None:
        manager = CacheManager(16, 2)
        tokens = list(range(15))
        for salt, bounds in (("loud", {"loud": 3}), ("quiet", {})):
            new = table(salt)
            new.ceilings = manager.pool.ceilings_of(bounds)
            manager.admit(new, PrefixHit(), len(tokens))
            manager.publish(new, tokens, len(tokens))
            manager.release(new, tokens)
        assert manager.lookup(table("loud"), [*tokens, 1]).num_tokens == 6
        assert manager.lookup(table("quiet"), [*tokens, 1]).num_tokens == 15
        manager.pool.check_integrity()
