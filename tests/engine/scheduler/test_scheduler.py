from __future__ import annotations

from typing import Any

import pytest

from engine.scheduler.plan import StepResult
from tests.engine.scheduler.harness import Harness

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlap"])


def chunks(harness: Harness, step: int = -1) -> list[tuple[str, int, int, bool]]:
    """What a plan computes: (request, first position, tokens, samples)."""
    return [
        (c.request_id, c.num_computed_tokens, c.num_scheduled_tokens, c.samples)
        for c in harness.runner.plans[step].chunks
    ]


class TestBudget:
    def test_a_long_prompt_is_cut_by_the_budget(self) -> None:
        harness = Harness(max_num_batched_tokens=8, max_num_seqs=4)
        harness.add("a", 20, max_tokens=1)
        harness.run()
        assert [chunks(harness, i) for i in range(3)] == [
            [("a", 0, 8, False)],
            [("a", 8, 8, False)],
            [("a", 16, 4, True)],
        ]
        harness.check_outputs()

    def test_the_threshold_leaves_budget_to_others(self) -> None:
        harness = Harness(max_num_batched_tokens=16, long_prefill_token_threshold=6)
        harness.add("a", 12, max_tokens=1)
        harness.add("b", 5, max_tokens=1)
        harness.step()
        assert chunks(harness) == [("a", 0, 6, False), ("b", 0, 5, True)]

    def test_drafts_leave_a_token_to_each_request_behind(self) -> None:
        harness = Harness(draft_hits=1.0, max_num_batched_tokens=6, max_num_seqs=3)
        for name in "abc":
            harness.add(name, 2, max_tokens=12, ignore_eos=True)
        harness.step()
        sizes = set()
        while True:
            harness.step()
            if harness.finished:
                break
            plan = harness.runner.plans[-1]
            assert [chunk.request_id for chunk in plan.chunks] == ["a", "b", "c"]
            sizes.add(plan.num_tokens)
        assert max(sizes) == 6
        harness.run()
        harness.check_outputs()

    def test_decodes_and_prefill_chunks_share_a_step(self) -> None:
        harness = Harness(max_num_batched_tokens=8)
        harness.add("a", 3, max_tokens=5, ignore_eos=True)
        harness.step()
        harness.add("b", 10, max_tokens=1)
        harness.step()
        assert chunks(harness) == [("a", 3, 1, True), ("b", 0, 7, False)]

    def test_a_prefill_never_takes_the_token_of_a_decode_behind_it(self) -> None:
        harness = Harness(max_num_batched_tokens=8, long_prefill_token_threshold=7)
        harness.add("long", 40, max_tokens=2, ignore_eos=True)
        harness.add("short", 1, max_tokens=20, ignore_eos=True)
        for _ in range(6):
            harness.step()
            assert "short" in {chunk[0] for chunk in chunks(harness)}

    def test_no_more_requests_run_than_the_budget_has_tokens(self) -> None:
        harness = Harness(max_num_batched_tokens=3, max_num_seqs=8)
        for name in "abcdef":
            harness.add(name, 1, max_tokens=10, ignore_eos=True)
        harness.step(3)
        assert len(harness.scheduler.running) == 3
        harness.run()
        harness.check_outputs()

    def test_only_so_many_prompts_are_computed_in_part(self) -> None:
        harness = Harness(
            max_num_batched_tokens=24, long_prefill_token_threshold=8, max_num_partial_prefills=1
        )
        for name in "ab":
            harness.add(name, 20, max_tokens=2)
        harness.step()
        assert chunks(harness) == [("a", 0, 8, False)]
        harness.step(2)
        assert chunks(harness) == [("a", 16, 4, True), ("b", 0, 8, False)]
        harness.run()
        harness.check_outputs()

    def test_a_prompt_that_is_whole_in_one_step_is_no_partial_one(self) -> None:
        """Whether it is computed from its beginning, or behind a cached prefix."""
        harness = Harness(max_num_batched_tokens=24, max_num_partial_prefills=1)
        prompt = list(range(10, 22))
        harness.add("before", prompt, max_tokens=1)
        harness.run()
        for name in "ab":
            harness.add(name, 3, max_tokens=1)
        for last in (30, 31):
            harness.add(f"cached {last}", [*prompt, last], max_tokens=1)
        harness.step()
        assert [chunk[2:] for chunk in chunks(harness)] == [(3, True)] * 2 + [(1, True)] * 2
        harness.run()
        harness.check_outputs()

    def test_max_num_seqs_holds_the_rest_back(self) -> None:
        harness = Harness(max_num_seqs=2)
        for name in "abc":
            harness.add(name, 2, max_tokens=3, ignore_eos=True)
        harness.step()
        assert list(harness.scheduler.running) == ["a", "b"]
        assert harness.core.stats().num_waiting == 1
        harness.run()
        harness.check_outputs()


