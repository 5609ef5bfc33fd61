from __future__ import annotations

from typing import Any

import pytest

from engine.scheduler import adapter_slots
from tests.engine.scheduler.harness import Harness

LONG: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}


def running(harness: Harness) -> list[str]:
    return sorted(harness.scheduler.running)


def test_so_many_adapters_run_at_once_and_the_base_passes() -> None:
    harness = Harness(max_loras=2)
    for name, adapter in (("x", "a"), ("y", "b"), ("z", "c"), ("z2", "c"), ("base", "")):
        harness.add(name, 3, adapter=adapter, **LONG)
    harness.step(2)
    assert running(harness) == ["base", "x", "y"]
    harness.add("later", 3, **LONG)  # behind those that wait for a slot
    harness.step()
    assert running(harness) == ["base", "later", "x", "y"]
    harness.core.abort(["x"])
    harness.step(2)
    assert running(harness) == ["base", "later", "y", "z", "z2"]
    harness.run()
    harness.check_outputs()


def test_an_adapter_in_use_does_not_pass_those_that_wait_for_a_slot() -> None:
    harness = Harness(max_loras=1)
    harness.add("x", 3, adapter="a", **LONG)
    harness.step(2)
    harness.add("z", 3, adapter="c", **LONG)
    harness.step(2)
    harness.add("x2", 3, adapter="a", **LONG)
    harness.step(2)
    assert running(harness) == ["x"]
    while running(harness) == ["x"]:
        harness.step()
    harness.step()
    assert running(harness) == ["z"]
    harness.run()
    harness.check_outputs()


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair_share"])
def test_those_aside_end_like_those_in_the_queue(policy: str) -> None:
    harness = Harness(max_loras=1, policy=policy, max_cpu_loras=1)
    for index, adapter in enumerate("abcab"):
        harness.add(str(index), 3, adapter=adapter, **LONG)
    harness.step(2)
    assert harness.core.stats().num_waiting == 3
    harness.core.abort(["1", "2"])
    harness.core.check_integrity()
    harness.run()
    harness.check_outputs()
    assert harness.core.stats().num_loaded_adapters == 1


def test_so_many_stand_aside_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_slots, "MAX_HELD", 2)
    harness = Harness(max_loras=1)
    for index, adapter in enumerate("abbb"):
        harness.add(str(index), 3, adapter=adapter, **LONG)
    harness.step(2)
    harness.add("base", 3, **LONG)
    harness.step()
    assert running(harness) == ["0"]
    harness.run()
    harness.check_outputs()


class TestFairShare:
    """One tenant has all slots, and more requests that wait for one."""

    @staticmethod
    def flooded(**options: Any) -> Harness:
        harness = Harness(policy="fair_share", num_blocks=200, max_loras=2, **options)
        for index in range(12):
            adapter = f"loud {index % 3}"
            harness.add(f"loud{index}", 3, adapter=adapter, fair_key="loud", max_tokens=150)
        harness.step(6)
        assert any(request.adapter for request in harness.scheduler.running.values())
        return harness

    @staticmethod
    def num_steps_to(harness: Harness, name: str) -> int:
        for count in range(400):
            if name in harness.finished:
                return count
            harness.step()
        raise AssertionError(f"{name} still waits")

    @pytest.mark.parametrize("overlap", [False, True])
    def test_a_slot_is_taken_from_who_was_served_more(self, overlap: bool) -> None:
        harness = self.flooded(async_scheduling=overlap)
        harness.add("quiet", 3, adapter="mine", fair_key="quiet", max_tokens=4)
        assert self.num_steps_to(harness, "quiet") < 20
        harness.run()
        harness.check_outputs()

    def test_without_an_adapter_nobody_waits_for_those_aside(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(adapter_slots, "MAX_HELD", 2)
        harness = self.flooded()
        harness.add("quiet", 3, fair_key="quiet", max_tokens=4)
        assert self.num_steps_to(harness, "quiet") < 10
        harness.run()
        harness.check_outputs()

    def test_nobody_takes_a_slot_from_its_equal(self) -> None:
        """Two tenants with a slot each go on to their ends, and a third waits for its turn."""
        harness = Harness(policy="fair_share", num_blocks=200, max_loras=2)
        for tenant in "abc":
            harness.add(tenant, 3, adapter=tenant, fair_key=tenant, max_tokens=30, ignore_eos=True)
        harness.step(20)
        assert len(harness.scheduler.running) == 2
        assert harness.core.stats().num_preemptions == 0
        harness.run()
        harness.check_outputs()
