"""One admitted request from its submission to the engine to the settlement of its usage.

    admission ──► Generations.begin ──► Generation.deltas ──► Answer: encoder × channel
                                              │
               end, cancel, disconnect, error, shutdown: all of them end in
                                              ▼
                        Generation.close ──► one settlement ──► tenants.usage.Ledger

``Generation.close`` is the only place where usage is settled. It settles once, and records what the
engine really did: for an aborted request it waits until the engine has reported the last tokens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import ExitStack, aclosing
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from engine.errors import EngineDead
from engine.messages import GenerateRequest, RequestOutput
from gateway import context, tracing
from gateway.admission.admitted import Admitted
from gateway.concurrency.live_set import LiveSet
from gateway.concurrency.owned_tasks import OwnedTasks
from gateway.errors import ApiError, Gone, InternalError, to_api_error
from gateway.generation import spans
from gateway.generation.answer import Delivery, Reader
from gateway.generation.choice import Choice, engine_error
from gateway.generation.compliance import ComplianceChecks
from gateway.generation.delta import Delta
from gateway.generation.events import Text
from gateway.generation.flushes import Flushes
from gateway.generation.grants import Grants
from gateway.generation.meter import Meter
from gateway.metrics.metrics import Metrics
from gateway.metrics.times import Times
from gateway.schemas.common import (
    CompletionTokensDetails,
    Compliance,
    PromptTokensDetails,
    Usage,
)
from tenants.errors import TenantsError
from tenants.quota import Quota
from tenants.types import Principal, UsageEvent, UsageStatus
from tenants.usage import Ledger

logger = logging.getLogger(__name__)
access_log = logging.getLogger("gateway.access")


_STATUSES: Mapping[str, UsageStatus] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
}


class Generation:
    """A request in the engine: all choices of all its prompts. Whoever begins one must ``close`` it
    in a ``finally``."""

    def __init__(
        self,
        owner: Generations,
        admitted: Admitted,
        choices: list[Choice],
        grants: Grants | None = None,
    ) -> None:
        self.admitted = admitted
        self.created = int(time.time())
        self._owner = owner
        self._hold = admitted.hold
        self._choices = choices
        self._prompts = [
            (choice.stream, len(prompt))
            for choice, prompt in zip(
                choices[:: admitted.num_choices], admitted.prompts, strict=bool(choices)
            )
        ]
        """The first stream of each prompt, and the prompt's length."""
        self._grants = grants
        self.trace = tracing.current.get()
        self._notes = context.notes.get()
        self.deferred = context.deferred.get()
        """Who settles the usage, if not the ledger."""
        if self.deferred is not None:
            self.deferred.begin()
        self.times = Times(time.monotonic())
        self._first_output: RequestOutput | None = None
        """Choice 0's, if ``first_output`` has read it and ``deltas`` has not."""
        self._cancelled = False
        self._failure: ApiError | None = None
        """Given to ``fail``, and not raised yet. What was raised is not kept: its traceback refers
        to this object."""
        self._failed_as: UsageStatus | None = None
        self._closed = False
        self._settlement: asyncio.Task[None] | None = None
        self._reader: Reader | None = None
        self._meter: Meter | None = None
        self.on_abort: Callable[[], None] | None = None
        """Called when the request is cancelled, fails or is closed, also after its last delta."""

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def num_generated_tokens(self) -> int:
        return sum([choice.stream.num_generated_tokens for choice in self._choices])

    async def first_output(self, within_s: float) -> None:
        """Wait at most ``within_s`` for the engine's first output, which ``deltas`` still yields.

        Raises ``ApiError`` if it is an error: the answer has not begun, so the error can still have
        its HTTP status.
        """
        choice = self._choices[0]
        try:
            async with asyncio.timeout(within_s):
                output = await anext(choice.stream)
        except TimeoutError:
            return
        except EngineDead as exc:
            self._failed_as = "error"
            raise to_api_error(exc) from exc
        if output.finish_reason == "error":
            self._failed_as = "error"
            raise engine_error(output, self.admitted.image_places)
        self._first_output = output

    async def deltas(self, delivery: Delivery | None = None) -> AsyncGenerator[Delta, None]:
        """The deltas of all choices as they come; the last one of each has its finish reason, which
        is ``cancelled`` after ``cancel``.

        Two deltas of a choice are at least ``flushes.pause_s`` apart, except for the last.
        ``delivery`` gets those that come while the caller waits for the next delta; they are not
        yielded. The last one of each choice always is. Raises ``ApiError`` when the request fails.
        """
        try:
            async with aclosing(self._read(delivery)) as running:
                async for delta in running:
                    if delta.finish_reason is not None:
                        delta.compliance = await self._compliance(self._choices[delta.index])
                    if not delta.is_empty:
                        yield delta
        except ApiError as exc:
            self._failed_as = self._failed_as or failed_as(exc)
            raise
        except Exception as exc:
            self._failed_as = "error"
            raise to_api_error(exc) from exc

    def _read(self, delivery: Delivery | None) -> AsyncGenerator[Delta, None]:
        first_output, self._first_output = self._first_output, None
        delivery = None if self._cancelled else delivery
        self._reader = Reader(self._choices, self._advance, self._owner.flushes, delivery)
        return self._reader.deltas(first_output)

    def cancel(self) -> None:
        """Stop because the client asked for it: ``deltas`` ends soon, with what was generated until
        now. It yields all of that: the delivery gets nothing more.
        """
        self._cancelled = True
        if self._reader is not None:
            self._reader.drop_delivery()
        self._abort()

    def end(self) -> None:
        """``cancel``, then ``close``: the usage is settled now, even if the reader stands still. It
        can still read the rest."""
        self.cancel()
        self.close()

    def fail(self, error: ApiError) -> None:
        """Stop because the server cannot continue: ``deltas`` raises ``error`` soon."""
        self._failure = self._failure or error
        self._failed_as = self._failed_as or failed_as(error)
        self._abort()

    async def _compliance(self, choice: Choice) -> Compliance | None:
        """Check the keywords that were not enforced; None if there are none."""
        checks, admitted = self._owner.checks, self.admitted
        if checks is None:
            return None
        tenant = admitted.principal.tenant.id
        if choice.has_calls:
            if admitted.loose_calls is None:
                return None
            return await checks.of_calls(admitted.loose_calls, choice.calls, tenant=tenant)
        if admitted.unenforced is None or choice.text is None:
            return None
        text = "".join(choice.text)
        return await checks.of_document(admitted.unenforced, text, tenant=tenant)

    async def usage(self) -> Usage:
        """The exact usage. For a request that was aborted it waits until the engine has reported
        the last tokens."""
        await self._finished()
        return usage_of(
            prompt_tokens=self.admitted.num_prompt_tokens,
            cached_tokens=self.num_cached_tokens,
            completion_tokens=self.num_generated_tokens,
            image_tokens=self.admitted.num_image_tokens,
            draft_tokens=sum(choice.stream.num_draft_tokens for choice in self._choices),
            accepted_tokens=sum(choice.stream.num_accepted_tokens for choice in self._choices),
            reasoning_tokens=sum(choice.num_reasoning_tokens for choice in self._choices),
        )

    def close(self) -> None:
        """Stop the engine's work if it still runs, and settle the usage. Idempotent."""
        if self._closed:
            return
        self._closed = True
        status = self._status()
        self.times.ended_at = time.monotonic()
        self.times.num_moves = sum(choice.stream.num_moves for choice in self._choices)
        self._owner.metrics.observe_request(self.times, self.num_generated_tokens, *self._labels)
        self._log(status)
        self._abort()
        self._reader = None  # It refers to this object: leave no cycle to the garbage collector.
        self._settlement = self._owner.settle(self, status)
        self._settlement.add_done_callback(self._forget_settlement)

    def _log(self, status: UsageStatus) -> None:
        """Note what became of the request for its line in the access log; if that has been written,
        or there is none, as on a WebSocket, write a line."""
        facts = self._facts(status)
        if self._notes is not None and not self._notes.is_written:
            self._notes.update(facts)
            return
        principal = self.admitted.principal
        fields = {
            "request_id": str(self.admitted.id),
            "duration_ms": _milliseconds(time.monotonic() - self.times.began_at),
            **facts,
            "tenant": principal.tenant.name,
            "key": principal.key.public_id,
        }
        access_log.info("generation", extra={"fields": fields})

    @property
    def _labels(self) -> tuple[str, str]:
        """The model and the endpoint for the metrics. Tenants may have any number of adapters, so
        these are one model there."""
        model = self.admitted.model if self.admitted.adapter is None else "adapters"
        return model, "" if self._notes is None else self._notes.endpoint

    def _facts(self, status: UsageStatus) -> dict[str, str | int | float]:
        facts: dict[str, str | int | float] = {
            "model": self.admitted.model,
            "finish": status,
            "prompt_tokens": self.admitted.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "completion_tokens": self.num_generated_tokens,
        }
        if self.times.first_token_at is not None:
            facts["queue_ms"] = _milliseconds(self.times.queue_s)
            facts["ttft_ms"] = _milliseconds(self.times.first_token_at - self.times.began_at)
        if self.times.num_moves:
            facts["moves"] = self.times.num_moves
        return facts

    def _forget_settlement(self, _: asyncio.Task[None]) -> None:
        self._settlement = None  # Its context may refer to this object.

    async def settled(self) -> None:
        """After ``close``: wait until the usage is in the ledger, or kept for it, and what was
        reserved is given back."""
        assert self._closed
        if self._settlement is not None:
            await asyncio.wait((self._settlement,))

    def count_in(self, ledger: Ledger) -> None:
        """Count tokens in ``ledger``'s file from now on, so that they are charged even if this
        process is killed."""
        running = None
        if self.deferred is None:
            event = self._event("error", self.admitted.num_prompt_tokens, 0, 0)
            running = ledger.begin(event, self.admitted.price)
        self._meter = Meter(running, self._grants, self._count_cached)
        self._hold.watch(self._meter.generated)
        for choice in self._choices:
            choice.stream.on_count = self._meter.count
        if self._grants is not None:
            self._grants.begin([choice.stream for choice in self._choices])

    def _count_cached(self, num_tokens: int) -> tuple[int, bool]:
        """For ``Meter``: how many prompt tokens were cached, and whether that may still change. The
        first tokens are reported to the metrics."""
        times = self.times
        if times.first_token_at is None and num_tokens:
            times.first_token_at = time.monotonic()
            times.queue_s = max(choice.stream.queue_s for choice in self._choices)
            self._owner.metrics.observe_first_token(
                times.first_token_at - times.began_at, *self._labels
            )
        return self.num_cached_tokens, times.first_token_at is None or len(self._choices) > 1

    def stop_counting(self) -> None:
        """Count no more: the usage is now in the ledger or in its journal."""
        for choice in self._choices:
            choice.stream.on_count = None
        if self._meter is not None:
            self._meter.end()

    async def usage_event(self, status: UsageStatus) -> UsageEvent:
        """The row for the ledger. A request that failed before its first token costs nothing."""
        await self._finished()
        if status == "error" and self.num_generated_tokens == 0:
            return self._event(status, 0, 0, 0)
        return self._event(
            status,
            self.admitted.num_prompt_tokens,
            self.num_cached_tokens,
            self.num_generated_tokens,
        )

    def _event(
        self, status: UsageStatus, prompt_tokens: int, cached_tokens: int, completion_tokens: int
    ) -> UsageEvent:
        principal = self.admitted.principal
        return UsageEvent(
            request_id=self.admitted.id,
            tenant_id=principal.tenant.id,
            key_id=principal.key.id,
            model=self.admitted.model,
            status=status,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=completion_tokens,
            created_at=datetime.fromtimestamp(self.created, UTC),
            end_user=self.admitted.end_user,
            cost_micro=self.admitted.price.cost(prompt_tokens, cached_tokens, completion_tokens),
            endpoint=None if self._notes is None else self._notes.endpoint or None,
        )

    @property
    def num_cached_tokens(self) -> int:
        """Those of each prompt's first choice: a prompt counts once, however many answers it
        has."""
        return sum([min(stream.num_cached_tokens, length) for stream, length in self._prompts])

    def _status(self) -> UsageStatus:
        if self._failed_as is not None:
            return self._failed_as
        reasons = {choice.finish_reason for choice in self._choices}
        if None in reasons or "abort" in reasons:
            return "cancelled" if self._cancelled else "disconnected"
        return _STATUSES[self._choices[0].finish_reason or ""]

    def _advance(self, choice: Choice, output: RequestOutput) -> Delta:
        if output.finish_reason == "abort" and choice.finish_reason is None:
            if self._failure is not None:
                raise self._take_failure(self._failure)
            if choice.stream.abandoned or (self._closed and not self._cancelled):
                raise Gone("Nobody read this stream any more.", code="stream_abandoned")
            elif not self._cancelled:
                raise InternalError("The request was aborted by the server.")
        delta = choice.advance(output)
        if delta.finish_reason == "abort":
            delta.finish_reason = "cancelled"
        return delta

    def _take_failure(self, failure: ApiError) -> ApiError:
        self._failure = None
        return failure

    def raise_failure(self) -> None:
        """Raise the error that the request was given after its last delta, if any."""
        if self._failure is not None:
            raise self._take_failure(self._failure)

    def _abort(self) -> None:
        if self.on_abort is not None:
            self.on_abort()
        for choice in self._choices:
            choice.stream.close()

    async def _finished(self) -> None:
        for choice in self._choices:
            await choice.stream.aclose()


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)


