"""Blocks run short: who gives way, who waits for what is coming, and who may not come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.request import RequestState
from tests.engine.scheduler.harness import Harness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.request import Request

BLOCK_SIZE = 4
WINDOWS = pytest.mark.parametrize("windows", [(None,), (None, 3), (5, None, 5)], ids=str)
OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlap"])


def small(num_blocks: int, **options: Any) -> Harness:
    options = {"watermark": 0.0, "enable_prefix_caching": False} | options
    return Harness(num_blocks=num_blocks, block_size=BLOCK_SIZE, **options)


def count_rankings(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each."""
    calls: list[int] = []
    policy = harness.scheduler.policy
    ranked = policy.ranked

    def counted(running: Iterable[Request]) -> list[Request]:
        calls.append(1)
        in_order: list[Request] = ranked(running)
        return in_order

    monkeypatch.setattr(policy, "ranked", counted)
    return calls


def crowd(harness: Harness) -> None:
    """Of several lengths, so that their blocks end in different steps."""
    for index, num_prompt in enumerate((2, 3, 5, 6, 9, 10)):
        harness.add(f"r{index}", num_prompt, max_tokens=24, ignore_eos=True)


def chunked(num_blocks: int, **options: Any) -> Harness:
    """A prompt whose second chunk needs two blocks, behind a request that has one; both overlap."""
    harness = small(
        num_blocks,
        async_scheduling=True,
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=8,
        max_num_batched_tokens=16,
        **options,
    )
    harness.add("ends", 2, max_tokens=9, ignore_eos=True)
    harness.add("long", 16, max_tokens=1)
    return harness


def planned(harness: Harness) -> set[str]:
    return {chunk.request_id for chunk in harness.runner.plans[-1].chunks}


