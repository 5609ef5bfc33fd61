"""Chooses an engine for each request: interchangeable siblings, of which a setting names one."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, Protocol
from zlib import crc32

if TYPE_CHECKING:
    from engine.client.client import EngineClient
    from engine.messages import GenerateRequest

RouterName = Literal["least_loaded", "random", "session_affine"]

NUM_SESSION_TOKENS = 128
"""The first tokens of a prompt by which ``SessionAffine`` tells conversations apart."""
MAX_IMBALANCE = 1.25
"""How far above the average the load of an engine may be that ``SessionAffine`` prefers: the bound
of consistent hashing with bounded loads (arXiv:1608.01350)."""


class Router(Protocol):
    """Ranks engines. Called for each request, and for each that is moved."""

    def ranked(
        self, request: GenerateRequest, engines: Sequence[EngineClient]
    ) -> Sequence[EngineClient]:
        """The engines, best first: the next is tried where one refuses. At least two are given,
        all of them ready."""


class LeastLoaded:
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


class RandomChoice:
    """Any, whatever its load."""

    def ranked(
        self, request: GenerateRequest, engines: Sequence[EngineClient]
    ) -> Sequence[EngineClient]:
        return random.sample(engines, len(engines))


class SessionAffine:
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


ROUTERS: Mapping[RouterName, Callable[[], Router]] = {
    "least_loaded": LeastLoaded,
    "random": RandomChoice,
    "session_affine": SessionAffine,
}
