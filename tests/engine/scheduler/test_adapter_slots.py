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
