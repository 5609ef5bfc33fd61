"""The asyncio client of the engine: submits requests, and returns their streams. No torch import.

One background task watches the engine, and restarts it when it has died or hangs (work waits, but
no step ends). Streams in flight are handed to ``on_lost``, which finds another engine to go on with
them (``adopt``); without it they raise ``EngineDead``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from engine.client.adapters import AdapterCalls
from engine.client.backlog import Backlog
from engine.client.stream import RequestStream
from engine.client.transport import EngineProcess, MakeTransport, Transport
from engine.client.updates import RequestUpdates
from engine.config import EngineConfig
from engine.errors import (
    ConfigError,
    EngineDead,
    EngineError,
    ModelLoadError,
    QueueFull,
)
from engine.messages import (
    AbortRequest,
    AdapterAnswer,
    BeginEpoch,
    ClientMessage,
    EngineMessage,
    Failed,
    GenerateRequest,
    Grant,
    LoadProgress,
    Ping,
    Ready,
    RequestOutput,
    Stats,
    StepOutputs,
)

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 1.0
FRESH_S = 0.05
"""The greatest age of the engine's last report of its queue for which a request is refused by
it."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 30.0
MAX_REATTACH_S = 1.0
"""The longest backoff towards an engine that another process starts again."""
BURST = 32
"""Outputs that are delivered together. Not all of a step, so that the first need not wait for the
last."""
STABLE_S = 30.0
"""After an engine has lived this long, the next restart begins with the shortest backoff, even if
it has failed."""

MIN_WAIT_S = 1.0
"""A request that has waited for less is not taken back: its turn may be about to come."""

_FAILURES: dict[str, type[EngineError]] = {"config": ConfigError, "model": ModelLoadError}


OnLost = Callable[[list[RequestStream], EngineDead | None], None]
"""Takes streams that have lost their engine: with its death, or because they were to leave it."""


def _ignore_tokens(_now: float, _since: Sequence[float]) -> None:
    """The default ``on_tokens``."""


