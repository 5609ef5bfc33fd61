"""One pool for layers that look back differently far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.cache.groups import RecurrentState, kinds_of
from engine.cache.manager import CacheManager, create_cache_manager
from engine.cache.table import NO_BLOCK, BlockTable, PrefixHit
from engine.config import EngineConfig

TOKENS = list(range(1, 25))


def manager(
    windows: tuple[int | None, ...] = (None, 5), num_blocks: int = 40, **options: Any
) -> CacheManager:
    options.setdefault("chunk_tokens", 8)
    kinds = [*kinds_of(windows, options.pop("window_step", 1)), *options.pop("states", ())]
    return CacheManager(num_blocks, 2, kinds, **options)


def table(salt: str = "") -> BlockTable:
    return BlockTable({"salt": salt}, owner=salt)


def written(cache: CacheManager, token_ids: list[int], salt: str = "") -> BlockTable:
    """A table whose tokens were computed by steps of at most ``chunk_tokens``, one by one."""
    new = table(salt)
    hit = cache.lookup(new, token_ids)
    cache.admit(new, hit, len(token_ids))
    cache.pool.release([source for source, _, _ in cache.block_copies(new, hit)])
    done = hit.num_tokens
    while done < len(token_ids):
        done = min(done + cache._chunk_tokens, len(token_ids))
        cache.grow(new, max(new.num_logical_blocks, cache.num_blocks_for(done)))
        cache.publish(new, token_ids, done)
        cache.check_table(new)
    return new


def first_indices(held: BlockTable) -> list[int]:
    return [group.first for group in held.layer_groups]


class TestRoom:
    def test_a_prompt_is_reserved_where_all_is_seen_and_a_step_where_not(self) -> None:
        cache, new = manager(), table()
        assert cache.num_blocks_lacking(PrefixHit(), 24) == 12 + 4 - 40
        assert cache.num_slots_reserved(PrefixHit(), 24) == 2 * 16
        cache.admit(new, PrefixHit(), 24)
        assert [len(ids) for ids in cache.block_ids(new)] == [12, 4]
        assert (new.num_logical_blocks, new.num_held) == (4, 16)
        cache.check_table(new)

    def test_only_what_lacks_blocks_grows(self) -> None:
        cache, new = manager(), table()
        cache.admit(new, PrefixHit(), 24)
        assert cache.num_blocks_to_grow(new, 6) == 2
        grown = cache.grow(new, 6)
        assert [len(ids) for ids in grown] == [0, 2]
        assert cache.block_ids(new)[1][-2:] == grown[1]
        assert cache.num_blocks_to_grow(new, 13) == 1 + 7
        assert cache.num_logical_blocks_within(new, 5) == 8
        cache.check_table(new)

    def test_what_the_window_has_left_is_given_back(self) -> None:
        cache = manager()
        new = written(cache, TOKENS)
        # The next query, 24, sees 20 to 24.
        assert first_indices(new) == [0, 10]
        assert cache.block_ids(new)[1][:10] == [NO_BLOCK] * 10
        assert new.num_held == 12 + 2 == 40 - cache.num_free_blocks
        assert cache.num_left_behind == 10

    def test_nothing_that_the_next_query_sees_is_given_back(self) -> None:
        cache, new = manager((1, 4, None)[::-1]), table()
        cache.admit(new, PrefixHit(), 8)
        for num_written, firsts in [(3, [0, 0, 1]), (4, [0, 0, 2]), (5, [0, 1, 2]), (6, [0, 1, 3])]:
            cache.publish(new, TOKENS, num_written)
            assert first_indices(new) == firsts

    def test_whole_pieces_are_given_back_where_attention_reads_such(self) -> None:
        cache, new = manager((None, 5), window_step=6), table()
        cache.admit(new, PrefixHit(), 24)
        cache.grow(new, 12)
        for num_written, first in ((9, 0), (10, 3), (15, 3), (16, 6), (23, 9)):
            cache.publish(new, TOKENS, num_written)
            assert first_indices(new) == [0, first]
        cache.release(new, TOKENS)
        assert cache.lookup(table(), [*TOKENS[:23], 1]).num_tokens == 23
        hit = cache.lookup(table(), [*TOKENS[:17], 1])
        assert hit.num_blocks == 8
        again = table()
        cache.admit(again, hit, 18)
        assert first_indices(again) == [0, 6]

    def test_the_longest_request_leaves_room_for_two_steps_in_flight(self) -> None:
        assert manager((None, 5), num_blocks=12).max_num_tokens == 12
        assert manager((None, 5), num_blocks=40).max_num_tokens == 2 * (40 - 12)
        assert manager((5,), num_blocks=12).max_num_tokens > 10**9

    def test_all_blocks_come_back(self) -> None:
        cache = manager((None, 5, 3))
        new = written(cache, TOKENS)
        cache.release(new, TOKENS)
        assert cache.num_free_blocks == 40
        assert (new.num_held, new.num_logical_blocks, new.layer_groups) == (0, 0, [])
        cache.pool.check_integrity()

    def test_sole_blocks_are_those_of_all_groups(self) -> None:
        cache = manager()
        first = written(cache, TOKENS)
        assert cache.num_sole_blocks(first) == 14
        assert cache.num_sole_tokens(first) == 24
        second = written(cache, [*TOKENS, 1])
        assert cache.num_sole_blocks(first) == 0
        assert cache.num_sole_tokens(second) == 2

    def test_with_windows_alone_what_they_left_counts_as_nobodys(self) -> None:
        cache = manager((5,))
        assert cache.num_sole_tokens(written(cache, TOKENS)) == 24


class TestPrefixes:
    def test_a_hit_needs_of_a_window_its_last_blocks_only(self) -> None:
        cache = manager()
        cache.release(written(cache, TOKENS), TOKENS)
        hit = cache.lookup(table(), [*TOKENS, 1])
        assert (hit.num_tokens, hit.num_blocks) == (24, 12)
        new = table()
        cache.admit(new, hit, 25)
        assert first_indices(new) == [0, 10]
        assert new.num_published == 12
        cache.check_table(new)

    def test_what_slid_out_serves_a_shorter_prefix_while_it_is_cached(self) -> None:
        cache = manager()
        cache.release(written(cache, TOKENS), TOKENS)
        assert cache.lookup(table(), [*TOKENS[:10], 99, 99]).num_tokens == 10

    def test_a_block_that_a_window_lacks_cuts_the_prefix(self) -> None:
        cache = manager(num_blocks=20)
        cache.release(written(cache, TOKENS), TOKENS)
        # The window's blocks were given back first, and so they are evicted first.
        cache.pool.release(cache.pool.allocate(6))
        assert cache.lookup(table(), [*TOKENS, 1]).num_tokens == 24
        for length in (6, 10, 14, 18):
            assert cache.lookup(table(), [*TOKENS[:length], 99, 99]).num_tokens == 0

    def test_with_windows_alone_the_beginning_may_be_gone(self) -> None:
        cache = manager((5,), num_blocks=13)
        cache.release(written(cache, TOKENS), TOKENS)
        cache.pool.release(cache.pool.allocate(11))
        assert len(cache.pool.index) == 2
        hit = cache.lookup(table(), [*TOKENS, 1])
        assert hit.num_tokens == 24
        assert cache.num_matching_tokens(table(), [*TOKENS, 1]) == 24

    def test_a_tail_is_copied_in_every_group(self) -> None:
        cache = manager()
        cache.release(written(cache, TOKENS[:11]), TOKENS[:11])
        new = table()
        hit = cache.lookup(new, TOKENS)
        assert (hit.num_tokens, hit.num_copied, hit.num_blocks) == (11, 1, 5)
        lacking = cache.num_blocks_lacking(hit, 24)
        # Of the prefix 5 and 2 blocks; 7 and 5 fresh ones (to 19); two sources.
        assert lacking == 7 + 5 + 5 + 2 + 2 - 40
        cache.admit(new, hit, 24)
        copies = cache.block_copies(new, hit)
        assert [(target, count) for _, target, count in copies] == [
            (ids[5], 1) for ids in cache.block_ids(new)
        ]
        assert all(cache.pool.ref_count(source) == 1 for source, _, _ in copies)
        without = hit.without_copy()
        assert (without.num_tokens, without.num_copied) == (10, 0)
        assert cache.num_blocks_lacking(without, 24) == 7 + 4 - cache.num_free_blocks

    def test_a_tail_that_one_group_lacks_is_not_copied(self) -> None:
        cache = manager()
        cache.release(written(cache, TOKENS[:11]), TOKENS[:11])
        tails = [i for i, c in enumerate(cache.pool._contents) if c is not None and c.partial]
        assert len(tails) == 2
        cache.pool.acquire(tails[1])
        while cache.pool.ref_count(tails[0]) == 0:
            cache.pool.allocate(1)
        assert cache.lookup(table(), TOKENS).num_copied == 0

    def test_prompts_that_must_be_computed_take_nothing(self) -> None:
        cache = manager()
        cache.release(written(cache, TOKENS), TOKENS)
        new = table()
        new.skip_reading = True
        assert cache.lookup(new, [*TOKENS, 1]) == PrefixHit()
        assert len(new.keys) == 12
        assert cache.num_matching_tokens(new, [*TOKENS, 1]) == 0


class TestHostMemory:
    def swapped(self, cache: CacheManager) -> tuple[BlockTable, dict[int, int]]:
        """A table that was copied out and released; what its blocks are called in host memory."""
        new = written(cache, TOKENS)
        host = dict(cache.swap_out(new, 24))
        assert list(host) == list(cache.held_blocks(new))
        return new, host

    def test_only_what_is_held_is_copied_out_and_it_comes_back_to_its_place(self) -> None:
        cache = manager((None, 5, 9), num_swap_blocks=30)
        new, host = self.swapped(cache)
        assert cache.num_blocks_to_swap(new, 24) == len(host) == 12 + 2 + 4
        where = [
            {place: host[ids[place]] for place in range(first, 12)}
            for ids, first in zip(cache.block_ids(new), first_indices(new), strict=True)
        ]
        cache.release(new, TOKENS)
        cache.pool.release(cache.pool.allocate(40))  # Nothing is cached any more.
        hit = cache.lookup(new, [*TOKENS, 1])
        assert (hit.num_tokens, hit.is_swapped) == (24, True)
        assert cache.num_blocks_lacking(hit, 25) == 13 + 3 + 5 - 40
        cache.admit(new, hit, 25)
        pairs = cache.swap_in(new, hit)
        tables = cache.block_ids(new)
        assert sorted(pairs) == sorted(
            (tables[group][place], host_id)
            for group, places in enumerate(where)
            for place, host_id in places.items()
        )
        assert cache.swap.num_free == 30
        cache.publish(new, [*TOKENS, 1], 25)
        cache.check_table(new)

    def test_what_is_still_cached_is_not_copied_back(self) -> None:
        cache = manager(num_swap_blocks=30)
        new, _ = self.swapped(cache)
        cache.release(new, TOKENS)
        last_of_window = cache.pool.index.find(new.keys[11] + cache._marks[1])
        assert last_of_window is not None
        cache.pool._take_off_list(last_of_window)
        cache.pool._forget(last_of_window)
        hit = cache.lookup(new, [*TOKENS, 1])
        assert (hit.num_tokens, hit.num_blocks, hit.is_swapped) == (24, 11, True)
        cache.admit(new, hit, 25)
        # The window's as a whole, and the last of the others.
        assert len(cache.swap_in(new, hit)) == 2 + 1
        cache.check_table(new)

    def test_a_copy_that_is_planned_keeps_what_a_step_in_flight_leaves_behind(self) -> None:
        cache = manager(num_swap_blocks=30)
        new = table()
        cache.admit(new, PrefixHit(), 8)
        host = cache.swap_out(new, 8)
        cache.publish(new, TOKENS, 8)
        assert [block for block, _ in host] == list(cache.held_blocks(new))
        cache.release(new, TOKENS)

    def test_a_table_that_gave_up_its_copy_moves_on(self) -> None:
        cache = manager(num_swap_blocks=30)
        new = table()
        cache.admit(new, PrefixHit(), 8)
        cache.swap_out(new, 8)
        cache.drop_swapped(new)
        cache.publish(new, TOKENS, 8)
        assert first_indices(new) == [0, 2]


@pytest.mark.parametrize("windows", [(None,), (None, 8)])
class TestSettings:
    """What the configuration says reaches the manager."""

    @staticmethod
    def make(
        windows: tuple[int | None, ...], num_swap_blocks: int = 0, **options: Any
    ) -> CacheManager:
        config = EngineConfig(model="toy", block_size=2, **options)
        return create_cache_manager(config, 40, num_swap_blocks, kinds_of(windows))

    @pytest.mark.parametrize(
        ("options", "num_cached"),
        [
            ({"prefix_cache_tenant_ceiling": 0.1}, 4),
            ({"prefix_cache_tenant_ceiling": 0.05}, 2),
            ({"enable_prefix_caching": False}, 0),
            ({}, None),
        ],
    )
    def test_how_much_of_a_tenant_stays_cached(
        self, windows: tuple[int | None, ...], options: dict[str, Any], num_cached: int | None
    ) -> None:
        cache, token_ids = self.make(windows, **options), TOKENS[:10]
        new = table("loud")
        cache.admit(new, cache.lookup(new, token_ids), len(token_ids))
        cache.grow(new, max(new.num_logical_blocks, cache.num_blocks_for(len(token_ids))))
        cache.publish(new, token_ids, len(token_ids))
        cache.release(new, token_ids)
        assert len(cache.pool.index) == (5 * len(windows) if num_cached is None else num_cached)

    def test_how_many_blocks_host_memory_has(self, windows: tuple[int | None, ...]) -> None:
        assert self.make(windows, num_swap_blocks=7).swap.num_blocks == 7


class TestShares:
    def test_a_ceiling_counts_the_blocks_of_all_groups(self) -> None:
        cache = manager((None, 100), num_blocks=40, tenant_ceiling=0.2)
        cache.release(written(cache, TOKENS[:16], "loud"), TOKENS[:16])
        assert cache.lookup(table("loud"), TOKENS).num_tokens == 8
        cache.pool.check_integrity()

    def test_a_floor_protects_the_windows_of_a_quiet_owner(self) -> None:
        cache = manager(tenant_floor=0.2)
        quiet = TOKENS[:8]
        cache.release(written(cache, quiet, "quiet"), quiet)
        for start in range(30, 300, 24):
            loud = list(range(start, start + 24))
            cache.release(written(cache, loud, "loud"), loud)
        assert cache.lookup(table("quiet"), [*quiet, 9]).num_tokens == 8


@dataclass
class Holder:
    table: BlockTable
    token_ids: list[int]
    num_written: int
    state: tuple[int, ...] = ()
    contents: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)


class CacheMachine(RuleBasedStateMachine):
    """Requests come, are computed, parked in host memory and go, in any order. A shadow memory says
    what each block holds, so that a block which anybody lost, or got twice, shows."""

    @initialize(
        windows=st.sampled_from([(None, 3), (None, 4, 4, 1), (2,), (7, 2), (None, None, 5)]),
        num_blocks=st.integers(12, 40),
        chunk_tokens=st.integers(1, 8),
        window_step=st.sampled_from([1, 3, 4]),
        enable_prefix_caching=st.booleans(),
        tenant_ceiling=st.sampled_from([1.0, 0.3]),
        num_snapshots=st.sampled_from([None, None, 1, 5]),
    )
    def start(
        self,
        windows: tuple[int | None, ...],
        num_blocks: int,
        num_snapshots: int | None,
        **options: Any,
    ) -> None:
        self.has_states = num_snapshots is not None
        if num_snapshots is not None:
            options["states"] = [RecurrentState(num_snapshots, answer_stride=4)]
        num_swap_blocks = 0 if self.has_states else 30
        self.cache = manager(windows, num_blocks, num_swap_blocks=num_swap_blocks, **options)
        self.snapshots: dict[int, tuple[int, ...]] = {}
        self.taken: list[tuple[Holder, int, int]] = []
        self.running: list[Holder] = []
        self.swapped: list[Holder] = []
        # (block, slot) to the tokens up to there, and the group whose layers wrote it.
        self.memory: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        self.host: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}

    @rule(
        token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        grouped=st.booleans(),
    )
    def admit(self, token_ids: list[int], grouped: bool) -> None:
        new = BlockTable({"salt": ""}, group="g" if grouped else "")
        self.enter(Holder(new, token_ids, 0))

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.swapped) - 1))
        if self.enter(self.swapped[index]):
            del self.swapped[index]

    def enter(self, holder: Holder) -> bool:
        cache, token_ids = self.cache, holder.token_ids
        hit = cache.lookup(holder.table, token_ids)
        quick = cache.num_matching_tokens(holder.table, token_ids)
        assert hit.is_swapped or quick == hit.num_tokens - hit.num_copied
        if cache.num_blocks_lacking(hit, len(token_ids)) > 0:
            hit = hit.without_copy()
            if cache.num_blocks_lacking(hit, len(token_ids)) > 0:
                return False
        cache.admit(holder.table, hit, len(token_ids))
        for block_id, host_id in cache.swap_in(holder.table, hit):
            for slot in range(2):
                self.memory[block_id, slot] = self.host[host_id, slot]
        copies = cache.block_copies(holder.table, hit)
        for source, target, count in copies:
            for slot in range(count):
                self.memory[target, slot] = self.memory[source, slot]
        cache.pool.release(source for source, _, _ in copies)
        loaded = cache.begin_states(holder.table, hit, len(token_ids))
        assert self.has_states or not loaded
        holder.state = self.snapshots[loaded[0]] if loaded else ()
        holder.num_written = holder.table.num_written = hit.num_tokens
        self.running.append(holder)
        return True

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_rejected=st.integers(0, 2))
    def compute(self, data: st.DataObject, num_rejected: int) -> None:
        """A chunk, the last tokens of which may be drafts that are taken back."""
        holder = data.draw(st.sampled_from(self.running))
        cache, held = self.cache, holder.table
        start = holder.num_written
        end = min(start + cache._chunk_tokens, len(holder.token_ids))
        if end == len(holder.token_ids):
            holder.token_ids = [*holder.token_ids, len(holder.token_ids) % 2]
        num_logical_blocks = cache.num_blocks_for(end)
        if cache.num_blocks_to_grow(held, num_logical_blocks) > cache.num_free_blocks:
            return
        if num_logical_blocks > held.num_logical_blocks:
            cache.grow(held, num_logical_blocks)
        for group, block_ids in enumerate(cache.block_ids(held)):
            for position in range(start, end):
                prefix = tuple(holder.token_ids[: position + 1])
                self.memory[block_ids[position // 2], position % 2] = group, prefix
        if self.has_states:
            assert holder.state == tuple(holder.token_ids[:start]), "a state of other tokens"
            num_rejected, holder.state = 0, tuple(holder.token_ids[:end])
        taken = cache.take_snapshots(held, start, end)
        for num_tokens, snapshot in taken:
            assert start < num_tokens <= end
            self.snapshots[snapshot] = tuple(holder.token_ids[:num_tokens])
        holder.num_written = max(end - num_rejected, start)
        cache.publish(held, holder.token_ids, holder.num_written)
        self.taken += [(holder, *one) for one in taken]

    @precondition(lambda self: self.taken)
    @rule(was_stopped=st.booleans())
    def step_is_over(self, was_stopped: bool) -> None:
        """Its snapshots can be found from now on, unless a stop token came before them."""
        holder, num_tokens, snapshot = self.taken.pop(0)
        known = holder.token_ids[: num_tokens - 1] if was_stopped else holder.token_ids
        self.cache.keep_snapshot(holder.table, known, num_tokens, snapshot)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), swap=st.booleans())
    def leave(self, data: st.DataObject, swap: bool) -> None:
        cache = self.cache
        holder = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        num_blocks = cache.num_blocks_to_swap(holder.table, holder.num_written)
        if swap and holder.num_written and num_blocks <= cache.swap.num_free:
            for block_id, host_id in cache.swap_out(holder.table, holder.num_written):
                for slot in range(2):
                    self.host[host_id, slot] = self.memory.get((block_id, slot), (-1, ()))
            self.swapped.append(holder)
        cache.release(holder.table, holder.token_ids)

    @invariant()
    def every_query_finds_what_it_looks_at(self) -> None:
        for holder in getattr(self, "running", ()):
            self.cache.check_table(holder.table)
            for group, window in enumerate(self.cache.windows):
                block_ids = holder.table.layer_groups[group].block_ids
                seen = holder.num_written - (window or holder.num_written + 1) + 1
                for position in range(max(0, seen), holder.num_written):
                    expected = group, tuple(holder.token_ids[: position + 1])
                    assert self.memory[block_ids[position // 2], position % 2] == expected

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "cache"):
            return
        pool = self.cache.pool
        pool.check_integrity()
        self.cache.swap.check_integrity()
        self.cache.check_states(snapshot for _, _, snapshot in self.taken)
        refs = [0] * pool.num_blocks
        for holder in self.running:
            for block_id in self.cache.held_blocks(holder.table):
                refs[block_id] += 1
        assert refs == [pool.ref_count(block_id) for block_id in range(pool.num_blocks)]

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for holder in self.running:
                self.cache.release(holder.table, holder.token_ids)
            assert self.cache.num_free_blocks == self.cache.pool.num_blocks


@pytest.mark.parametrize("num_examples", [60, pytest.param(600, marks=pytest.mark.nightly)])
def test_any_order_of_requests(num_examples: int) -> None:
    run_state_machine_as_test(
        CacheMachine,
        settings=settings(max_examples=num_examples, stateful_step_count=40, deadline=None),
    )
