from __future__ import annotations

import pytest

from gateway.admission.priorities import FLEX, Priorities
from gateway.errors import InvalidRequestError, UnsupportedParameter


def test_a_tier_and_a_priority_add_up() -> None:
    priorities = Priorities({"priority": -10}, "fair_share")
    assert priorities.tier(None) is None
    assert priorities.tier("auto") == "default"
    assert priorities.shift(None, None) == 0
    assert priorities.shift(priorities.tier("flex"), None) == FLEX
    assert priorities.shift(priorities.tier("priority"), 3) == -7


def test_what_is_not_offered_is_served_as_anything_else() -> None:
    assert Priorities({}, "priority").tier("fast") == "default"


def test_where_nothing_goes_first_nothing_can_be_asked_for() -> None:
    priorities = Priorities({"priority": -10}, "fcfs")
    assert priorities.tier("default") == "default"
    assert priorities.tier("flex") == "default"
    assert priorities.shift("default", 0) == 0
    with pytest.raises(UnsupportedParameter):
        priorities.shift(None, 1)


@pytest.mark.parametrize("priority", [-1, 10**6 + 1])
def test_a_request_can_only_step_back(priority: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Priorities({}, "fair_share").shift(None, priority)
    assert caught.value.param == "priority"