class TestPreemption:
    def crowd(self, **options: Any) -> Harness:
        """Three requests that fit at first and outgrow the cache together."""
        harness = Harness(num_blocks=8, max_model_len=40, **options)
        for name in "abc":
            harness.add(name, 7, max_tokens=12, ignore_eos=True)
        return harness

    def test_a_preempted_request_keeps_its_place(self) -> None:
        harness = self.crowd()
        harness.add("d", 3, max_tokens=4, ignore_eos=True)
        while harness.core.stats().num_preemptions == 0:
            harness.step()
        assert harness.scheduler.policy.head().request_id == "c"
        harness.run()
        harness.check_outputs()

    def test_recomputed_tokens_are_counted(self) -> None:
        harness = self.crowd(enable_prefix_caching=False)
        harness.run()
        stats = harness.scheduler.stats
        assert stats.recomputed_tokens > 0
        # Each request computes all but its last token once.
        once = sum(len(m.prompt_token_ids) + 12 - 1 for m in harness.messages.values())
        assert stats.scheduled_tokens == once + stats.recomputed_tokens

    def test_a_resumed_request_finds_its_own_prefix(self) -> None:
        with_cache, without = self.crowd(), self.crowd(enable_prefix_caching=False)
        with_cache.run()
        without.run()
        assert (
            with_cache.scheduler.stats.recomputed_tokens < without.scheduler.stats.recomputed_tokens
        )

    def test_the_whole_prompt_is_reserved_at_admission(self) -> None:
        harness = Harness(num_blocks=8, max_num_batched_tokens=8, max_model_len=40)
        harness.add("a", 18, max_tokens=2)
        harness.add("b", 18, max_tokens=2)
        harness.step()
        assert len(harness.runner.plans[0].admissions[0].block_ids[0]) == 5
        harness.run()
        assert harness.core.stats().num_preemptions == 0

    def test_without_the_reservation_two_prefills_collide(self) -> None:
        harness = Harness(
            num_blocks=8,
            max_num_batched_tokens=8,
            long_prefill_token_threshold=4,
            max_model_len=40,
            scheduler_reserve_full_isl=False,
        )
        harness.add("a", 18, max_tokens=2)
        harness.add("b", 18, max_tokens=2)
        harness.run()
        assert harness.core.stats().num_preemptions > 0
        harness.check_outputs()

    def test_the_watermark_keeps_blocks_for_those_who_run(self) -> None:
        harness = Harness(num_blocks=10, watermark=0.5, max_model_len=40)
        harness.add("a", 12, max_tokens=5, ignore_eos=True)
        harness.add("b", 12, max_tokens=5, ignore_eos=True)
        harness.step()
        assert list(harness.scheduler.running) == ["a"]
        harness.run()
        harness.check_outputs()

    def test_a_request_larger_than_the_watermark_still_runs_when_alone(self) -> None:
        harness = Harness(num_blocks=4, watermark=0.9, max_model_len=40)
        harness.add("a", 12, max_tokens=2)
        harness.run()
        harness.check_outputs()


