"""Moves requests from an engine that has died, is drained or has a queue, to another one.

    lost ──► waiting ──► adopted by an engine that is ready
                │
                └──► fails, when none was ready for ``failover_wait_s``

An engine may have died of one of its requests, unless it was killed from outside. Those that got a
token of it before have shown that they are harmless. Each of the others gets a strike, and is on
probation at the next engine: no other request with a strike runs there until it has a token. So a
request that kills engines gets its second strike alone, and fails; the others lose nothing.

How an engine ended its owner knows, and tells the workers of its host (``learn``). Other processes
hear it from the next engine of that name (``Ready.follows_kill``), and count a strike until then. A
request with two waits for that word.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, NamedTuple

from engine.client.stream import Death, RequestStream
from engine.errors import EngineDead, QueueFull
from engine.messages import Grant, RequestOutput

if TYPE_CHECKING:
    from engine.client.client import EngineClient
    from engine.messages import GenerateRequest

logger = logging.getLogger(__name__)

TICK_S = 0.25
PROBATION_S = 5.0
"""A request that an engine survives for so long is harmless, even without a token: it may wait for
its turn or for a grant."""
MAX_STRIKES = 2

Candidates = Callable[["GenerateRequest"], Iterable["EngineClient"]]
"""The engines that may take a request now, best first."""
OnSent = Callable[["GenerateRequest", "EngineClient"], None]
"""Hears which engine has taken a request."""


class Lost(NamedTuple):
    """A stream without an engine."""

    stream: RequestStream
    lost_at: float
    """``time.monotonic``."""
    error: EngineDead | None
    """What its engine died of; None if that lives, and is to be the last choice."""
    engine: EngineClient


class Moves:
    """The streams that have no engine at the moment; for them it is the ``Source``."""

    def __init__(self, candidates: Candidates, on_sent: OnSent, failover_wait_s: float) -> None:
        self._candidates = candidates
        self._on_sent = on_sent
        self._failover_wait_s = failover_wait_s
        self._waiting: dict[str, Lost] = {}
        """By request id, the longest ago first."""
        self._probation: dict[EngineClient, tuple[RequestStream, float]] = {}
        """The request that is tried at each engine, and since when."""
        self._doubtful: dict[str, Death] = {}
        """By engine, its last death, if nobody has said how it ended."""
        self._away_since: float | None = None
        """Since when no engine was ready."""
        self._timer: asyncio.TimerHandle | None = None
        self.num_moved = 0
        self.num_failed = 0
        """Requests that were lost: no engine came in time, or they had killed theirs."""

    def __len__(self) -> int:
        return len(self._waiting)

    def take(
        self, engine: EngineClient, streams: Sequence[RequestStream], error: EngineDead | None
    ) -> None:
        """``OnLost`` of an engine. ``error``: None if the engine lives."""
        tried = self._probation.get(engine)
        if error is not None or (tried is not None and tried[0] in streams):
            self._end_probation(engine)
        now = time.monotonic()
        death = None if error is None else Death(engine.epoch, engine.was_killed)
        if death is not None and death.was_killed is None:
            self._doubtful[engine.name] = death
        for stream in streams:
            if death is not None:
                if stream.num_generated_tokens > stream.num_generated_before:
                    stream.deaths.clear()
                elif not death.was_killed:
                    stream.deaths.append(death)
            stream.source = self
            self._waiting[stream.request_id] = Lost(stream, now, error, engine)
        self._strike_out()
        self.place()
        self._expire()
        if self._waiting and error is not None:
            logger.warning("%d requests wait for an engine: %s", len(self._waiting), error)

    def place(self) -> None:
        """Give those that wait to the engines that are ready: those without a strike first."""
        for lost in sorted(self._waiting.values(), key=lambda lost: lost.stream.num_strikes):
            stream = lost.stream
            if stream.num_strikes >= MAX_STRIKES:
                break
            engines = self._candidates(stream.request)
            if lost.error is None:
                engines = sorted(engines, key=partial(is_, lost.engine))
            if stream.num_strikes:
                engines = [engine for engine in engines if engine not in self._probation]
            for engine in engines:
                request_id = stream.request_id
                try:
                    engine.adopt(stream)
                except (EngineDead, QueueFull):
                    continue
                del self._waiting[request_id]
                self.num_moved += 1
                self._on_sent(stream.request, engine)
                if stream.num_strikes:
                    self._probation[engine] = stream, time.monotonic()
                    engine.on_step = partial(self._judge, engine)
                break
        self._tick_later()

    def note_ready(self, engine: EngineClient, *, is_any: bool) -> None:
        """An engine came or went; ``is_any``: whether one is ready."""
        if engine.ready and (death := self._doubtful.pop(engine.name, None)) is not None:
            # If only the connection had broken, it has not died.
            is_same = engine.epoch != 0 and engine.epoch == death.epoch
            self._resolve(death, was_killed=is_same or engine.info.follows_kill)
        if not is_any:
            self._away_since = self._away_since or time.monotonic()
            return
        self._away_since = None
        if self._waiting:
            self.place()

    def learn(self, engine: EngineClient, epoch: int, *, was_killed: bool) -> None:
        """The owner of an engine says how it ended, perhaps before that is noticed here."""
        if engine.epoch == epoch:
            engine.lose("its process has ended")
        death = self._doubtful.get(engine.name)
        if death is not None and death.epoch == epoch:
            del self._doubtful[engine.name]
            self._resolve(death, was_killed=was_killed)
            self.place()

    def _resolve(self, death: Death, *, was_killed: bool) -> None:
        death.was_killed = was_killed
        self._strike_out()

    def close(self) -> None:
        """End all that wait, because the server ends."""
        if self._timer is not None:
            self._timer.cancel()
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for lost in waiting:
            _end(lost.stream, "error", "the server is shutting down")

    # -- the source of streams that wait

    def on_read(self, stream: RequestStream) -> None:
        """Nothing can be parked here."""

    def on_unread(self, stream: RequestStream, num_unread_tokens: int) -> None:
        """Nothing comes here."""

    def grant_nowait(self, grant: Grant) -> None:
        """The stream itself keeps the grant for its next engine."""

    def abort_nowait(self, request_id: str) -> None:
        found = self._waiting.pop(request_id, None)
        if found is not None:
            _end(found.stream, "abort")

    # -- strikes

    def _strike_out(self) -> None:
        """Fail those that have killed their engines beyond doubt."""
        for request_id, (stream, _, error, _) in list(self._waiting.items()):
            known = [death for death in stream.deaths if death.was_killed is False]
            if len(known) >= MAX_STRIKES:
                del self._waiting[request_id]
                self._fail(stream, f"{error}, like the one before it, over this request")

    def _judge(self, engine: EngineClient) -> None:
        """Look how the one on probation does, after a step of its engine."""
        stream, since = self._probation[engine]
        has_come = stream.num_generated_tokens > stream.num_generated_before
        if has_come or stream.is_finished or time.monotonic() - since > PROBATION_S:
            stream.deaths.clear()
        if not stream.num_strikes:
            self._end_probation(engine)
            self.place()

    def _end_probation(self, engine: EngineClient) -> None:
        if self._probation.pop(engine, None) is not None:
            engine.on_step = None

    # -- time

    def _tick_later(self) -> None:
        if self._timer is None and self._waiting:
            after_s = min(TICK_S, max(self._failover_wait_s, 0.01))
            self._timer = asyncio.get_running_loop().call_later(after_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        for engine in list(self._probation):
            self._judge(engine)
        self._expire()
        self.place()

    def _expire(self) -> None:
        """Fail those for which no engine was ready long enough."""
        latest = time.monotonic() - self._failover_wait_s
        for request_id, (stream, lost_at, error, _) in list(self._waiting.items()):
            is_suspect = stream.num_strikes >= MAX_STRIKES
            since = lost_at if is_suspect else self._away_since
            if since is not None and max(lost_at, since) <= latest:
                del self._waiting[request_id]
                reason = "no engine serves" if error is None else str(error)
                if is_suspect:
                    reason += ", like the one before it, perhaps over this request"
                if self._failover_wait_s:
                    reason += f"; no other one came in {self._failover_wait_s:g} s"
                self._fail(stream, reason)

    def _fail(self, stream: RequestStream, reason: str) -> None:
        self.num_failed += 1
        logger.error("request %s fails: %s", stream.request.request_id, reason)
        stream.fail(EngineDead(reason))


def _end(stream: RequestStream, reason: str, error: str | None = None) -> None:
    output = RequestOutput(
        request_id=stream.request_id,
        new_token_ids=[],
        finish_reason="abort" if reason == "abort" else "error",
        error=error,
        error_code=None if error is None else "internal",
    )
    stream.deliver(output, time.monotonic(), [])