class TestRanking:
    def test_the_least_important_gives_way_however_long_it_runs(self) -> None:
        harness = small(6, policy="priority", priority_aging_s=1e9)
        harness.add("low", 3, priority=1, max_tokens=20, ignore_eos=True)
        harness.step()
        harness.add("high", 3, priority=0, max_tokens=20, ignore_eos=True)
        while harness.core.stats().num_preemptions == 0:
            harness.step()
        assert list(harness.scheduler.running) == ["high"]
        harness.run()
        assert list(harness.finished) == ["high", "low"]
        harness.check_outputs()

    def test_requests_are_ranked_when_their_next_blocks_are_not_free(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And in no other step: it takes time."""
        harness, seen = small(20, max_num_batched_tokens=64), set()
        crowd(harness)
        rankings = count_rankings(harness, monkeypatch)
        while harness.core.has_unfinished:
            num_free = harness.scheduler.cache.num_free_blocks
            num_needed = sum(
                len(request.token_ids) > request.block_table.num_logical_blocks * BLOCK_SIZE
                for request in harness.scheduler.running.values()
            )
            harness.step()
            assert bool(rankings) == (num_needed > num_free)
            seen.add((num_needed > num_free) - (num_needed < num_free))
            rankings.clear()
        assert seen == {-1, 0, 1}
        harness.check_outputs()

    @WINDOWS
    @OVERLAP
    @pytest.mark.parametrize(
        ("chunk", "num_lookahead"),
        [(0, 0), (5, 0), (5, 6)],
        ids=["whole", "chunks", "extra slots"],
    )
    def test_nobody_gives_way_unranked(
        self,
        chunk: int,
        num_lookahead: int,
        overlap: bool,
        windows: tuple[int | None, ...],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        harness = small(
            20 * len(windows),
            max_num_batched_tokens=16,
            long_prefill_token_threshold=chunk,
            scheduler_reserve_full_isl=not chunk,
            async_scheduling=overlap,
            windows=windows,
            num_lookahead_tokens=num_lookahead,
        )
        for index in range(9):
            harness.add(f"r{index}", 6 + 3 * index, max_tokens=30, ignore_eos=True)
        rankings, num_before, num_ranked, num_steps = count_rankings(harness, monkeypatch), 0, 0, 0
        while harness.core.has_unfinished:
            harness.step()
            num_preemptions = harness.core.stats().num_preemptions
            assert num_preemptions == num_before or rankings
            num_ranked, num_steps = num_ranked + len(rankings), num_steps + 1
            num_before = num_preemptions
            rankings.clear()
        assert num_before > 0
        assert num_ranked < num_steps * 2 / 3
        harness.check_outputs()


class TestTurns:
    """Tenants between whom blocks are short, with prompts in chunks: whoever gave way holds least
    when it comes back, and could have the other give way before either got any further."""

    @given(
        requests=st.lists(
            st.tuples(st.integers(1, 12), st.integers(1, 14), st.sampled_from("ab")),
            min_size=2,
            max_size=5,
        ),
        num_steps=st.integers(0, 3),
        quantum=st.sampled_from([0.0, 20.0]),
        overlap=st.booleans(),
        num_lookahead=st.sampled_from([0, 5]),
    )
    @example([(1, 13, "b"), (1, 14, "a")], 1, 0.0, False, 0)  # gave way to the one that runs
    @example([(4, 10, "a"), (9, 5, "b")], 0, 0.0, False, 0)  # and to one that was just admitted
    @settings(max_examples=100, deadline=None)
    def test_nobody_takes_turns_without_progress(
        self,
        requests: list[tuple[int, int, str]],
        num_steps: int,
        quantum: float,
        overlap: bool,
        num_lookahead: int,
    ) -> None:
        harness = small(
            4,
            policy="fair_share",
            fair_share_quantum=quantum,
            scheduler_reserve_full_isl=False,
            long_prefill_token_threshold=3,
            max_num_batched_tokens=8,
            max_num_seqs=3,
            async_scheduling=overlap,
            num_lookahead_tokens=num_lookahead,
        )
        for index, (num_prompt, num_generated, tenant) in enumerate(requests):
            num_generated = min(num_generated, 16 - num_prompt)
            options: dict[str, Any] = {
                "max_tokens": num_generated,
                "ignore_eos": True,
                "fair_key": tenant,
            }
            harness.add(f"r{index}", num_prompt, **options)
            harness.step(num_steps)
        harness.run(1000)
        harness.check_outputs()


class TestComingBlocks:
    def test_room_is_made_at_once_for_all_who_need_it(self) -> None:
        """Blocks of those who give way come with the end of the step in flight: each is promised
        to one request only."""
        harness = small(4, async_scheduling=True)
        for name in "abcd":
            harness.add(name, 3, max_tokens=6, ignore_eos=True)
        while harness.core.stats().num_preemptions == 0:
            harness.step()
        assert harness.core.stats().num_preemptions == 2
        harness.step()
        assert planned(harness) == {"a", "b"}
        harness.run()
        harness.check_outputs()

    def test_nobody_comes_in_while_a_running_request_waits_for_blocks(self) -> None:
        harness = chunked(4)
        harness.step()
        harness.add("new", 3, max_tokens=1)
        harness.core.abort(["ends"])  # its block comes with the end of the step in flight
        assert harness.scheduler.cache.num_free_blocks == 1
        harness.step()
        assert "new" not in harness.scheduler.running
        harness.step()
        assert planned(harness) == {"long"}
        harness.run()
        harness.check_outputs()

    def test_nobody_comes_in_while_somebody_gives_way(self) -> None:
        """Not even the one whose turn it is, in the row that has become free."""
        harness = small(6, max_num_seqs=2)
        for name in ("first", "second"):
            harness.add(name, 7, max_tokens=12, ignore_eos=True)
        harness.step()
        harness.add("new", 1, max_tokens=1)
        while harness.core.stats().num_preemptions == 0:
            harness.step()
        assert planned(harness) == {"first"}
        harness.run()
        harness.check_outputs()


class TestLookahead:
    """Places for drafts behind the tokens: nice to have, but nobody gives way for them."""

    def test_they_are_taken_as_long_as_blocks_are_free(self) -> None:
        harness = small(64, num_lookahead_tokens=5)
        crowd(harness)
        harness.step()
        while harness.core.has_unfinished:
            harness.step()
            for request in harness.scheduler.running.values():
                ahead = request.num_computed_tokens + 5
                assert len(request.block_table.layer_groups[0].block_ids) == -(-ahead // BLOCK_SIZE)
        harness.check_outputs()

    def test_the_last_free_block_is_taken(self) -> None:
        harness = small(2, num_lookahead_tokens=3)
        harness.add("a", 3, max_tokens=5, ignore_eos=True)
        harness.step(2)
        assert harness.scheduler.cache.num_free_blocks == 0
        harness.run()

    def test_who_finds_none_does_without(self) -> None:
        harness = small(3, num_lookahead_tokens=3)
        for name in "ab":
            harness.add(name, 3, max_tokens=2, ignore_eos=True)
        harness.step(2)
        assert harness.finished.keys() == {"a", "b"}
        assert harness.core.stats().num_preemptions == 0

    def test_they_take_nothing_of_what_another_waits_for(self) -> None:
        harness = chunked(7, num_lookahead_tokens=3)
        harness.add("short", 5, max_tokens=9, ignore_eos=True)
        harness.step()
        harness.core.abort(["ends"])
        harness.step()
        assert planned(harness) == {"short"}
        assert len(harness.scheduler.running["short"].block_table.layer_groups[0].block_ids) == 2
        assert harness.core.stats().num_preemptions == 0
        harness.run()
        harness.check_outputs()


def test_who_fits_exactly_comes_in_beside_others() -> None:
    harness = small(3)
    harness.add("runs", 2, max_tokens=3, ignore_eos=True)
    harness.step()
    harness.add("fits", 8, max_tokens=1)
    harness.step()
    assert planned(harness) == {"runs", "fits"}


def test_no_more_give_way_than_is_lacking() -> None:
    harness = small(4, policy="priority", priority_aging_s=1e9)
    for name in ("one", "two"):
        harness.add(name, 5, max_tokens=4, priority=1, ignore_eos=True)
    harness.step()
    harness.add("high", 8, max_tokens=1, priority=0)
    harness.step(2)
    assert harness.finished["high"].finish_reason in ("length", "stop")
    assert harness.core.stats().num_preemptions == 1
    assert "one" in harness.scheduler.running
    harness.run()
    harness.check_outputs()


@pytest.mark.parametrize(("num_blocks", "num_preemptions"), [(7, 0), (8, 1)])
def test_nobody_gives_way_for_less_than_is_lacking(num_blocks: int, num_preemptions: int) -> None:
    harness = small(num_blocks, policy="priority", priority_aging_s=1e9)
    harness.add("equal", 13, max_tokens=3, priority=0, ignore_eos=True)
    harness.add("low", 9, max_tokens=3, priority=1, ignore_eos=True)
    harness.step()
    harness.add("high", 16, max_tokens=1, priority=0)
    harness.step(2)
    assert harness.core.stats().num_preemptions == num_preemptions
    harness.run()
    harness.check_outputs()


def test_what_running_requests_take_meanwhile_is_lacking_too() -> None:
    """When it came, one block of the eight was free; then ``low`` grew into that."""
    harness = Harness(num_blocks=8, block_size=8, watermark=0.0, policy="priority")
    harness.add("equal", 25, max_tokens=8, priority=0, ignore_eos=True)
    harness.add("low", 23, max_tokens=8, priority=1, ignore_eos=True)
    harness.step()
    harness.add("high", 40, max_tokens=1, priority=0)
    harness.step(5)
    assert harness.core.stats().num_preemptions == 0, "the four blocks of low are too few"
    harness.run()
    harness.check_outputs()


def test_while_drafts_are_checked_no_more_come_in_than_can_go_on() -> None:
    """A request whose drafts are in flight takes nothing of the budget of the next step; after it,
    it must have a token in every step again."""
    harness = Harness(max_num_batched_tokens=4, max_num_seqs=8)
    harness.add("a", 3, max_tokens=40, ignore_eos=True)
    harness.step()
    for name in "bcdef":
        harness.add(name, 1, max_tokens=20, ignore_eos=True)
    scheduler = harness.scheduler
    scheduler.running["a"].draft_token_ids = [5, 6]
    in_flight = [scheduler.schedule(), scheduler.schedule()]
    assert [[request.request_id for request in step.requests] for step in in_flight] == [
        ["a", "b"],
        ["b", "c", "d"],
    ]
    assert list(scheduler.running) == ["a", "b", "c", "d"]


def test_what_leaves_the_batch_keeps_nothing_of_it() -> None:
    harness = small(8, draft_hits=0.7)
    for name in ("a", "b"):
        harness.add(name, 8, max_tokens=20, ignore_eos=True)
    while harness.core.stats().num_preemptions == 0:
        harness.step()
    left = harness.core._requests["b"]
    assert left.state is RequestState.PREEMPTED
    assert (left.row, left.num_computed_tokens, left.draft_token_ids) == (-1, 0, [])
    harness.run()
    harness.check_outputs()