class TestPrefixHits:
    def test_a_hit_is_skipped_work(self) -> None:
        harness = Harness()
        harness.add("a", list(range(10, 22)), max_tokens=1)
        harness.run()
        harness.add("b", list(range(10, 22)), max_tokens=1)
        harness.run()
        assert chunks(harness) == [("b", 11, 1, True)], "the last token is always computed"
        assert harness.finished["b"].num_cached_tokens == 11
        stats = harness.core.stats()
        assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (24, 11)

    def test_a_block_that_matches_in_part_is_copied_and_continued(self) -> None:
        harness = Harness()
        harness.add("a", list(range(10, 22)), max_tokens=1)
        harness.step()
        harness.add("b", [*range(10, 20), 30, 31, 32], max_tokens=3, ignore_eos=True)
        harness.run()
        plan = harness.runner.plans[1]
        ((source, target, count),) = plan.block_copies
        assert count == 2
        assert target == plan.admissions[0].block_ids[0][2]
        assert source == harness.runner.plans[0].admissions[0].block_ids[0][2]
        assert chunks(harness, 1) == [("b", 10, 3, True)]
        harness.check_outputs()

    def test_a_cache_too_full_for_a_copy_does_without(self) -> None:
        harness = Harness(num_blocks=4, max_model_len=20)
        harness.add("a", [10, 11, 12, 13, 14, 15], max_tokens=1)
        harness.run()
        harness.add("b", [10, 11, 12, 13, 14, 15, 17], max_tokens=9, ignore_eos=True)
        harness.add("c", [10, 11, 12, 13, 14, *range(20, 31)], max_tokens=1)
        harness.run()
        harness.check_outputs()
        assert harness.finished["c"].num_cached_tokens == 4

    @OVERLAP
    def test_equal_prompts_are_computed_once(self, overlap: bool) -> None:
        harness = Harness(async_scheduling=overlap, max_num_batched_tokens=9, max_num_seqs=4)
        for name in "abcd":
            harness.add(name, list(range(10, 30)), max_tokens=3, ignore_eos=True)
        harness.run()
        harness.check_outputs()
        assert harness.scheduler.stats.scheduled_tokens <= 20 + 4 * 2 + 3 * 4
        for name in "bcd":
            assert harness.finished[name].num_cached_tokens >= 16

    def test_who_waits_for_a_block_holds_nobody_up(self) -> None:
        harness = Harness()
        harness.add("a", list(range(10, 22)), max_tokens=1)
        harness.add("same", list(range(10, 22)), max_tokens=1)
        harness.add("other", 12, max_tokens=1)
        harness.step()
        assert [chunk[0] for chunk in chunks(harness)] == ["a", "other"]
        assert harness.core.stats().num_waiting == 1
        harness.step()
        assert chunks(harness) == [("same", 11, 1, True)]

    def test_who_must_compute_its_prompt_waits_for_nobody(self) -> None:
        """Log-probabilities of a prompt come from computing it."""
        harness, prompt = Harness(), list(range(10, 22))
        harness.add("a", prompt, max_tokens=2)
        harness.add("b", prompt, max_tokens=2, prompt_logprobs=0)
        harness.add("c", prompt, max_tokens=2)
        harness.step()
        assert chunks(harness) == [("a", 0, 12, True), ("b", 0, 12, True)]
        harness.run()
        harness.check_outputs()

    def test_few_wait_for_a_block_however_many_could(self) -> None:
        harness = Harness(num_blocks=200, max_num_seqs=100, async_scheduling=True)
        for i in range(100):
            harness.add(f"r{i}", list(range(10, 22)), max_tokens=2, ignore_eos=True)
        harness.step()
        assert len(harness.scheduler.in_flight) == 1, "who waits for it is not released yet"
        assert 30 <= len(harness.scheduler.waiting.prefix_waits) <= 33
        harness.run()
        harness.check_outputs()

    def test_blocks_of_a_step_in_flight_cannot_be_found_yet(self) -> None:
        harness = Harness(async_scheduling=True)
        prompt = list(range(10, 22))
        harness.add("a", prompt, max_tokens=6, ignore_eos=True)
        harness.step()
        harness.add("b", prompt, max_tokens=1)
        harness.step()
        assert [chunk[0] for chunk in chunks(harness)] == ["a"]
        harness.step()
        assert chunks(harness)[-1] == ("b", 11, 1, True)
        harness.run()
        harness.check_outputs()

    def test_generated_tokens_are_found_by_the_next_turn(self) -> None:
        harness = Harness()
        harness.add("a", list(range(10, 18)), max_tokens=9, ignore_eos=True)
        harness.run()
        harness.add("b", [*range(10, 18), *harness.tokens["a"]], max_tokens=1)
        harness.run()
        assert harness.finished["b"].num_cached_tokens == 16


