"""That drafts pay where they do, and cost nothing where they do not, on machines that others use.

The 7M demo model on a GPU, where the host takes longer than the device, and on a processor.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engine.spec.noisy_machine import Machine, speed_ups
from tests.pairs import each_value

GPU = Machine(
    step=lambda batch, length: 0.12 + 0.002 * batch * (1 + 0.5 * length),
    draft=lambda batch: 0.05 + 0.0003 * batch,
    plan=0.25,
    plan_request=0.007,
    prompts=1.5,
    prompt=0.05,
    catch_up=1.2,
    catch_up_request=0.05,
    overlap=True,
)
CPU = Machine(
    step=lambda batch, length: 0.65 + 0.12 * (batch - 1) + (0.18 + 0.1 * (batch - 1)) * length,
    draft=lambda batch: 0.22 + 0.03 * batch,
    plan=0.13,
    plan_request=0.007,
    prompts=3.0,
    prompt=2.0,
    catch_up=0.4,
    catch_up_request=0.3,
    overlap=False,
)
QUIET_GPU = replace(GPU, spread=0.03, slow=0.05, spike_chance=0.001)
# A host that takes several times as long as the device, and anything the first time far longer.
SLOW_HOST = replace(
    QUIET_GPU, plan=0.6, plan_request=0.003, prompts=0.4, catch_up=1.3, launch_drafts=0.3, first=4.0
)
# The demo model on an H200: much is slow after a while without it, and the first texts are hard.
UNLUCKY = replace(
    QUIET_GPU,
    plan=0.19,
    prompts=0.5,
    prompt=0.15,
    catch_up=0.4,
    launch_drafts=0.12,
    first=1.0,
    cold=1.5,
    num_unlucky=8,
)
MACHINES = {"gpu": GPU, "quiet gpu": QUIET_GPU, "cpu": CPU}


@pytest.mark.parametrize(
    ("machine", "size", "rate"),
    each_value(list(MACHINES), [(1, 1), (1, 3), (8, 1), (8, 3), (32, 3)], [0.3, 0.85]),
)
def test_short_answers(machine: str, size: tuple[int, int], rate: float) -> None:
    batch, num_drafts = size
    fixed, adaptive = speed_ups(MACHINES[machine], batch, rate, num_drafts, mean_tokens=24)
    assert adaptive > 0.97
    assert adaptive > 0.93 * fixed


@pytest.mark.parametrize("rate", each_value([0.6, 0.3, 0.85], most=1))
def test_a_host_that_is_slow_for_seconds(rate: float) -> None:
    """As many of its steps with drafts fall into such a time."""
    machine = replace(GPU, slow_ms=1000.0)
    fixed, adaptive = speed_ups(machine, 8, rate, 3, mean_tokens=150)
    assert adaptive > 0.97
    assert adaptive > 0.93 * fixed


@pytest.mark.parametrize(
    "step",
    each_value(
        [(8, 3, 0.3), (8, 1, 0.87), (1, 1, 0.6), (8, 3, 0.8), (32, 3, 0.8), (8, 1, 0.5)], most=3
    ),
)
def test_what_is_done_for_the_first_time_decides_nothing(step: tuple[int, int, float]) -> None:
    batch, num_drafts, rate = step
    fixed, adaptive = speed_ups(SLOW_HOST, batch, rate, num_drafts, mean_tokens=24)
    assert adaptive > 0.97
    assert adaptive > 0.93 * fixed


@pytest.mark.parametrize("batch", each_value([8, 1, 32], most=1))
def test_a_beginning_that_is_unlucky_is_not_believed(batch: int) -> None:
    """Of the demo model's first request hardly a draft was right, of the others 87 %. So they were
    given up for good: a probe of one step took ten steps' time, so there was one in a second."""
    fixed, adaptive = speed_ups(UNLUCKY, batch, 0.87, 3, mean_tokens=24)
    assert fixed > 1.15
    assert adaptive > 0.95 * fixed
