from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from hypothesis import example, given
from hypothesis import strategies as st

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


def budget(
    max_num_prefill_tokens: int | None,
    max_num_batched_tokens: int = 8192,
    device: Literal["cuda", "cpu"] = "cuda",
) -> StepBudget:
    asked = config(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_prefill_tokens=max_num_prefill_tokens,
    )
    return StepBudget(asked.for_device(device))


class TestNumTokens:
    def test_without_a_limit_prompts_take_all(self) -> None:
        assert budget(None).num_tokens(generating(3), 100_000) == 8192

    def test_prompts_take_all_while_nobody_generates(self) -> None:
        assert budget(1536).num_tokens([], 600) == 8192
        for num_left in (2, 600):
            assert budget(1536).num_tokens([at_its_prompt(num_left)], 0) == 8192

    def test_on_a_cpu_no_step_is_long_for_the_sake_of_prompts(self) -> None:
        assert budget(1536, device="cpu").num_tokens([], 600) == 64
        assert budget(1536, device="cpu").num_tokens(generating(3), 600) == 64
        assert budget(1536, device="cpu").num_tokens(generating(64), 600) == 384
        assert budget(None, device="cpu").num_tokens([], 600) == 8192

    def test_on_a_cpu_one_tenants_prompts_hardly_delay_another_ones_tokens(self) -> None:
        on_cpu, ours = budget(1536, device="cpu"), generating(3, "ours")
        assert on_cpu.num_tokens(ours, 10**6, ["flood"]) == 16
        assert on_cpu.num_tokens([*ours, at_its_prompt(10**6, fair_key="flood")], 0) == 16
        assert on_cpu.num_tokens(generating(64, "ours"), 10**6, ["ours", "flood"]) == 128
        # Nobody else is delayed.
        assert on_cpu.num_tokens(ours, 64 * 768, ["ours"]) > 700
        assert on_cpu.num_tokens([at_its_prompt(600, fair_key="ours")], 600, ["flood"]) == 64
        # On a GPU those tokens are nearly free.
        assert budget(1536).num_tokens(ours, 600, ["flood"]) == 512

    def test_a_step_beside_few_who_generate_is_short(self) -> None:
        for count in (1, 16, 64, 85):
            assert budget(1536).num_tokens(generating(count), 600) == 512

    def test_prompts_get_five_sixths_beside_many(self) -> None:
        assert budget(1536).num_tokens(generating(128), 600) == 768
        assert budget(1536).num_tokens(generating(256), 600) == 1536
        assert budget(1536).num_tokens(generating(400), 600) == 1920  # 400 + 1536, in whole tiles

    def test_many_prompt_tokens_make_steps_longer(self) -> None:
        """Whether they wait or are computed already."""
        assert budget(1536).num_tokens(generating(1), 64 * 768) == 768
        assert budget(1536).num_tokens([*generating(1), at_its_prompt(64 * 768)], 0) == 768

    def test_a_step_is_cut_to_whole_tiles_for_a_quarter_of_its_prompt_tokens_at_most(self) -> None:
        assert budget(400).num_tokens(generating(84), 600) == 384  # of 384 + 100
        assert budget(400).num_tokens(generating(85), 600) == 485  # of 384 + 101
        assert budget(400).num_tokens(generating(112), 600) == 512

    def test_the_limit_is_the_prompts_alone(self) -> None:
        assert budget(1536).num_tokens(generating(256), 10**9) == 256 + 1536
        assert budget(100).num_tokens(generating(5), 10**9) == 5 + 100

    def test_drafts_are_no_prompt(self) -> None:
        requests = generating(192)
        for request in requests:
            request.draft_token_ids = [4]
        assert budget(2000).num_tokens(requests, 0) == 6 * 2 * 192

    def test_no_step_is_longer_than_any_may_be(self) -> None:
        assert budget(1536, 300).num_tokens(generating(256), 10**9) == 300

    @given(
        num_generating=st.integers(1, 600),
        prompts=st.lists(st.integers(2, 40_000), max_size=6),
        num_queued=st.integers(0, 2_000_000),
        limit=st.integers(1, 4096),
    )
    @example(123, [2] * 6, 0, 1)  # a token beyond a tile, which one of the prompts needs
    def test_neither_side_starves(
        self, num_generating: int, prompts: list[int], num_queued: int, limit: int
    ) -> None:
        running = generating(num_generating)
        running += [at_its_prompt(num_left, 10_000 + i) for i, num_left in enumerate(prompts)]
        num_tokens = budget(limit).num_tokens(running, num_queued)
        for_prompts = num_tokens - num_generating
        assert for_prompts >= max(1, len(prompts))
        assert for_prompts >= 3 / 4 * min(limit, 384)
        assert for_prompts <= max(limit, len(prompts))

    @given(
        num_generating=st.integers(1, 600),
        num_queued=st.integers(0, 2_000_000),
        more=st.integers(0, 2_000_000),
    )
    def test_more_that_wait_never_get_less(
        self, num_generating: int, num_queued: int, more: int
    ) -> None:
        running = generating(num_generating)
        fewer = budget(1536).num_tokens(running, num_queued)
        assert budget(1536).num_tokens(running, num_queued + more) >= fewer - 128


class TestSteps:
    def test_a_prompt_is_cut_only_beside_those_who_generate(self) -> None:
        harness = Harness(max_num_prefill_tokens=3, max_num_batched_tokens=64)
        harness.add("a", 10, max_tokens=6, ignore_eos=True)
        harness.step()
        harness.add("b", 9, max_tokens=1)
        lengths = []
        for _ in range(4):
            harness.step()
            lengths.append([c.num_scheduled_tokens for c in harness.runner.plans[-1].chunks])
        assert lengths == [[1, 3], [1, 3], [1, 3], [1]]
        harness.run()
        harness.check_outputs()

    def test_on_a_cpu_a_flood_of_short_requests_hardly_lengthens_steps(self) -> None:
        longest = {}
        for tenant in ("flood", "ours"):
            harness = Harness(
                device="cpu", max_num_prefill_tokens=256, max_num_batched_tokens=256, num_blocks=400
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

    def test_several_that_were_begun_all_go_on(self) -> None:
        harness = Harness(
            max_num_prefill_tokens=1, max_num_batched_tokens=24, long_prefill_token_threshold=6
        )
        for name in "abc":
            harness.add(name, 20, max_tokens=2, ignore_eos=True)
        harness.add("d", 1, max_tokens=9, ignore_eos=True)
        harness.step(2)
        assert [c.num_scheduled_tokens for c in harness.runner.plans[-1].chunks] == [1, 1, 1, 1]
        harness.run()
        harness.check_outputs()


def longest_step(simulation: Simulation) -> float:
    times = [time for time, _ in simulation.trace]
    return max(b - a for a, b in pairwise(times))


def test_streams_flow_evenly_and_long_prompts_get_through() -> None:
    """A step takes 10 ms and 0.2 ms a token: 512 tokens 0.11 s, 8192 tokens 1.65 s."""
    long = [Arrival(1.0 + i / 100, f"long {i}", num_prompt_tokens=900) for i in range(12)]
    short = steady("short", 3, 4.0, num_prompt_tokens=20, max_tokens=40)
    options = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "num_blocks": 4000}
    limited, unlimited = (
        Simulation([*short, *long], **options, max_num_prefill_tokens=limit).run()
        for limit in (1536, None)
    )
    assert longest_step(limited) < 0.13
    assert longest_step(unlimited) > 1.0
    assert all(outcome.finished_s is not None for outcome in limited.outcomes.values())
    assert limited.runner.now < 1.1 * unlimited.runner.now