def failed_as(error: ApiError) -> UsageStatus:
    """How the ledger calls the end of a request with this error."""
    return "disconnected" if isinstance(error, Gone) else "error"


class Generations:
    """All requests that this gateway has in the engine, and the settlements under way."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        quota: Quota,
        metrics: Metrics,
        flushes: Flushes,
        checks: ComplianceChecks | None = None,
    ) -> None:
        """``checks``: None checks no answers."""
        self.metrics = metrics
        self.checks = checks
        self.flushes = flushes
        self._ledger = ledger
        self._quota = quota
        self._texts: defaultdict[str, dict[int, Text]] = defaultdict(dict)
        """By model and token id, shared by all choices: see ``Choice.texts``."""
        self._live = LiveSet[Generation]()
        self._settlements = OwnedTasks()

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, admitted: Admitted) -> Generation:
        """Submit all choices of all prompts or none. Raises ``EngineDead`` or ``QueueFull``.

        Takes over ``admitted.hold``: it is released if this raises, and settled otherwise.
        """
        choices: list[Choice] = []
        num_choices = len(admitted.prompts) * admitted.num_choices
        assert admitted.params.max_tokens is not None
        grants = Grants.of(admitted.hold, num_choices, admitted.params.max_tokens)
        with ExitStack() as undo:
            undo.callback(self.release, admitted)
            for index in range(num_choices):
                choice = self._submit(admitted, index, grants)
                undo.callback(choice.stream.close)
                choices.append(choice)
            undo.pop_all()
        generation = Generation(self, admitted, choices, grants)
        self.add(generation)
        return generation

    def add(self, generation: Generation) -> None:
        """Count and list a request that begins now."""
        generation.count_in(self._ledger)
        self._live.add(generation)

    def settle(self, generation: Generation, status: UsageStatus) -> asyncio.Task[None]:
        """For ``Generation.close`` only. Settles in a task of its own, which a cancelled caller
        cannot interrupt."""
        self._live.discard(generation)
        return self._settlements.start(
            self._settle(generation, status), name=f"settle {generation.admitted.id}"
        )

    def fail_all(self, error: ApiError) -> None:
        for generation in list(self._live):
            generation.fail(error)

    def fail_key(self, public_id: str, error: ApiError) -> None:
        """Fail all requests that were authenticated with this key."""
        for generation in list(self._live):
            if generation.admitted.principal.key.public_id == public_id:
                generation.fail(error)

    def fail_request(self, request_id: UUID, error: ApiError) -> None:
        """Fail this request, if it runs here."""
        for generation in list(self._live):
            if generation.admitted.id == request_id:
                generation.fail(error)

    def live(self) -> tuple[Generation, ...]:
        """The requests that run at the moment."""
        return tuple(self._live)

    def principals(self) -> Iterable[Principal]:
        """The principals whose requests run, each object once."""
        principals = [generation.admitted.principal for generation in self._live]
        return {id(principal): principal for principal in principals}.values()

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until no request is left, at most ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._live.wait_empty()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Close the timer of streams. To be called when no request is left."""
        self.flushes.close()

    async def drain(self, deadline_s: float) -> int:
        """Wait at most ``deadline_s`` for the settlements under way; returns how many are left."""
        return await self._settlements.wait(deadline_s)

    def _submit(self, admitted: Admitted, index: int, grants: Grants | None) -> Choice:
        principal, model = admitted.principal, admitted.base
        prompt_index, copy = divmod(index, admitted.num_choices)
        request = GenerateRequest(
            request_id=f"{admitted.id.hex}-{index}",
            prompt_token_ids=admitted.prompts[prompt_index],
            params=admitted.params.branch(copy),
            prediction_token_ids=admitted.prediction,
            cache_salt=admitted.cache_salt,
            num_public_tokens=model.public_prefixes.num_public_tokens(
                principal.tenant.name, admitted.prompts[prompt_index]
            ),
            group=f"{admitted.id.hex}-{prompt_index}" if admitted.num_choices > 1 else "",
            adapter=admitted.adapter,
            fair_key=principal.tenant.id.hex,
            weight=principal.weight,
            priority=admitted.priority,
            num_granted_tokens=None if grants is None else grants.first(index),
            max_cached_blocks=principal.max_cached_blocks,
            images=[] if admitted.images is None else [*admitted.images.images],
        )
        stream, texts = model.engine.submit(request), self._texts[model.name]
        return Choice(index, stream, admitted, model.tokenizer, texts)

    async def _settle(self, generation: Generation, status: UsageStatus) -> None:
        try:
            event = await generation.usage_event(status)
            await generation.admitted.hold.stop()
            self.metrics.count_usage(event)
            if generation.deferred is None:
                await self._ledger.settle(event)
            else:
                generation.deferred.settle(event)
            if generation.trace is not None:
                spans.record(generation.trace, generation.admitted, event, generation.times)
        except TenantsError:
            logger.exception("usage of %s is not in the ledger", generation.admitted.id)
            generation.stop_counting()
        else:
            generation.stop_counting()
        finally:
            if generation.deferred is not None:
                generation.deferred.settle(None)
            _let_go(generation.admitted)
            await generation.admitted.hold.close()

    def release(self, admitted: Admitted) -> None:
        """Give back what a request that does not begin has reserved; it stays counted as a
        request."""
        hold = admitted.hold
        _let_go(admitted)
        self._settlements.start(self._quota.release(hold), name=f"release {hold.request_id}")


def _let_go(admitted: Admitted) -> None:
    """Remove the pictures of a request that no engine needs any more."""
    if admitted.images is not None:
        admitted.images.close()


def usage_of(
    *,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    draft_tokens: int = 0,
    accepted_tokens: int = 0,
    reasoning_tokens: int = 0,
    image_tokens: int = 0,
) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=cached_tokens, image_tokens=image_tokens or msgspec.UNSET
        ),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=reasoning_tokens,
            accepted_prediction_tokens=accepted_tokens,
            rejected_prediction_tokens=draft_tokens - accepted_tokens,
        ),
    )
