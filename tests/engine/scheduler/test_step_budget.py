from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from hypothesis import example, given
from hypothesis import strategies as st

from engine.scheduler.costs import StepTimes
from engine.scheduler.queue_limits import Queued
from engine.scheduler.step_budget import StepBudget
from tests.engine.scheduler.harness import Harness, config
from tests.engine.scheduler.making import make_request
from tests.engine.scheduler.simulation import Arrival, Simulation, steady

if TYPE_CHECKING:
    from engine.request import Request


def generating(count: int, fair_key: str = "") -> list[Request]:
    return [
        make_request(i, running=True, num_computed_tokens=10, num_generated=1, fair_key=fair_key)
        for i in range(count)
    ]


def at_its_prompt(num_left: int, arrival: int = 10_000, fair_key: str = "") -> Request:
    return make_request(
        arrival,
        running=True,
        num_prompt_tokens=num_left + 7,
        num_computed_tokens=7,
        fair_key=fair_key,
    )


GAP_MS = 50.0


def budget(
    target_gap_ms: float | None = GAP_MS,
    max_num_batched_tokens: int = 8192,
    device: Literal["cuda", "cpu"] = "cuda",
    *,
    fixed_ms: float = 5.0,
    ms_per_token: float = 0.02,
) -> StepBudget:
    """Of an engine whose steps so far took that long."""
    asked = config(max_num_batched_tokens=max_num_batched_tokens, target_gap_ms=target_gap_ms)
    times = StepTimes(0.0)
    for num_tokens in (1, 100, 1000):
        times.observe(num_tokens, (fixed_ms + ms_per_token * num_tokens) / 1000)
    return StepBudget(asked.for_device(device), times)


def queue(num_tokens: int, tenant: str = "") -> dict[str, Queued]:
    return {tenant: Queued(1, num_tokens)} if num_tokens else {}


class TestNumTokens:
    def test_without_an_objective_prompts_take_all(self) -> None:
        assert budget(None).num_tokens(generating(3), queue(100_000)) == 8192
        assert budget(None, device="cpu").num_tokens([], queue(600)) == 8192

    def test_prompts_take_all_while_nobody_generates(self) -> None:
        assert budget().num_tokens([], queue(600)) == 8192
        for num_left in (2, 600):
            assert budget().num_tokens([at_its_prompt(num_left)], {}) == 8192

    def test_on_a_cpu_no_step_is_long_for_the_sake_of_prompts_that_have_time(self) -> None:
        on_cpu = budget(device="cpu", ms_per_token=0.1)
        assert on_cpu.num_tokens([], queue(600)) == 64
        assert on_cpu.num_tokens(generating(3), queue(600)) == 64
        assert on_cpu.num_tokens(generating(64), queue(600)) == 128

    def test_on_a_cpu_one_tenants_prompts_hardly_delay_another_ones_tokens(self) -> None:
        on_cpu, ours = budget(device="cpu"), generating(3, "ours")
        assert on_cpu.num_tokens(ours, queue(10**6, "flood")) == 16
        assert on_cpu.num_tokens([*ours, at_its_prompt(10**6, fair_key="flood")], {}) == 16
        both = {**queue(1000, "ours"), **queue(1000, "flood")}
        assert on_cpu.num_tokens(generating(64, "ours"), both) == 128
        # Nobody else is delayed.
        assert on_cpu.num_tokens(ours, queue(10**6, "ours")) > 700
        on_cpu = budget(device="cpu")
        alone = on_cpu.num_tokens([at_its_prompt(600, fair_key="ours")], queue(600, "flood"))
        assert alone == 64
        # On a GPU those tokens are nearly free.
        assert budget().num_tokens(ours, queue(600, "flood")) == 512

    def test_on_a_cpu_steps_stay_short_for_a_while_after_a_tenant_generated(self) -> None:
        on_cpu, flood = budget(device="cpu"), [at_its_prompt(10**6, fair_key="flood")]
        on_cpu.num_tokens(generating(3, "ours"), {})
        assert {on_cpu.num_tokens(flood, {}) for _ in range(255)} == {16}
        assert on_cpu.num_tokens(flood, {}) > 700
        # It is nobody's harm but its own.
        on_cpu.num_tokens(generating(3, "flood"), {})
        assert on_cpu.num_tokens(flood, {}) > 700

    def test_a_step_is_short_as_long_as_prompts_have_time(self) -> None:
        for count in (1, 16, 64, 256):
            assert budget().num_tokens(generating(count), queue(600)) == 512
        assert budget().num_tokens(generating(400), queue(600)) == 768  # of 800, in whole tiles

    def test_a_step_takes_as_long_as_gaps_allow_if_prompts_would_come_too_late(self) -> None:
        """Whether they wait or are computed already: 5 ms and 0.02 ms for each of 2,250."""
        assert budget().num_tokens(generating(1), queue(10**6)) == 2250 // 128 * 128
        assert budget().num_tokens([*generating(1), at_its_prompt(10**6)], {}) == 2250 // 128 * 128
        assert budget(25.0).num_tokens(generating(1), queue(10**6)) == 1000 // 128 * 128
        assert budget(8.0).num_tokens(generating(1), queue(10**6)) == 512

    @given(num_generating=st.integers(1, 300), num_waiting=st.integers(1, 20_000))
    def test_steps_are_as_short_as_what_waits_can_be_in_time(
        self, num_generating: int, num_waiting: int
    ) -> None:
        num_tokens = budget().num_tokens(generating(num_generating), queue(num_waiting))

        def takes_s(num_tokens: float) -> float:
            num_steps = num_waiting / (num_tokens - num_generating)
            return num_steps * (5 + 0.02 * num_tokens) / 1000

        if 512 + 128 < num_tokens < 2250 - 128 and num_tokens > 2 * num_generating + 128:
            assert takes_s(num_tokens + 128) < 0.15 < takes_s(num_tokens - 129)
        elif num_tokens <= 512 and num_generating < 128:
            assert takes_s(num_tokens + 128) < 0.15

    def test_a_flood_of_prompts_lengthens_others_steps_by_its_part_of_the_time(self) -> None:
        ours, flood = generating(2, "ours"), queue(10**6, "flood")
        beside = budget().num_tokens(ours, flood)
        assert beside == 512
        alone = budget().num_tokens(generating(2, "flood"), flood)
        assert alone == 2176
        assert budget().num_tokens([*ours, at_its_prompt(7000, fair_key="ours")], {}) > 1000

    def test_before_any_step_was_measured_steps_are_short(self) -> None:
        unknown = StepBudget(config(target_gap_ms=GAP_MS).for_device("cuda"), StepTimes(0.0))
        assert unknown.num_tokens(generating(1), queue(10**6)) == min(512, unknown.max_num_tokens)

    def test_drafts_are_no_prompt(self) -> None:
        requests = generating(192)
        for request in requests:
            request.draft_token_ids = [4]
        assert budget().num_tokens(requests, {}) == 2 * 2 * 192

    def test_no_step_is_longer_than_any_may_be(self) -> None:
        assert budget(GAP_MS, 300).num_tokens(generating(256), queue(10**9)) == 300

    @given(
        num_generating=st.integers(1, 600),
        prompts=st.lists(st.integers(2, 40_000), max_size=6),
        num_queued=st.integers(0, 2_000_000),
        gap_ms=st.floats(0.1, 1000),
    )
    @example(123, [2] * 6, 0, 0.1)
    def test_neither_side_starves(
        self, num_generating: int, prompts: list[int], num_queued: int, gap_ms: float
    ) -> None:
        running = generating(num_generating)
        running += [at_its_prompt(num_left, 10_000 + i) for i, num_left in enumerate(prompts)]
        num_tokens = budget(gap_ms).num_tokens(running, queue(num_queued))
        for_prompts = num_tokens - num_generating
        assert for_prompts >= max(1, len(prompts))
        assert for_prompts >= 3 / 4 * max(512 - num_generating, num_generating)
        longest = max(512, 2 * num_generating, (gap_ms - 5) / 0.02)
        assert num_tokens <= max(longest, num_generating + len(prompts))

    @given(
        num_generating=st.integers(1, 600),
        num_queued=st.integers(0, 2_000_000),
        more=st.integers(0, 2_000_000),
    )
    def test_more_that_wait_never_get_less(
        self, num_generating: int, num_queued: int, more: int
    ) -> None:
        running = generating(num_generating)
        fewer = budget().num_tokens(running, queue(num_queued))
        assert budget().num_tokens(running, queue(num_queued + more)) >= fewer - 128


