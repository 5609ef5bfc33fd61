from __future__ import annotations

import pytest
import torch

from engine.runner.host_tokens import HostTokens

CPU = torch.device("cpu")


def test_two_steps_in_flight_never_share_a_place() -> None:
    host_tokens = HostTokens(CPU)
    places = [host_tokens.take(num) for num in (3, 8, 3, 5, 0)]
    assert [len(place) for place in places] == [3, 8, 3, 5, 0]
    assert all(place.dtype == torch.int64 for place in places)
    for number in range(40):
        num = 1 + number % 7
        last, this = places[-1], host_tokens.take(num)
        last.fill_(number)
        this.fill_(-1)
        assert last.tolist() == [number] * len(last)
        places.append(this)


def test_a_place_is_used_again_once_its_step_was_collected() -> None:
    host_tokens = HostTokens(CPU)
    host_tokens.take(9)
    host_tokens.take(9)
    first, second, third = (host_tokens.take(4) for _ in range(3))
    assert first.data_ptr() == third.data_ptr() != second.data_ptr()
    assert host_tokens.take(7).data_ptr() == second.data_ptr()


def test_a_larger_step_gets_memory_of_its_own() -> None:
    """The tokens of the step before that one may not have been read yet."""
    host_tokens = HostTokens(CPU)
    for num in (2, 3):
        host_tokens.take(num).fill_(num)
    small = host_tokens.take(2).fill_(5)
    host_tokens.take(3)
    host_tokens.take(100).fill_(7)
    assert small.tolist() == [5, 5]


def test_on_a_cpu_nothing_is_awaited() -> None:
    host_tokens = HostTokens(CPU)
    host_tokens.take(1)
    assert host_tokens.mark() is None


@pytest.mark.gpu
def test_events_say_when_the_tokens_are_there() -> None:
    device = torch.device("cuda")
    host_tokens = HostTokens(device)
    found = []
    for number in range(6):
        host = host_tokens.take(4)
        assert host.is_pinned()
        host.copy_(torch.full((4,), number, device=device), non_blocking=True)
        event = host_tokens.mark()
        assert event is not None
        found.append((host, event))
        if len(found) == 2:
            host, event = found.pop(0)
            event.synchronize()
            assert host.tolist() == [number - 1] * 4
