"""The contract of all routers, and what each is for."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from engine.client.router import ROUTERS, LeastLoaded, RouterName, SessionAffine
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams


class Engine(NamedTuple):
    name: str
    load: int = 0


def request(first: int = 0, salt: str = "acme", length: int = 300) -> GenerateRequest:
    tokens = [first] * min(length, 128) + list(range(max(0, length - 128)))
    return GenerateRequest(
        request_id="r", prompt_token_ids=tokens, params=SamplingParams(), cache_salt=salt
    )


def fleet(*loads: int) -> Any:
    return [Engine(str(number), load) for number, load in enumerate(loads)]


@pytest.mark.parametrize("name", list(ROUTERS))
def test_every_engine_is_ranked_once(name: RouterName) -> None:
    router, engines = ROUTERS[name](), fleet(3, 0, 5, 1)
    for first in range(20):
        assert set(router.ranked(request(first), engines)) == set(engines)


def test_the_least_loaded_comes_first_and_equals_take_turns() -> None:
    router = LeastLoaded()
    assert [one.load for one in router.ranked(request(), fleet(3, 0, 5, 1))] == [0, 1, 3, 5]
    firsts = [router.ranked(request(), fleet(2, 2, 2))[0].name for _ in range(6)]
    assert sorted(firsts) == ["0", "0", "1", "1", "2", "2"]


def test_a_conversation_stays_where_it_is() -> None:
    router, engines = SessionAffine(), fleet(0, 0, 0, 0)

    def home(engines: Any, first: int, salt: str = "acme", length: int = 300) -> str:
        return router.ranked(request(first, salt, length), engines)[0].name

    homes = [home(engines, first) for first in range(200)]
    assert homes == [home(engines, first, length=900) for first in range(200)]
    assert min(homes.count(name) for name in "0123") > 25
    assert homes != [home(engines, first, salt="globex") for first in range(200)]
    # Only the conversations of one that leaves move.
    left = [home(engines[:3], first) for first in range(200)]
    assert all(was in (now, "3") for was, now in zip(homes, left, strict=True))
    # One that is loaded far above the average comes last.
    crowded = fleet(9, 1, 1, 1)
    assert {router.ranked(request(first), crowded)[-1].name for first in range(50)} == {"0"}