class TestSteps:
    def test_a_prompt_is_cut_only_beside_those_who_generate(self) -> None:
        harness = Harness(
            target_gap_ms=GAP_MS, max_num_batched_tokens=2048, num_blocks=900, max_model_len=2048
        )
        harness.add("a", 1000, max_tokens=9, ignore_eos=True)
        harness.step()
        harness.add("b", 1100, max_tokens=1)
        lengths = []
        for _ in range(4):
            harness.step()
            lengths.append([c.num_scheduled_tokens for c in harness.runner.plans[-1].chunks])
        assert lengths == [[1, 511], [1, 511], [1, 78], [1]]
        assert harness.runner.plans[0].num_tokens == 1000
        harness.run()
        harness.check_outputs()

    def test_on_a_cpu_a_flood_of_short_requests_hardly_lengthens_steps(self) -> None:
        longest = {}
        for tenant in ("flood", "ours"):
            harness = Harness(
                device="cpu", target_gap_ms=GAP_MS, max_num_batched_tokens=256, num_blocks=400
            )
            harness.add("stream", 4, max_tokens=150, ignore_eos=True, fair_key="ours")
            harness.step(3)
            for number in range(60):
                harness.add(f"short {number}", 8, max_tokens=1, fair_key=tenant)
            harness.step(40)
            longest[tenant] = max(plan.num_tokens for plan in harness.runner.plans[3:])
            harness.run()
            harness.check_outputs()
        assert longest == {"flood": 16, "ours": 64}


def longest_step(simulation: Simulation) -> float:
    times = [time for time, _ in simulation.trace]
    return max(b - a for a, b in pairwise(times))


def test_streams_flow_evenly_and_long_prompts_get_through() -> None:
    """A step takes 10 ms and 0.2 ms a token: 600 tokens 0.13 s, 8192 tokens 1.65 s."""
    long = [Arrival(1.0 + i / 100, f"long {i}", num_prompt_tokens=900) for i in range(12)]
    short = steady("short", 3, 4.0, num_prompt_tokens=20, max_tokens=40)
    options = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "num_blocks": 4000}
    limited, unlimited = (
        Simulation([*short, *long], **options, target_gap_ms=gap_ms).run()
        for gap_ms in (130.0, None)
    )
    assert longest_step(limited) < 0.135
    assert longest_step(unlimited) > 1.0
    assert all(outcome.finished_s is not None for outcome in limited.outcomes.values())
    assert limited.runner.now < 1.1 * unlimited.runner.now
