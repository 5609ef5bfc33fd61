"""The contract of all routers, and what each is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from engine.client.backlog import Backlog
from engine.client.router import (
    QUANTUM,
    ROUTERS,
    D2lpm,
    LeastLoaded,
    Router,
    RouterName,
    SessionAffine,
)
from engine.config import EngineConfig
from engine.messages import AdapterRef, GenerateRequest, Ready, Stats, TenantStats
from engine.sampling_params import SamplingParams

CONFIG = EngineConfig(model="any")
INFO = Ready(
    model="any",
    max_model_len=4096,
    vocab_size=1000,
    block_size=16,
    num_blocks=1000,
    device="cpu",
    pid=1,
)
_numbers = count()


@dataclass(eq=False)
class Engine:
    name: str
    load: int = 0
    backlog: Backlog = field(default_factory=lambda: Backlog(CONFIG))
    info: Ready = INFO


def request(
    first: int = 0, salt: str = "acme", length: int = 300, **fields: Any
) -> GenerateRequest:
    tokens = [first] * min(length, 128) + list(range(max(0, length - 128)))
    return GenerateRequest(
        request_id=str(next(_numbers)),
        prompt_token_ids=tokens,
        params=SamplingParams(),
        cache_salt=salt,
        fair_key=salt,
        **fields,
    )


def first_of(router: Router, asked: GenerateRequest, engines: Any) -> Any:
    return next(iter(router.ranked(asked, engines)))


def fleet(*loads: int) -> Any:
    return [Engine(str(number), load) for number, load in enumerate(loads)]


@pytest.mark.parametrize("name", list(ROUTERS))
def test_every_engine_is_ranked_once(name: RouterName) -> None:
    router, engines = ROUTERS[name](), fleet(3, 0, 5, 1)
    for first in range(20):
        asked = request(first)
        ranked = list(router.ranked(asked, engines))
        assert sorted(one.name for one in ranked) == ["0", "1", "2", "3"]
        router.sent(asked, ranked[0])
        router.heard(asked, ranked[0], first)
        router.forget(ranked[first % 4])


def test_the_least_loaded_comes_first_and_equals_take_turns() -> None:
    router = LeastLoaded()
    assert [one.load for one in router.ranked(request(), fleet(3, 0, 5, 1))] == [0, 1, 3, 5]
    engines = fleet(2, 2, 2)
    firsts = [first_of(router, request(), engines).name for _ in range(6)]
    assert sorted(firsts) == ["0", "0", "1", "1", "2", "2"]


def test_a_conversation_stays_where_it_is() -> None:
    router, engines = SessionAffine(), fleet(0, 0, 0, 0)

    def home(engines: Any, first: int, salt: str = "acme", length: int = 300) -> str:
        return str(first_of(router, request(first, salt, length), engines).name)

    homes = [home(engines, first) for first in range(200)]
    assert homes == [home(engines, first, length=900) for first in range(200)]
    assert min(homes.count(name) for name in "0123") > 25
    assert homes != [home(engines, first, salt="globex") for first in range(200)]
    # Only the conversations of one that leaves move.
    left = [home(engines[:3], first) for first in range(200)]
    assert all(was in (now, "3") for was, now in zip(homes, left, strict=True))
    # One that is loaded far above the average comes last.
    crowded = fleet(9, 1, 1, 1)
    assert {list(router.ranked(request(first), crowded))[-1].name for first in range(50)} == {"0"}


def send(router: Router, asked: GenerateRequest, engines: Any, to: int | None = None) -> str:
    """Routes a request, or sends it to the engine of that number; returns the engine's name."""
    chosen = first_of(router, asked, engines)
    chosen = chosen if to is None else engines[to]
    router.sent(asked, chosen)
    chosen.backlog.send(asked)
    return str(chosen.name)


def report(*engines: Any, waiting: dict[str, int] | None = None) -> None:
    """Engines report of how many tokens wait of each tenant."""
    tenants = [TenantStats(name, queued_tokens=n) for name, n in (waiting or {}).items()]
    stats = Stats(tenants=tenants, num_queued_tokens=sum((waiting or {}).values()))
    for one in engines:
        one.backlog.report(stats, one.backlog.mark())


def test_a_prompt_goes_where_most_of_it_is_cached() -> None:
    router, engines = D2lpm(), fleet(0, 0, 0, 0)
    send(router, request(1, length=1000), engines, to=2)
    send(router, request(1, length=500), engines, to=1)
    report(*engines)
    for _ in range(8):
        assert first_of(router, request(1, length=1500), engines).name == "2"
    # What is another tenant's, or another adapter's, is nobody's.
    for stranger in (
        request(1, "globex", 1500),
        request(1, length=1500, adapter=AdapterRef(name="a", path="p")),
    ):
        homes = {first_of(router, stranger, engines).name for _ in range(8)}
        assert homes == {"0", "1", "2", "3"}


def test_what_is_public_is_everybodys() -> None:
    router, engines = D2lpm(), fleet(0, 0, 0)
    send(router, request(1, length=600, num_public_tokens=256), engines, to=1)
    report(*engines)
    other = request(1, "globex", 400, num_public_tokens=256)
    assert first_of(router, other, engines).name == "1"
    assert router.index.find(router._last.prefixes) == {"1": 256}


def test_load_outweighs_a_short_prefix() -> None:
    router, engines = D2lpm(), fleet(0, 0)
    send(router, request(1, length=200), engines, to=0)
    report(*engines)
    assert first_of(router, request(1, length=200), engines).name == "0"
    engines[0].load = 10
    assert first_of(router, request(1, length=200), engines).name == "1"


def test_a_tenant_with_a_backlog_has_one_everywhere() -> None:
    """The bound of the deficit, whatever the prefix is worth."""
    router, engines = D2lpm(), fleet(0, 0, 0)
    for _ in range(60):
        send(router, request(1, length=2048), engines)
    waiting = [one.backlog.tokens_of["acme"] for one in engines]
    assert max(waiting) - min(waiting) <= QUANTUM + 2048
    # As much of it as others sent, which only the engine has reported.
    report(engines[0], waiting={"acme": 100_000})
    report(engines[1], waiting={"acme": 100_000})
    report(engines[2], waiting={"acme": 100_000 - QUANTUM - 1, "globex": 5_000})
    assert send(router, request(1, length=2048), engines) == "2"


def test_an_engine_that_died_has_nothing() -> None:
    router, engines = D2lpm(), fleet(0, 0)
    send(router, request(1, length=1000), engines, to=1)
    report(*engines)
    router.forget(engines[1])
    assert len(router.index) == 0
    assert {first_of(router, request(1, length=1000), engines).name for _ in range(4)} == {"0", "1"}


def test_what_engines_find_shows_how_much_of_their_cache_is_ours() -> None:
    """As when another gateway fills it, too."""
    router, engines = D2lpm(), fleet(0, 0)
    for first in range(20):
        send(router, request(first, length=512), engines, to=1)
    assert len(router.index) == 20 * 5
    for _ in range(6):
        again = request(0, length=512)
        send(router, again, engines, to=1)
        router.heard(again, engines[1], 0)
    send(router, request(0, length=512), engines, to=1)
    assert 512 <= router.index._num_tokens["1"] <= 16_000 * 0.8**6
