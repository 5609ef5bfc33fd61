"""Chooses an engine for each request: interchangeable siblings, of which a setting names one."""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple
from zlib import crc32

from engine.client.prefix_index import Prefix, PrefixIndex, prefixes

if TYPE_CHECKING:
    from engine.client.client import EngineClient
    from engine.messages import GenerateRequest

RouterName = Literal["least_loaded", "random", "session_affine", "d2lpm"]

NUM_SESSION_TOKENS = 128
"""The first tokens of a prompt by which ``SessionAffine`` tells conversations apart."""
MAX_IMBALANCE = 1.25
"""How far above the average the load of an engine may be that ``SessionAffine`` prefers: the bound
of consistent hashing with bounded loads (arXiv:1608.01350)."""

QUANTUM = 8192
"""Tokens that may wait at an engine of a tenant beyond what waits of it where that is least."""
LOAD_TOKENS = 64
"""What an unfinished request at an engine counts for, in prompt tokens."""
MAX_EXPECTED = 10_000
"""Requests that have not begun whose cached tokens are remembered, to be compared."""
SLACK = 16
"""How many tokens less than expected an engine may find: it always computes some of a prompt."""


class Router:
    """Ranks engines. The siblings below say how; only one that remembers needs to hear more."""

    num_found: Mapping[bool, int] = MappingProxyType({})
    """Requests of which something was expected in the cache: by whether as much was found."""

    def ranked(
        self, request: GenerateRequest, engines: Sequence[EngineClient]
    ) -> Iterable[EngineClient]:
        """The engines, best first: the next is tried where one refuses. At least two are given,
        all of them ready. Called for each request, and for each that is moved."""
        raise NotImplementedError

    def sent(self, request: GenerateRequest, engine: EngineClient) -> None:
        """An engine has taken a request."""

    def heard(self, request: GenerateRequest, engine: EngineClient, num_cached: int) -> None:
        """An engine has begun with a request, and found so many tokens of its prompt."""

    def forget(self, engine: EngineClient) -> None:
        """An engine has died or left: what it had cached is gone."""


class LeastLoaded(Router):
    """The fewest unfinished requests first; of equals, the one that was chosen the longest ago."""

    def __init__(self) -> None:
        self._chosen_at: dict[str, int] = {}
        self._num_chosen = 0

    def ranked(
        self, request: GenerateRequest, engines: Sequence[EngineClient]
    ) -> Sequence[EngineClient]:
        found = sorted(engines, key=lambda one: (one.load, self._chosen_at.get(one.name, 0)))
        self._num_chosen += 1
        self._chosen_at[found[0].name] = self._num_chosen
        return found


class RandomChoice(Router):
    """Any, whatever its load."""

    def ranked(
        self, request: GenerateRequest, engines: Sequence[EngineClient]
    ) -> Sequence[EngineClient]:
        return random.sample(engines, len(engines))


class SessionAffine(Router):
    """The same engine for prompts of a tenant that begin with the same tokens, by rendezvous
    hashing: when engines come and go, only their own conversations change places. One that is
    loaded above the average by more than ``MAX_IMBALANCE`` comes last."""

    def ranked(
        self, request: GenerateRequest, engines: Sequence[EngineClient]
    ) -> Sequence[EngineClient]:
        first = array("q", request.prompt_token_ids[:NUM_SESSION_TOKENS]).tobytes()
        session = blake2b(first, digest_size=16, key=request.cache_salt.encode()[:64]).digest()
        most = MAX_IMBALANCE * (sum(one.load for one in engines) + 1) / len(engines)
        return sorted(
            engines,
            key=lambda one: (one.load >= most, crc32(one.name.encode(), crc32(session))),
        )


class _Lookup(NamedTuple):
    """What ``D2lpm`` knows of a request's prompt."""

    request_id: str
    prefixes: Sequence[Prefix]
    cached: Mapping[str, int]
    """By engine, the tokens that it probably has."""


class D2lpm(Router):
    """Longest prefix match, bounded by deficit: the prompt goes where most of it is cached, unless
    others wait there. After D2LPM (arXiv:2501.14312), with what is known of queues here in place of
    counters of its own.

    An engine is worth the tokens of the prompt that it need not compute, less the tokens that wait
    there already, and ``LOAD_TOKENS`` for each unfinished request. Of a tenant's own requests an
    engine gets no more while ``QUANTUM`` tokens more of them wait there than at another engine. So
    a tenant with a backlog has one everywhere, and gets its share of every engine, as engines are
    fair to those who wait; however much its prompts have in common, they are no queue at one engine
    while others go past it elsewhere.
    """

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self._last = _Lookup("", (), {})
        """Of the last request that was ranked, which is the next that is sent."""
        self._expected: dict[str, _Lookup] = {}
        """By request id, of those that have not begun: the oldest first."""
        self._num_ranked = 0
        self.num_found: Counter[bool] = Counter()

    def ranked(
        self, request: GenerateRequest, engines: Sequence[EngineClient]
    ) -> Iterable[EngineClient]:
        cached, tenant = self._look_up(request).cached, request.fair_key
        backlogs = [one.backlog for one in engines]
        waiting = [backlog.tokens_of.get(tenant, 0) for backlog in backlogs]
        most = min(waiting) + QUANTUM
        self._num_ranked += 1
        first = self._num_ranked % len(engines)  # Of equals not always the same.
        best, best_worth = engines[first], -math.inf
        for number in range(first - len(engines), first):
            if waiting[number] <= most:
                one = engines[number]
                worth = -backlogs[number].num_tokens
                if cached:
                    worth += cached.get(one.name, 0)
                if worth > best_worth and (worth := worth - LOAD_TOKENS * one.load) > best_worth:
                    best, best_worth = one, worth
        yield best
        yield from sorted(set(engines) - {best}, key=lambda one: one.load)

    def sent(self, request: GenerateRequest, engine: EngineClient) -> None:
        looked_up, info = self._look_up(request), engine.info
        if engine.name in looked_up.cached:
            self._expected[request.request_id] = looked_up
            if len(self._expected) > MAX_EXPECTED:
                del self._expected[next(iter(self._expected))]
        self.index.add(engine.name, looked_up.prefixes, info.num_blocks * info.block_size)

    def heard(self, request: GenerateRequest, engine: EngineClient, num_cached: int) -> None:
        looked_up = self._expected.pop(request.request_id, None)
        if looked_up is not None:
            expected = looked_up.cached.get(engine.name, 0) - SLACK
            was_right = num_cached >= expected
            self.num_found[was_right] += 1
            self.index.learn(engine.name, was_right=was_right)

    def forget(self, engine: EngineClient) -> None:
        self.index.forget(engine.name)

    def _look_up(self, request: GenerateRequest) -> _Lookup:
        if self._last.request_id != request.request_id:
            found = prefixes(request)
            self._last = _Lookup(request.request_id, found, self.index.find(found))
        return self._last


ROUTERS: Mapping[RouterName, Callable[[], Router]] = {
    "least_loaded": LeastLoaded,
    "random": RandomChoice,
    "session_affine": SessionAffine,
    "d2lpm": D2lpm,
}
