"""Requests whose layers do not all look equally far back."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cache.groups import kinds_of, peak_blocks
from tests.engine.scheduler.harness import Harness

WINDOWS = (None, 6, 6)
BUDGET = 12


def harness(**options: Any) -> Harness:
    options.setdefault("windows", WINDOWS)
    options.setdefault("max_num_batched_tokens", BUDGET)
    options.setdefault("max_num_seqs", 8)
    return Harness(**options)


def most_running(engine: Harness) -> int:
    most = 0
    while engine.core.has_unfinished:
        engine.step()
        most = max(most, len(engine.scheduler.running))
    return most


@pytest.mark.parametrize("overlap", [False, True])
def test_what_is_swapped_out_comes_back_to_every_group(overlap: bool) -> None:
    engine = harness(
        num_blocks=50,
        num_swap_blocks=200,
        async_scheduling=overlap,
        enable_prefix_caching=False,
        watermark=0.0,
    )
    for name in "abcd":
        engine.add(name, 20, max_tokens=50, ignore_eos=True)
    engine.run()
    engine.check_outputs()
    assert engine.core.stats().swapped_in_blocks > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_who_needs_none_of_its_blocks_is_preempted_without_a_copy(overlap: bool) -> None:
    engine = harness(
        windows=(1,),
        block_size=1,
        num_blocks=30,
        num_swap_blocks=40,
        swap_s_per_block=0.0,
        max_num_seqs=1,
        max_num_batched_tokens=3,
        policy="priority",
        async_scheduling=overlap,
    )
    engine.add("later", 3, max_tokens=9, ignore_eos=True, priority=1)
    engine.step(4)
    engine.add("sooner", 3, max_tokens=9, ignore_eos=True, priority=0)
    engine.run()
    engine.check_outputs()
    stats = engine.core.stats()
    assert stats.num_preemptions > 0
    assert stats.swapped_in_blocks == 0


def test_a_prefix_is_found_behind_the_windows() -> None:
    engine = harness(num_blocks=60)
    engine.add("a", list(range(4, 36)), max_tokens=8, ignore_eos=True)
    engine.run()
    engine.add("b", [*range(4, 36), 5, 6, 7], max_tokens=8, ignore_eos=True)
    engine.run()
    engine.check_outputs()
    assert engine.core.stats().prefix_cache_hits >= 32
    (admission,) = [a for p in engine.runner.plans for a in p.admissions if a.request_id == "b"]
    # Behind 32 tokens a window of 6 sees 27 and on: from the seventh block.
    assert [table[:8].count(-1) for table in admission.block_ids[1:]] == [6, 6]


def test_what_a_window_leaves_behind_lets_the_next_request_in() -> None:
    engine = harness(windows=(6,), num_blocks=14, max_num_batched_tokens=40, watermark=0.0)
    engine.add("first", 30, max_tokens=20, ignore_eos=True)
    engine.add("second", 30, max_tokens=2, ignore_eos=True)
    engine.step()
    assert [*engine.scheduler.running] == ["first"], "eight blocks each, at first"
    engine.step()
    assert [*engine.scheduler.running] == ["first", "second"]
    engine.run()
    engine.check_outputs()


def test_branches_share_their_prompt_in_every_group() -> None:
    engine = harness(num_blocks=60, enable_prefix_caching=False)
    for name in "abc":
        engine.add(name, list(range(4, 36)), group="g", max_tokens=8, seed=1, ignore_eos=True)
    engine.run()
    engine.check_outputs()
    num_computed = engine.core.stats().scheduled_tokens
    assert num_computed < 32 + 3 * (4 + 8), "the prompt was computed once"


def test_a_parked_request_finds_itself_again() -> None:
    engine = harness(num_blocks=60)
    engine.add("a", 30, max_tokens=20, ignore_eos=True)
    engine.step(8)
    engine.core.park(["a"])
    assert engine.core.stats().num_free_blocks == 60
    engine.core.unpark(["a"])
    engine.run()
    engine.check_outputs()
    assert engine.core.stats().recomputed_tokens < 8


def test_the_longest_request_runs_to_its_end_in_the_smallest_cache() -> None:
    for overlap in (False, True):
        engine = harness(num_blocks=45, max_model_len=1000, async_scheduling=overlap)
        longest = engine.max_total
        assert longest < 1000
        assert peak_blocks(kinds_of(WINDOWS), longest - 1, 4, 2 * BUDGET) == 45
        engine.add("whole", longest // 2, max_tokens=None, ignore_eos=True)
        engine.add("too long", longest, max_tokens=1)
        engine.run()
        engine.check_outputs(errors={"too long"})
        assert len(engine.tokens["whole"]) == longest - longest // 2


def test_windows_alone_let_a_request_be_longer_than_the_cache() -> None:
    engine = harness(windows=(6,), num_blocks=12, max_model_len=199)
    engine.add("long", 100, max_tokens=99, ignore_eos=True)
    engine.run()
    engine.check_outputs()


@pytest.mark.parametrize("forecast", [False, True])
def test_more_requests_run_at_once_than_if_all_layers_kept_everything(forecast: bool) -> None:
    """A block is a third as large where three groups share the memory."""
    most = {}
    for windows, num_blocks in ((WINDOWS, 3 * 40), ((None,), 40)):
        engine = harness(
            windows=windows,
            num_blocks=num_blocks,
            max_num_batched_tokens=16,
            forecast_admission=forecast,
        )
        for name in "abcdefgh":
            engine.add(name, 60, max_tokens=20, ignore_eos=True)
        most[windows] = most_running(engine)
        engine.check_outputs()
    assert most[(None,)] <= 2
    assert most[WINDOWS] >= 2 * most[(None,)]
