from __future__ import annotations

import pytest

from engine.scheduler import bench


def test_it_prints_a_line_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--running", "8", "--waiting", "40", "--steps", "30"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "8 running, 40 waiting, 30 steps"
    assert len(lines) == 2 + 3 * 2 * 2
    for line in lines[2:]:
        numbers = [float(word) for word in line.split()[3:]]
        assert len(numbers) == 4
        assert all(number > 0 for number in numbers)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair_share"])
def test_a_step_costs_no_more_with_a_hundred_times_the_queue(policy: str) -> None:
    def median(num_waiting: int) -> float:
        return bench.measure(
            policy,  # type: ignore[arg-type]
            "rows",
            overlap=True,
            num_running=32,
            num_waiting=num_waiting,
            num_steps=150,
        ).p50_us

    # Three attempts, because other work on the machine disturbs the hardware's caches.
    assert min(median(20_000) / median(200) for _ in range(3)) < 1.5