class TestOverlap:
    def test_a_step_is_planned_before_the_last_one_is_collected(self) -> None:
        harness = Harness(async_scheduling=True)
        harness.add("a", 3, max_tokens=3, ignore_eos=True)
        harness.run()
        assert harness.runner.calls == [
            "forward 0",
            "sample 0",
            "forward 1",
            "sample 1",
            "collect 0",
            "forward 2",
            "sample 2",
            "collect 1",
            "collect 2",
        ]

    def test_a_length_stop_is_foreseen(self) -> None:
        harness = Harness(async_scheduling=True)
        harness.add("a", 3, max_tokens=4, ignore_eos=True)
        harness.run()
        assert len(harness.runner.plans) == 4
        assert harness.finished["a"].finish_reason == "length"

    def test_a_stop_token_costs_one_dropped_row(self) -> None:
        free = Harness(max_model_len=60)
        free.add("a", 3, max_tokens=50, ignore_eos=True)
        free.run()
        stop = free.tokens["a"][5]
        first = free.tokens["a"].index(stop)
        harness = Harness(async_scheduling=True)
        harness.add("a", 3, max_tokens=50, ignore_eos=True, stop_token_ids=(stop,))
        harness.run()
        assert harness.tokens["a"] == free.tokens["a"][: first + 1]
        assert len(harness.runner.plans) == first + 2
        assert harness.finished["a"].stop_reason == stop

    def test_an_abort_holds_the_blocks_until_the_step_is_over(self) -> None:
        harness = Harness(async_scheduling=True)
        harness.add("a", 9, max_tokens=20, ignore_eos=True)
        harness.step(2)
        harness.core.abort(["a"])
        total = harness.core.stats().num_total_blocks
        assert harness.core.stats().num_free_blocks < total
        harness.step()
        assert harness.core.stats().num_free_blocks == total
        harness.run()
        assert harness.finished["a"].finish_reason == "abort"


def test_what_a_step_costs_is_learnt_from_when_the_one_before_was_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    harness = Harness(clock=lambda: now[0], num_swap_blocks=8)
    scheduler, seen = harness.scheduler, []
    monkeypatch.setattr(scheduler._costs, "observe", lambda *given: seen.append(given))
    harness.add("a", 6, max_tokens=9, ignore_eos=True)

    def plan(at_s: float) -> int:
        now[0] = at_s
        step_id: int = scheduler.schedule().plan.step_id
        return step_id

    def update(step_id: int, at_s: float) -> None:
        now[0] = at_s
        scheduler.update(StepResult(step_id, [[5]]))

    first, second = plan(1.0), plan(2.0)
    update(first, 6.0)
    update(second, 7.5)
    update(plan(9.0), 9.25)
    assert seen == [(6, 5.0), (1, 1.5), (1, 0.25)]
    step = scheduler.schedule()
    step.plan.swap_outs.append((0, 0))  # copies take time, too
    scheduler.update(StepResult(step.plan.step_id, [[5]]))
    assert len(seen) == 3