class EngineClient:
    """Owns one engine process. Call its methods only on the event loop that called ``start``."""

    # What others hear of it, where they set these.
    on_lost: OnLost | None = None
    on_ended: Callable[[], None] | None = None
    """Called when the engine has ended, as ``epoch`` and ``was_killed`` say."""
    on_change: Callable[[], None] | None = None
    """Called when the engine begins or ceases to be ready."""
    on_begun: Callable[[RequestStream, int], None] | None = None
    """Called with the first output of each request, and with its cached tokens."""
    on_step: Callable[[], None] | None = None
    """Called after the outputs of each step, while it is set."""
    on_report: Callable[[], None] | None = None
    """Called with each new ``stats``."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_progress: Callable[[LoadProgress], None] | None = None,
        max_num_queued_reqs: int | None = 1024,
        start_timeout_s: float = 1800.0,
        hang_timeout_s: float = 120.0,
        max_unread_tokens: int = 512,
        stall_timeout_s: float = 60.0,
        shutdown_timeout_s: float = 5.0,
        transport: MakeTransport = EngineProcess,
        name: str = "0",
    ) -> None:
        """``max_num_queued_reqs``: the most requests without an output, beyond which a tenant
        with less than its part of them is still served; None for no limit.

        ``hang_timeout_s`` must exceed the longest step, because the engine sends nothing during
        one. A request with more than ``max_unread_tokens`` that its reader has not taken is parked,
        and aborted if it stays so for ``stall_timeout_s``. ``name``: among several engines.
        """
        self.name = name
        self._config = config
        self._on_progress = on_progress
        self._max_num_queued_reqs = max_num_queued_reqs
        self._start_timeout_s = start_timeout_s
        self._hang_timeout_s = hang_timeout_s
        self._max_unread_tokens = max_unread_tokens
        self._stall_timeout_s = stall_timeout_s
        self._shutdown_timeout_s = shutdown_timeout_s
        self._make_transport = transport
        self._transport: Transport | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._closed = False
        # Of the running engine process
        self._starting: asyncio.Future[Ready] | None = None
        self._info: Ready | None = None
        self._death = asyncio.Event()
        self._dead_because = "it has not been started"
        self.was_killed: bool | None = False
        """Whether the last engine was killed from outside, so that no request is to blame for its
        end; None if only its owner knows, who says so by the next one's ``Ready``."""
        self.epoch = 0
        """Of the engine that runs, or ran last."""
        self._progress_at = 0.0
        self._pings: deque[tuple[asyncio.Future[Stats], int]] = deque()
        """Each with the ``Backlog.mark`` of when it was sent."""
        self.adapters = AdapterCalls(self._send_now)
        self._asked: asyncio.Future[Stats] | None = None
        """The ping that all callers of ``check_queue`` wait for."""
        self.backlog = Backlog(config)
        self._updates = RequestUpdates(self._send_now)
        self._parked: dict[RequestStream, float] = {}
        """When each stream was parked, the longest ago first."""
        # Live requests; those without an output yet are also in _queued, with their fair keys.
        self._streams: dict[str, RequestStream] = {}
        self._queued: dict[str, str] = {}
        self.stats = Stats()
        """The latest, at most ``PING_INTERVAL_S`` old while the engine answers."""
        self.on_tokens: Callable[[float, Sequence[float]], None] = _ignore_tokens
        """Called after each step with its time, and with the times of the tokens before: one for
        each token, except for those of a request's first output. Tokens that come together count as
        evenly spaced. In seconds of ``time.monotonic``. Must not raise."""
        self.around_outputs: AbstractContextManager[object] = contextlib.nullcontext()
        """Entered anew for every ``BURST`` outputs of a step, while they are delivered. Must not
        raise."""
        self._leaving: set[str] = set()
        """Ids of requests that are aborted here to go on elsewhere."""
        self._num_others = 0
        """Requests of other clients that the engine had at its last report."""

    # -- life cycle

    async def start(self) -> None:
        """Start the engine, and wait until it serves.

        Raises ``ModelLoadError``, ``ConfigError`` or ``EngineDead``, with no process left.
        """
        assert self._supervisor is None, "an EngineClient starts once"
        await self._launch()
        self._begin_to_supervise(is_away=False)

    def join(self) -> None:
        """As ``start``, but without waiting: the engine may come at any time. ``on_change`` tells
        of it, and what is in its way is logged."""
        assert self._supervisor is None, "an EngineClient starts once"
        self._begin_to_supervise(is_away=True)

    def _begin_to_supervise(self, *, is_away: bool) -> None:
        self._supervisor = asyncio.create_task(
            self._supervise(is_away=is_away), name="engine-supervisor"
        )
        self._supervisor.add_done_callback(_report_crash)

    async def close(self) -> None:
        """End live streams with an error output, and stop the engine, with no process left.
        Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._info = None
        self._dead_because = "it was shut down"
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        for stream in self._take_streams():
            stream.deliver(
                RequestOutput(
                    request_id=stream.request_id,
                    new_token_ids=[],
                    finish_reason="error",
                    error="the server is shutting down",
                    error_code="internal",
                ),
                time.monotonic(),
                [],
            )
        self.adapters.fail(self._dead_because)
        if self._transport is not None:
            await self._transport.stop(self._shutdown_timeout_s)

    @property
    def info(self) -> Ready:
        """What the running engine has reported of itself. Raises ``EngineDead`` if none runs."""
        if self._info is None:
            raise EngineDead(f"the engine is not running: {self._dead_because}")
        return self._info

    @property
    def ready(self) -> bool:
        """Whether requests are served: the engine runs, has loaded its model, and does not hang."""
        return self._info is not None

    # -- requests

    def submit(self, request: GenerateRequest) -> RequestStream:
        """Queue a request; never blocks. Raises ``EngineDead`` or ``QueueFull``, with nothing
        queued."""
        _ = self.info
        assert request.request_id not in self._streams, "request ids are unique while in flight"
        self._refuse_too_many(request.fair_key)
        stream = RequestStream(self, request)
        self._send_request(stream, request)
        return stream

    def adopt(self, stream: RequestStream) -> None:
        """Go on with the request of a stream that has lost its engine, of the same model and
        settings. Raises ``EngineDead`` or ``QueueFull``: then nothing has changed."""
        _ = self.info
        request = stream.resumption(self._config.seed)
        self._send_request(stream, request)
        stream.move(self, request.request_id)

    def _send_request(self, stream: RequestStream, request: GenerateRequest) -> None:
        assert self._transport is not None
        self._transport.send(request)
        self.backlog.send(request)
        self._streams[request.request_id] = stream
        self._queued[request.request_id] = request.fair_key

    def lose(self, reason: str) -> None:
        """Take the engine for dead: its streams go to ``on_lost``, and nothing more is heard of it
        until it is reached again."""
        if self._info is not None:
            self._died(EngineDead(reason), was_killed=None)

    def retire(self, epoch: int) -> None:
        """Have the engine started anew, if it is still in this epoch. What runs there is taken for
        lost, so drain it before."""
        if self._info is not None and self._info.epoch == epoch:
            assert self._transport is not None
            with contextlib.suppress(QueueFull):  # It does not read, and will be taken for dead.
                self._transport.retire()

    def begin_epoch(self, epoch: int) -> None:
        """Have the engine forget all clients but this one, its owner."""
        self._send_now(BeginEpoch(epoch))

    def evacuate(self) -> None:
        """Have all requests go on elsewhere: their streams come to ``on_lost`` as soon as the
        engine has given them up."""
        for request_id, stream in self._streams.items():
            if not stream.is_closing:
                self._leaving.add(request_id)
                self._updates.abort(request_id)

    def take_back(self, num_most: int) -> None:
        """Have half of the requests that have long waited for their turn go on elsewhere, as
        ``evacuate`` does: the latest ones, which would wait the longest. One that runs meanwhile
        stays."""
        latest = time.monotonic() - MIN_WAIT_S
        streams = [self._streams[name] for name in self._queued if name not in self._leaving]
        waiting = [
            stream.request_id
            for stream in streams
            # Choices that share the blocks of their prompt stay together.
            if not (stream.is_closing or stream.deaths or stream.request.group)
            if stream.sent_at <= latest
        ]
        num = min((len(waiting) + 1) // 2, num_most, self.stats.num_waiting)
        if num > 0:
            with contextlib.suppress(EngineDead, QueueFull):
                self._send_now(AbortRequest(waiting[-num:], if_waiting=True))
                self._leaving.update(waiting[-num:])

    @property
    def num_queued(self) -> int:
        """This client's own requests that have no output yet."""
        return len(self._queued)

    @property
    def num_free_rows(self) -> int:
        """Requests that would run at once, as far as is known here; none while others wait."""
        others_wait = bool(self._queued or self.stats.num_waiting)
        return 0 if others_wait else max(0, self._config.num_seqs - self.load)

    @property
    def num_streams(self) -> int:
        """This client's own requests that have not ended."""
        return len(self._streams)

    @property
    def load(self) -> int:
        """Unfinished requests at the engine, those of other clients as of its last report."""
        return len(self._streams) + self._num_others

    def _refuse_too_many(self, fair_key: str) -> None:
        """Raise ``QueueFull`` at the limit, as ``queue_limits.refusal`` does: to those only that
        have their part of it."""
        limit = self._max_num_queued_reqs
        if limit is None or len(self._queued) < limit:
            return
        counts = Counter(self._queued.values())
        counts[fair_key] += 1
        if counts[fair_key] * len(counts) > limit:
            raise QueueFull(
                f"{len(self._queued)} requests wait for the engine already "
                f"(max_num_queued_reqs = {limit}): try again later"
            )

    def abort_nowait(self, request_id: str) -> None:
        """Ask the engine to end a request; its last output still comes. Ignores unknown ids."""
        if request_id in self._streams:
            self._updates.abort(request_id)

    async def abort(self, request_id: str) -> None:
        """``abort_nowait``, then wait until the request has ended."""
        if (stream := self._streams.get(request_id)) is not None:
            await stream.aclose()

    async def check_queue(self, fair_key: str) -> None:
        """Raise ``QueueFull`` if one more request of this tenant would be refused.

        It costs nothing while there certainly is room. Otherwise the engine is asked, unless its
        last report is recent; all callers share one question at a time. Raises ``EngineDead``.
        """
        _ = self.info
        if self.backlog.refusal(fair_key) is None:
            return
        if self.backlog.age_s > FRESH_S:
            if self._asked is None or self._asked.done():
                self._asked = self._ping()
            await asyncio.shield(self._asked)
        error = self.backlog.refusal(fair_key)
        if error is not None:
            raise error

    async def fetch_stats(self) -> Stats:
        """Fresh statistics, taken between two steps. Raises ``EngineDead``."""
        _ = self.info
        return await self._ping()

    # -- messages

    def _on_message(self, message: EngineMessage) -> None:
        match message:
            case StepOutputs():
                self._dispatch(message.outputs)
            case Stats():
                self._on_stats(message)
            case AdapterAnswer():
                self.adapters.answer(message)
            case LoadProgress():
                if self._on_progress is not None:
                    self._on_progress(message)
            case Ready():
                if self._starting is not None and not self._starting.done():
                    self._starting.set_result(message)
            case Failed():
                self._died(_FAILURES.get(message.kind, EngineDead)(message.message))

    def _dispatch(self, outputs: list[RequestOutput]) -> None:
        now = self._progress_at = time.monotonic()
        since: list[float] = []
        for start in range(0, len(outputs), BURST):
            with self.around_outputs:
                self._deliver_burst(outputs[start : start + BURST], now, since)
        self.on_tokens(now, since)
        if self.on_step is not None:
            self.on_step()

    def _hand_over(self, stream: RequestStream, output: RequestOutput) -> bool:
        """Whether a request ended here only to go on elsewhere."""
        if output.request_id not in self._leaving:
            return False
        self._leaving.remove(output.request_id)
        if output.finish_reason != "abort" or stream.is_closing or self.on_lost is None:
            return False
        self.on_lost([stream], None)
        return True

    def _deliver_burst(self, outputs: list[RequestOutput], now: float, since: list[float]) -> None:
        streams, queued = self._streams, self._queued
        for output in outputs:
            stream = streams.get(output.request_id)
            if stream is None:
                continue
            if queued:
                is_first = queued.pop(output.request_id, None) is not None
                if is_first and self.on_begun is not None:
                    self.on_begun(stream, output.num_cached_tokens)
            if output.finish_reason is not None:
                del streams[output.request_id]
                self._parked.pop(stream, None)
                self._updates.forget(output.request_id)
                if self._leaving and self._hand_over(stream, output):
                    continue
            stream.deliver(output, now, since)

    def _on_stats(self, stats: Stats) -> None:
        num_all = stats.num_running + stats.num_waiting + stats.num_parked
        self._num_others = max(0, num_all - len(self._streams))
        working = stats.num_running + stats.num_waiting > 0
        if not working or stats.num_steps != self.stats.num_steps:
            self._progress_at = time.monotonic()
        self.stats = stats
        if self._pings:
            waiter, mark = self._pings.popleft()
            self.backlog.report(stats, mark)
            if not waiter.done():
                waiter.set_result(stats)
        if self.on_report is not None:
            self.on_report()

    def _send_now(self, message: ClientMessage) -> None:
        """Send a message. Raises ``EngineDead``, ``QueueFull``."""
        _ = self.info
        assert self._transport is not None
        self._transport.send(message)

    def _ping(self) -> asyncio.Future[Stats]:
        assert self._transport is not None
        self._transport.send(Ping())
        waiter: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._pings.append((waiter, self.backlog.mark()))
        return waiter

    def grant_nowait(self, grant: Grant) -> None:
        """For ``RequestStream.grant``."""
        self._updates.grant(grant)

    # -- readers that stall

    def on_unread(self, stream: RequestStream, num_unread_tokens: int) -> None:
        """For ``RequestStream``: so many tokens wait for its reader. Parks it if they are many."""
        if num_unread_tokens > self._max_unread_tokens and stream not in self._parked:
            self._parked[stream] = time.monotonic()
            self._updates.park(stream.request_id)

    def on_read(self, stream: RequestStream) -> None:
        """For ``RequestStream``: its reader has taken all that waited."""
        if self._parked.pop(stream, None) is not None and stream.finish_reason is None:
            stream.break_off_timing()
            self._updates.unpark(stream.request_id)

    def _abort_abandoned(self) -> None:
        """Abort requests that were parked for too long."""
        now = time.monotonic()
        for stream, since in list(self._parked.items()):
            if now - since < self._stall_timeout_s:
                break
            stream.abandoned = True
            stream.close()

    # -- death and restart

    async def _launch(self) -> None:
        self._starting = asyncio.get_running_loop().create_future()
        self._death = asyncio.Event()
        told = {"follows_kill": True} if self.was_killed else {}
        self._transport = self._make_transport(
            self._config, self._on_message, self._on_exit, **told
        )
        try:
            async with asyncio.timeout(self._start_timeout_s):
                info = await self._starting
        except TimeoutError:
            await self._transport.stop(0)
            raise EngineDead(f"the engine did not start in {self._start_timeout_s:g} s") from None
        except BaseException:
            await self._transport.stop(0)
            raise
        self.stats = Stats()
        self.backlog = Backlog(self._config)
        self._progress_at = time.monotonic()
        self._info = info
        self.epoch = info.epoch
        self._notify()

    def _notify(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _on_exit(self, reason: str, *, was_killed: bool | None = None) -> None:
        self._died(EngineDead(reason), was_killed=was_killed)

    def _died(self, error: EngineError, *, was_killed: bool | None = False) -> None:
        """Fail everything that waits for the engine. Only the first cause counts."""
        if self._starting is not None and not self._starting.done():
            self._starting.set_exception(error)
        if self._info is None:
            return
        self._info = None
        self._dead_because = str(error)
        self.was_killed = was_killed
        for waiter, _ in self._pings:
            if not waiter.done():
                waiter.set_exception(EngineDead(str(error)))
                waiter.exception()  # Otherwise asyncio would log it if nobody waits.
        self._pings.clear()
        self.adapters.fail(self._dead_because)
        self._updates.clear()
        self._parked.clear()
        self._leaving.clear()
        self._num_others = 0
        streams = self._take_streams()
        self._death.set()
        if self.on_ended is not None:
            self.on_ended()
        self._notify()
        lost = EngineDead(str(error))
        for stream in streams:
            if stream.is_closing or self.on_lost is None:
                stream.fail(lost)
        if self.on_lost is not None:
            self.on_lost([stream for stream in streams if not stream.is_closing], lost)

    def _take_streams(self) -> list[RequestStream]:
        streams = list(self._streams.values())
        self._streams.clear()
        self._queued.clear()
        return streams

    async def _supervise(self, *, is_away: bool) -> None:
        backoff_s = await self._restart(0.0) if is_away else MIN_BACKOFF_S
        while True:
            started_at = time.monotonic()
            await self._watch()
            if self.was_killed or time.monotonic() - started_at > STABLE_S:
                backoff_s = MIN_BACKOFF_S
            elif self.was_killed is None:
                backoff_s = min(backoff_s, MAX_REATTACH_S)
            logger.error("engine died, restarting: %s", self._dead_because)
            assert self._transport is not None
            await self._transport.stop(0)
            backoff_s = await self._restart(backoff_s)

    async def _watch(self) -> None:
        """Return when the engine has died. One that hangs is declared dead."""
        interval_s = min(PING_INTERVAL_S, self._hang_timeout_s / 4, self._stall_timeout_s / 4)
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._death.wait()
                return
            except TimeoutError:
                pass
            assert self._transport is not None
            self._transport.drain()  # Messages that came while this loop was busy are progress.
            if self._death.is_set():
                return
            if time.monotonic() - self._progress_at > self._hang_timeout_s:
                self._died(EngineDead(f"the engine made no progress in {self._hang_timeout_s:g} s"))
                return
            self._abort_abandoned()
            self._updates.flush()
            with contextlib.suppress(QueueFull):  # It does not read. The hang timeout decides.
                self._ping()

    async def _restart(self, backoff_s: float) -> float:
        """Start the engine again; returns the backoff to begin with after the next death."""
        while True:
            await asyncio.sleep(backoff_s)
            backoff_s = min(max(2 * backoff_s, MIN_BACKOFF_S), MAX_BACKOFF_S)
            try:
                await self._launch()
            except EngineError as error:
                self._dead_because = str(error)
                logger.error("engine did not start, next try in %.1f s: %s", backoff_s, error)
            else:
                return backoff_s


def _report_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("the engine's supervisor crashed", exc_info=error)
