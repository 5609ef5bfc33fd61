"""The stream of one request's outputs, from the engine's client to its reader."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from engine.errors import EngineDead
from engine.messages import FinishReason, GenerateRequest, Grant, Progress, RequestOutput
from engine.sampling.seeds import request_seed

Take = Callable[[RequestOutput, float], bool]
"""Takes an output in place of the reader, given the time in seconds of ``time.monotonic``. If it
returns False the output stays unread: the callback then wakes the reader itself, or has the output
offered again later, by ``RequestStream.offer_again``."""


class Source(Protocol):
    """Where a stream's outputs come from: an ``EngineClient``, or whoever looks for another one
    after that has died."""

    def on_read(self, stream: RequestStream) -> None: ...

    def on_unread(self, stream: RequestStream, num_unread_tokens: int) -> None: ...

    def grant_nowait(self, grant: Grant) -> None: ...

    def abort_nowait(self, request_id: str) -> None: ...


@dataclass(slots=True, eq=False)
class Death:
    """The end of an engine, as far as it is known."""

    epoch: int
    was_killed: bool | None
    """As of ``EngineClient``."""


class RequestStream(AsyncIterator[RequestOutput]):
    """The outputs of one request, for one reader at a time. ``EngineClient.submit`` makes it.

    Outputs that wait are merged into one, so a stream never holds more than the tokens of its
    request. A request with many unread tokens is parked: others get its place in the batch until
    its reader continues, or it is aborted after a while. The counts below include unread outputs.

    It knows all that another engine needs to go on with its request (``resumption``), so it
    outlives the engine that it began with.
    """

    # Slots, because with a thousand streams each cache line that an output needs must be fetched
    # from memory.
    __slots__ = (
        "__weakref__",
        "_error",
        "_last_token_at",
        "_pending",
        "_token_ids",
        "_wakers",
        "abandoned",
        "deaths",
        "finish_reason",
        "grant_so_far",
        "is_closing",
        "num_accepted_tokens",
        "num_cached_tokens",
        "num_draft_tokens",
        "num_generated_before",
        "num_generated_tokens",
        "num_moves",
        "on_change",
        "on_count",
        "queue_s",
        "request",
        "request_id",
        "sent_at",
        "source",
        "take",
    )

    def __init__(self, source: Source, request: GenerateRequest) -> None:
        self.source = source
        self.request = request
        """As it was submitted at first."""
        self.request_id = request.request_id
        """As the engine knows it at the moment."""
        self.sent_at = time.monotonic()
        """When it was sent to the engine at which it is now."""
        self.num_generated_tokens = 0
        self.num_cached_tokens = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.queue_s = 0.0
        """Seconds that it waited for its first admission; known from its first token on."""
        self.finish_reason: FinishReason | None = None
        """None until the last output has come, which after ``close`` takes a moment."""
        self.on_count: Callable[[int], None] | None = None
        """Called with the number of new tokens of each output, after the counts were updated and
        before the output can be read."""
        self.take: Take | None = None
        """Called with each output except the last, in the callback that receives it, if no other
        output waits to be read. Must not raise."""
        self.on_change: Callable[[], None] | None = None
        """Called when the stream has ended, or has something to read that was not offered to
        ``take``."""
        self.abandoned = False
        """Whether it was aborted because nobody read it for too long."""
        self.is_closing = False
        """Whether its reader has asked for its end."""
        self.grant_so_far: Grant | None = None
        """The latest that was granted after the submission."""
        self.num_generated_before = 0
        """Tokens that came before the engine at which the request is now."""
        self.deaths: list[Death] = []
        """Of engines in a row that died with it before it got a token of them."""
        self._token_ids = array("i")
        """All that came, for another engine to go on from."""
        self.num_moves = 0
        """How often it went on at another engine, or at the same after its restart."""
        self._pending: RequestOutput | None = None
        self._error: EngineDead | None = None
        self._wakers: list[asyncio.Future[None]] = []
        self._last_token_at: float | None = None
        """When the last token came, in seconds of ``time.monotonic``; None before the first, and
        after a pause that the reader has caused."""

    async def __anext__(self) -> RequestOutput:
        """The next output. The stream ends after the one with a finish reason.

        Raises ``EngineDead`` if the engine died before. Cancelling it loses no output.
        """
        while self._pending is None:
            if self._error is not None:
                raise EngineDead(str(self._error))
            if self.finish_reason is not None:
                raise StopAsyncIteration
            await self._change()
        output, self._pending = self._pending, None
        self.source.on_read(self)
        return output

    @property
    def is_readable(self) -> bool:
        """Whether ``__anext__`` would not wait."""
        return self._pending is not None or self.is_finished

    def grant(self, num_tokens: int, *, is_last: bool = False) -> None:
        """Allow ``num_tokens`` in all, for a request that was submitted with
        ``num_granted_tokens``. After the last grant it ends there with ``length``. Never blocks,
        never raises."""
        if not self.is_finished:
            self.grant_so_far = grant = Grant(self.request_id, num_tokens, is_last)
            self.source.grant_nowait(grant)

    def close(self) -> None:
        """Abort the request unless it has finished. Idempotent, never blocks, never raises.

        The engine's last output can still be read.
        """
        if not self.is_finished:
            self.is_closing = True
            self.source.abort_nowait(self.request_id)

    async def aclose(self) -> None:
        """``close``, then wait until the counts are final. Returns at once if the engine is
        dead."""
        self.close()
        while not self.is_finished:
            await self._change()

    @property
    def is_finished(self) -> bool:
        """Whether no output will come: the request has ended, or the engine has died."""
        return self.finish_reason is not None or self._error is not None

    async def _change(self) -> None:
        waker = asyncio.get_running_loop().create_future()
        self._wakers.append(waker)
        try:
            await waker
        finally:
            self._wakers.remove(waker)

    def deliver(self, output: RequestOutput, now: float, since: list[float]) -> None:
        """For ``EngineClient``: take an output. ``now``: when it came, in seconds of
        ``time.monotonic``. ``since``: a list for ``EngineClient.on_tokens``, to append to."""
        if num_tokens := len(output.new_token_ids):
            self.num_generated_tokens += num_tokens
            if num_tokens == 1:
                self._token_ids.append(output.new_token_ids[0])
            else:
                self._token_ids.extend(output.new_token_ids)
            if (last_at := self._last_token_at) is not None:
                if num_tokens == 1:
                    since.append(last_at)
                else:
                    since += [now - (now - last_at) / num_tokens] * num_tokens
            else:
                self.queue_s = output.queue_s or self.queue_s
            self._last_token_at = now
        if output.num_cached_tokens > self.num_cached_tokens:
            self.num_cached_tokens = output.num_cached_tokens
        if output.num_draft_tokens:
            self.num_draft_tokens = output.num_draft_tokens
            self.num_accepted_tokens = output.num_accepted_tokens
        # By a local name, because in Python 3.11 a call of ``self.on_count()`` looks it up in the
        # class first.
        count = self.on_count
        if count is not None:
            count(num_tokens)
        if output.finish_reason is None:
            if self._pending is not None:
                self._pending = _merge(self._pending, output)
                self.source.on_unread(self, len(self._pending.new_token_ids))
                return
            take = self.take
            if take is not None:
                if not take(output, now):
                    self._pending = output
                return
            self._pending = output
        else:
            self.finish_reason = output.finish_reason
            pending = self._pending
            self._pending = output if pending is None else _merge(pending, output)
        self._wake()

    def offer_again(self, now: float) -> None:
        """Offer what is unread to ``take`` once more. Never raises."""
        output, take = self._pending, self.take
        if output is None or take is None or self.finish_reason is not None:
            return
        if take(output, now):
            self._pending = None
            self.source.on_read(self)

    def resumption(self, engine_seed: int) -> GenerateRequest:
        """The request with which another engine goes on.

        It samples what the first engine would have, whose seed was ``engine_seed``. The request
        has another id, as an engine may still know the one before.
        """
        first, params = self.request, self.request.params
        if params.seed is None:
            seed = request_seed(engine_seed, first.request_id)
            params = msgspec.structs.replace(params, seed=seed)
        granted = self.grant_so_far
        return msgspec.structs.replace(
            first,
            request_id=f"{first.request_id}.{self.num_moves + 1}",
            params=params,
            num_granted_tokens=first.num_granted_tokens if granted is None else granted.num_tokens,
            progress=Progress(
                token_ids=self._token_ids.tolist(),
                num_cached_tokens=self.num_cached_tokens,
                num_draft_tokens=self.num_draft_tokens,
                num_accepted_tokens=self.num_accepted_tokens,
            ),
        )

    @property
    def num_strikes(self) -> int:
        """Deaths that it may be to blame for."""
        return sum(not death.was_killed for death in self.deaths)

    def move(self, source: Source, request_id: str) -> None:
        """For ``EngineClient``: the outputs come from ``source`` from now on, under this id."""
        self.source = source
        self.request_id = request_id
        self.sent_at = time.monotonic()
        self.num_generated_before = self.num_generated_tokens
        self.num_moves += 1
        self.break_off_timing()
        if (granted := self.grant_so_far) is not None:
            self.grant(granted.num_tokens, is_last=granted.is_last)

    def fail(self, error: EngineDead) -> None:
        """For ``EngineClient``: end the stream, because the engine has died."""
        self._error = error
        self._wake()

    def break_off_timing(self) -> None:
        """For ``EngineClient``: the time until the next token is the reader's doing, and is not
        reported to ``on_tokens``."""
        self._last_token_at = None

    def _wake(self) -> None:
        for waker in self._wakers:
            if not waker.done():
                waker.set_result(None)
        if self.on_change is not None:
            self.on_change()


def _merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Both outputs as one. It takes over the lists of ``first``: copying them at every step would
    take quadratic time."""
    first.new_token_ids.extend(second.new_token_ids)
    if _says_no_more(first, second):
        return first
    if first.logprobs is not None:
        first.logprobs.extend(second.logprobs or ())
    return RequestOutput(
        request_id=first.request_id,
        new_token_ids=first.new_token_ids,
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
        num_cached_tokens=max(first.num_cached_tokens, second.num_cached_tokens),
        error=second.error,
        error_code=second.error_code,
        logprobs=second.logprobs if first.logprobs is None else first.logprobs,
        prompt_logprobs=(
            second.prompt_logprobs if first.prompt_logprobs is None else first.prompt_logprobs
        ),
        num_draft_tokens=second.num_draft_tokens,
        num_accepted_tokens=second.num_accepted_tokens,
        unenforced=second.unenforced,
    )


def _says_no_more(first: RequestOutput, second: RequestOutput) -> bool:
    """Whether ``second`` adds only tokens to ``first``, which is the usual case."""
    return (
        second.finish_reason is None
        and first.logprobs is second.logprobs is None
        and first.unenforced is second.unenforced is None
        and second.prompt_logprobs is None
        and second.num_cached_tokens <= first.num_cached_tokens
        and second.num_draft_tokens == first.num_draft_tokens
        and second.num_accepted_tokens == first.num_accepted_tokens
    )
