"""Who need not wait until others are done, and who gives way to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.scheduler.making import claims, held, make_request
from tests.engine.scheduler.test_fair_share import make_policy

if TYPE_CHECKING:
    from engine.request import Request
    from engine.scheduler.fair_share import FairSharePolicy


def contended(*running: Request, **options: Any) -> FairSharePolicy:
    """These run, and their tenants have more requests that wait."""
    policy = make_policy(**options)
    for request in running:
        policy.enqueue(request)
        policy.admit(request)
    return policy


class TestClaims:
    def test_who_holds_nothing_displaces_who_holds_much(self) -> None:
        running = [held(0, "a", 40), held(1, "a", 10)]
        policy = contended(*running)
        policy.enqueue(make_request(2, fair_key="b"))
        assert claims(policy, running) == [("r2", ["r1", "r0"])]

    def test_nobody_displaces_requests_of_its_own(self) -> None:
        running = [held(0, "a", 60)]
        policy = contended(*running)
        policy.enqueue(make_request(1, fair_key="a"))
        assert claims(policy, running) == []

    def test_who_holds_most_gives_way_down_to_its_share(self) -> None:
        running = [held(0, "a", 30), held(1, "b", 22), held(2, "a", 4), held(3, "a", 8)]
        policy = contended(*running)
        policy.enqueue(make_request(4, fair_key="c"))
        assert claims(policy, running) == [("r4", ["r2", "r3", "r0", "r1"])]
        running = [held(0, "a", 20), held(1, "b", 12), held(2, "a", 4), held(3, "a", 8)]
        policy = contended(*running)
        policy.enqueue(make_request(4, fair_key="c"))
        assert claims(policy, running) == [("r4", ["r2", "r3"])]

    def test_who_would_hold_more_than_its_share_waits_for_service(self) -> None:
        """Until others were served more even if its request runs to its end."""
        running = [held(0, "a", 64)]
        policy = contended(*running)
        policy.enqueue(make_request(1, fair_key="b", num_prompt_tokens=21 * 16))
        policy.enqueue(make_request(2, fair_key="c", num_prompt_tokens=22 * 16, max_tokens=20))
        assert claims(policy, running) == [("r1", ["r0"])]
        policy.charge_output(running[0], 22 * 16 // 2 + 20 - 1)
        assert claims(policy, running) == [("r1", ["r0"])]
        policy.charge_output(running[0], 1)
        assert claims(policy, running) == [("r1", ["r0"]), ("r2", ["r0"])]

    def test_a_prompt_that_was_charged_once_is_not_to_come(self) -> None:
        running = [held(0, "a", 64)]
        policy = contended(*running)
        again = make_request(2, fair_key="c", num_prompt_tokens=22 * 16, max_tokens=20)
        again.was_admitted = True
        policy.enqueue(make_request(1, fair_key="b", num_prompt_tokens=64 * 16))
        policy.enqueue(again)
        policy.charge_output(running[0], 20 - 1)
        before = claims(policy, running)
        policy.charge_output(running[0], 1)
        assert (before, claims(policy, running)) == ([], [("r2", ["r0"])])

    @pytest.mark.parametrize(
        ("in_use", "asked"), [("xy", "z"), ("xy", "x"), ("x", "z"), ("xy", "")]
    )
    def test_a_slot_is_claimed_only_where_none_is_left(self, in_use: str, asked: str) -> None:
        running = [held(i, "a", 10) for i in range(len(in_use))]
        for request, digest in zip(running, in_use, strict=True):
            request.adapter_digest = digest
        policy = contended(*running, max_loras=2)
        policy.enqueue(new := make_request(5, fair_key="b"))
        new.adapter_digest = asked
        policy.charge_output(running[0], 10_000)
        (claim,) = policy.claims(running)
        assert bool(claim.slot_users) == (asked == "z" and in_use == "xy")

    def test_where_rows_are_fewer_than_tenants_they_take_turns_by_service(self) -> None:
        running = [held(0, "a", 1), held(1, "b", 1)]
        policy = contended(*running, max_num_seqs=2)
        new = make_request(2, fair_key="c", num_prompt_tokens=16, max_tokens=8)
        policy.enqueue(new)
        assert claims(policy, running) == []
        policy.charge_output(running[1], 16)
        assert claims(policy, running) == [("r2", ["r1"])]

    def test_the_forecast_holds_back_only_who_was_served_more(self) -> None:
        """Others hold little now: nobody gives way, but what they may need later is no reason to
        wait."""
        running = [held(0, "a", 1)]
        policy = contended(*running)
        policy.enqueue(make_request(1, fair_key="b", num_prompt_tokens=16 * 16))
        (claim,) = policy.claims(running)
        assert claim.at_once
        assert list(claim.victims) == []

    def test_everybody_gets_a_look_however_many_wait(self) -> None:
        """Those before it by service cannot claim anything, because their requests are large."""
        running = [held(0, "a", 64)]
        policy = contended(*running)
        for i in range(40):
            large = make_request(1 + i, fair_key=f"large {i}", num_prompt_tokens=60 * 16)
            policy.enqueue(large)
        small = make_request(99, fair_key="b")
        policy.enqueue(small)
        policy.charge_output(small, 10)
        policy.charge_output(running[0], 10)
        seen = [claims(policy, running) for _ in range(3)]
        assert [("r99", ["r0"])] in seen

    def test_who_waits_for_a_grant_gives_way_again_without_progress(self) -> None:
        running = [held(0, "a", 60, num_granted_tokens=0)]
        running[0].num_once_computed = running[0].num_computed_tokens
        policy = contended(*running)
        policy.enqueue(make_request(1, fair_key="b"))
        assert claims(policy, running) == [("r1", ["r0"])]

    def test_who_holds_half_of_its_share_waits_for_its_turn(self) -> None:
        """With all that its request may come to need."""
        running = [held(0, "a", 40), held(1, "b", 14)]
        policy = contended(*running)
        policy.enqueue(make_request(2, fair_key="b", num_prompt_tokens=16, max_tokens=16))
        assert claims(policy, running) == [("r2", ["r0"])]
        running[1].block_table.num_held = 15
        assert claims(policy, running) == []

    def test_who_holds_an_eighth_waits_for_those_who_were_served_less(self) -> None:
        running = [held(0, "a", 40), held(1, "b", 5)]
        policy = contended(*running)
        policy.enqueue(make_request(2, fair_key="b", num_prompt_tokens=16, max_tokens=16))
        policy.enqueue(make_request(3, fair_key="c", num_prompt_tokens=60 * 16))
        for request in running:
            policy.charge_output(request, 2048)
        assert claims(policy, running) == [("r3", ["r0"])]
        running[1].block_table.num_held = 2
        assert ("r2", ["r0"]) in claims(policy, running)

    def test_weights_count(self) -> None:
        running = [held(0, "a", 50, weight=4.0)]
        policy = contended(*running)
        policy.enqueue(make_request(1, fair_key="b", num_prompt_tokens=12 * 16))
        assert claims(policy, running) == [("r1", [])]
        running[0].block_table.num_held = 52
        assert claims(policy, running) == [("r1", ["r0"])]

    def test_who_waits_for_a_grant_gives_way_whatever_it_was_served(self) -> None:
        running = [held(0, "a", 60, num_granted_tokens=0)]
        policy = contended(*running)
        policy.enqueue(make_request(1, fair_key="b"))
        policy.charge_output(make_request(1, fair_key="b"), 50)
        assert claims(policy, running) == [("r1", ["r0"])]

    def test_rows_count_as_blocks_do(self) -> None:
        running = [held(i, "a", 1) for i in range(4)]
        policy = contended(*running, max_num_seqs=4)
        policy.enqueue(make_request(9, fair_key="b"))
        assert claims(policy, running)[0][0] == "r9"

    def test_who_was_served_more_waits(self) -> None:
        running = [held(0, "a", 60)]
        policy = contended(*running, fair_share_quantum=100.0)
        new = make_request(1, fair_key="b")
        policy.enqueue(new)
        policy.charge_output(new, 50)
        assert claims(policy, running)
        policy.charge_output(new, 1)
        assert claims(policy, running) == []

    def test_who_holds_least_goes_first(self) -> None:
        running = [held(0, "a", 40), held(1, "b", 2)]
        policy = contended(*running)
        policy.enqueue(make_request(2, fair_key="b"))
        policy.enqueue(make_request(3, fair_key="c"))
        assert [name for name, _ in claims(policy, running)] == ["r3", "r2"]

    def test_who_gave_way_does_so_again_only_after_it_got_further(self) -> None:
        running = [held(0, "a", 40)]
        policy = contended(*running)
        policy.enqueue(make_request(1, fair_key="b"))
        running[0].num_once_computed = 40 * 16
        assert claims(policy, running) == [("r1", [])]
        running[0].num_once_computed -= 1
        assert claims(policy, running) == [("r1", ["r0"])]

    def test_a_huge_request_of_a_third_tenant_holds_nobody_up(self) -> None:
        running = [held(0, "a", 60)]
        policy = contended(*running)
        policy.enqueue(make_request(1, fair_key="b", num_prompt_tokens=60 * 16))
        policy.enqueue(make_request(2, fair_key="c"))
        assert [name for name, _ in claims(policy, running)] == ["r2"]
