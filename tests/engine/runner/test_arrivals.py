from __future__ import annotations

import pytest
import torch

from engine.runner.arrivals import Arrivals

CPU = torch.device("cpu")


def test_two_steps_in_flight_never_share_a_place() -> None:
    arrivals = Arrivals(CPU)
    places = [arrivals.take(num) for num in (3, 8, 3, 5, 0)]
    assert [len(place) for place in places] == [3, 8, 3, 5, 0]
    assert all(place.dtype == torch.int64 for place in places)
    for number in range(40):
        num = 1 + number % 7
        last, this = places[-1], arrivals.take(num)
        last.fill_(number)
        this.fill_(-1)
        assert last.tolist() == [number] * len(last)
        places.append(this)


def test_a_place_is_used_again_once_its_step_was_collected() -> None:
    arrivals = Arrivals(CPU)
    arrivals.take(9)
    arrivals.take(9)
    first, second, third = (arrivals.take(4) for _ in range(3))
    assert first.data_ptr() == third.data_ptr() != second.data_ptr()
    assert arrivals.take(7).data_ptr() == second.data_ptr()


def test_a_larger_step_gets_memory_of_its_own() -> None:
    """The tokens of the step before that one may not have been read yet."""
    arrivals = Arrivals(CPU)
    for num in (2, 3):
        arrivals.take(num).fill_(num)
    small = arrivals.take(2).fill_(5)
    arrivals.take(3)
    arrivals.take(100).fill_(7)
    assert small.tolist() == [5, 5]


def test_on_a_cpu_nothing_is_awaited() -> None:
    arrivals = Arrivals(CPU)
    arrivals.take(1)
    assert arrivals.mark() is None


@pytest.mark.gpu
def test_events_say_when_the_tokens_are_there() -> None:
    device = torch.device("cuda")
    arrivals = Arrivals(device)
    found = []
    for number in range(6):
        host = arrivals.take(4)
        assert host.is_pinned()
        host.copy_(torch.full((4,), number, device=device), non_blocking=True)
        event = arrivals.mark()
        assert event is not None
        found.append((host, event))
        if len(found) == 2:
            host, event = found.pop(0)
            event.synchronize()
            assert host.tolist() == [number - 1] * 4
