from __future__ import annotations

import subprocess
import sys

import pytest

from engine.bench import scheduler


def test_it_prints_a_line_for_every_case() -> None:
    command = [sys.executable, "-m", "engine.bench.scheduler"]
    sizes = ["--running", "8", "--waiting", "40", "--steps", "30", "--burst", "9", "--bursts", "7"]
    done = subprocess.run([*command, *sizes], stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "8 running, 40 waiting, 30 steps"
    bursts = 2 + 3 * 2 * 2
    assert lines[bursts] == "7 bursts of 9"
    assert len(lines) == bursts + 2 + 3
    for line in lines[2:bursts]:
        numbers = [float(word) for word in line.split()[3:]]
        assert len(numbers) == 4
        assert all(number > 0 for number in numbers)
    for line in lines[bursts + 2 :]:
        p50_us, p99_us, us_per_request = (float(word) for word in line.split()[1:])
        assert p50_us <= p99_us
        assert us_per_request == pytest.approx(p50_us / 9, abs=0.2)


@pytest.mark.usefixtures("collector_as_before")
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair_share"])
@pytest.mark.nightly
def test_a_step_costs_no_more_with_a_hundred_times_the_queue(policy: str) -> None:
    def median(num_waiting: int) -> float:
        return scheduler.measure(
            policy,  # type: ignore[arg-type]
            "rows",
            overlap=True,
            num_running=32,
            num_waiting=num_waiting,
            num_steps=150,
        ).p50_us

    # Up to five attempts, because other work on the machine disturbs the hardware's caches.
    assert any(median(20_000) / median(200) < 1.5 for _ in range(5))
