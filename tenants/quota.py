"""A request's quota from admission to settlement: reserved, extended while it generates, settled.

    reserve ──► hold (prompt + a slice) ──► ask(more), ahead of ──► Ledger.settle(event)
                     ▲                      the generation
                     └──── extend ◄──────────────┘

The ledger settles: its transaction gives back what was reserved and not used. A hold is a lease of
this process. ``run`` renews all leases, with the number of tokens generated so far, and settles
requests whose process has died. For principals without limits nothing is reserved, which saves the
round trip; their requests are only listed, for administrators, once they have run for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import msgspec

from tenants.attempts import Attempts
from tenants.errors import QuotaExceeded, StoreUnavailable
from tenants.limits import Price, QuotaAnswer, QuotaRequest
from tenants.outage import CALM_S, OutageLog
from tenants.refusals import Refusals
from tenants.standby import Claim, Standby
from tenants.store import Store
from tenants.types import Principal

logger = logging.getLogger(__name__)

SLICE_TOKENS = 256
REFRESH_S, MAX_REFRESH_S = 1.0, 10.0
"""Time between two readings of what the limits leave, for the time without the store."""
REFRESH_SHARE = 0.05
"""The most of this process's time that these readings wait for the store."""
MAX_POLL_S = 0.25
LIST_AFTER_S = 1.0
"""The age at which a request without limits is listed. One that ends sooner costs the store nothing
but its settlement."""
LIST_EVERY_S = 0.25
"""Requests that reach that age within this time are listed together."""


class Hold:
    """The reservation of one request, made by ``Quota.reserve``. It ends with ``close``.

    Its owner must ensure that no more than ``allowed`` tokens are generated.
    """

    def __init__(
        self,
        quota: Quota,
        request: QuotaRequest,
        max_tokens: int,
        answer: QuotaAnswer,
        *,
        is_last: bool = False,
    ) -> None:
        self.answer = answer
        """The store's answer, for the ``x-ratelimit-*`` headers; it has no windows if no policy
        limits the rate."""
        self.on_more: Callable[[], None] | None = None
        """Called when the store has answered ``ask``."""
        self.request = request
        """What was asked of the store at first."""
        self._quota = quota
        self._max_tokens = max_tokens
        self._allowed = answer.completion_tokens
        self._generated = 0
        self._count: Callable[[], int] | None = None
        self._ended = is_last
        self._is_stopped = False
        self._extending: asyncio.Task[None] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._must_unlist = False
        """Whether the request ended while it was being listed: its settlement may come too early to
        take it off the list."""

    @property
    def request_id(self) -> UUID:
        return self.request.request_id

    @property
    def slice_tokens(self) -> int:
        """Tokens to ask for at a time."""
        return self._quota.slice_tokens

    @property
    def generated(self) -> int:
        """Tokens generated so far: what is charged if this process dies."""
        if self._count is not None:
            self._generated = self._count()
        return self._generated

    @property
    def allowed(self) -> int:
        """Completion tokens reserved so far."""
        return self._allowed

    @property
    def is_last(self) -> bool:
        """Whether the budget ends at ``allowed``, so that no more will be asked for."""
        return self._ended

    @property
    def is_asking(self) -> bool:
        """Whether the store has not answered ``ask`` yet, so that ``on_more`` will be called."""
        return self._extending is not None

    def watch(self, count: Callable[[], int]) -> None:
        """Set the function that returns the number of tokens generated so far."""
        self._count = count

    def ask(self, tokens: int, *, patience_s: float = 0.0) -> None:
        """Ask for ``tokens`` more, or as many as the request can still use, in a task of its own.

        Does nothing while the store has not answered an earlier call, or if the budget has ended.
        ``patience_s``: how long the answer may take without holding up the request. The store may
        use a part of it to wait for other requests, and ask for them together.
        """
        wanted = min(tokens, self._max_tokens - self._allowed)
        if wanted > 0 and not self._ended and self._extending is None:
            self._extending = asyncio.create_task(
                self._extend(wanted, patience_s), name=f"extend {self.request_id}"
            )

    async def _extend(self, wanted: int, patience_s: float) -> None:
        granted = await self._quota.extend(self, wanted, patience_s=patience_s / 2)
        self._allowed += granted
        self._ended = granted < wanted
        self._answered()

    async def report(self, claim: Claim) -> None:
        """Tell the store what this request was given without it. Raises ``StoreUnavailable``.

        Does nothing if the request has ended, or asks for more at this moment.
        """
        if self._is_stopped or self._extending is not None:
            return
        self._extending = task = asyncio.create_task(
            self._report(claim), name=f"report {self.request_id}"
        )
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _report(self, claim: Claim) -> None:
        try:
            await self._quota.report(self, claim)
        finally:
            self._answered()

    def _answered(self) -> None:
        self._extending = None
        if self.on_more is not None:
            self.on_more()

    def start_listing(self) -> None:
        """List a request that has nothing reserved, so that an administrator can find and end it
        through any worker."""
        self._listing = asyncio.create_task(
            self._quota.list_hold(self), name=f"list {self.request_id}"
        )

    async def _unlist(self) -> None:
        """Take the request off the list, if its settlement may have come too early to do so."""
        if self._must_unlist:
            self._must_unlist = False
            assert self._listing is not None
            await asyncio.wait([self._listing])
            self._quota.forget(self.request_id)
            await self._quota.undo(self.request)

    async def stop(self) -> None:
        """Ask for no more tokens, and cancel an ``ask`` that is under way. Idempotent.

        Call it before ``Ledger.settle``, which gives back all that is reserved by then.
        """
        self.on_more = None
        self._generated, self._count = self.generated, None
        self._ended = self._is_stopped = True
        self._quota.cancel_listing(self)
        self._must_unlist = self._listing is not None and (
            self._must_unlist or not self._listing.done()
        )
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.wait([self._extending])

    async def close(self) -> None:
        """Stop renewing the lease. Call it after ``Ledger.settle``; idempotent."""
        await self.stop()
        self._quota.end(self)
        await self._unlist()


class Quota:
    """Reserves tokens for the requests of one process. One per process; safe for concurrent
    tasks."""

    def __init__(
        self,
        store: Store,
        *,
        slice_tokens: int = SLICE_TOKENS,
        lease_s: float = 30.0,
        patience_s: float = 120.0,
        queue_timeout_s: float = 30.0,
        standby: Standby | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """patience_s: how long after the end of its lease a request is settled for its owner.
        standby: decides while the store is away."""
        assert slice_tokens > 1
        self.slice_tokens = slice_tokens
        self.owner = uuid4()
        self._store = store
        self._lease = timedelta(seconds=lease_s)
        self._patience = timedelta(seconds=patience_s)
        self._queue_timeout_s = queue_timeout_s
        self._queue_is_closed = False
        self._clock = clock
        self._standby = standby or Standby(clock=clock)
        self._refusals = Refusals(clock)
        self.attempts = Attempts(clock)
        """Requests that are read and may be refused; their readers count them."""
        self._reaps_from = -math.inf
        self._store_ahead_s: float | None = None
        """The store's clock at the last beat, less this process's own, which nobody can set."""
        self._holds: dict[UUID, Hold] = {}
        self._to_be_listed: dict[Hold, float] = {}
        """When each is to be listed, by the event loop's clock, the oldest first."""
        self._list_timer: asyncio.TimerHandle | None = None
        self._undoing: set[asyncio.Task[None]] = set()
        self._standby_outage = OutageLog(logger, calm_s=CALM_S)
        self._listing_outage = OutageLog(logger, calm_s=CALM_S)
        self._release_outage = OutageLog(logger, calm_s=CALM_S)

    @property
    def num_held(self) -> int:
        """Requests whose lease this process renews."""
        return len(self._holds)

    async def reserve(
        self,
        principal: Principal,
        *,
        request_id: UUID,
        model: str,
        prompt_tokens: int,
        max_tokens: int,
        price: Price | None = None,
        endpoint: str | None = None,
    ) -> Hold:
        """Reserve the prompt and a first slice in all scopes of the principal, or in none.

        Waits for at most ``queue_timeout_s`` if the policies allow a queue. Raises
        ``QuotaExceeded``, and ``StoreUnavailable`` if the store is away and nothing more is known
        to be left. If it is cancelled, nothing stays reserved.
        """
        assert max_tokens >= 1
        request = QuotaRequest(
            request_id=request_id,
            tenant_id=principal.tenant.id,
            project_id=principal.key.project_id,
            key_id=principal.key.id,
            model=model,
            prompt_tokens=prompt_tokens,
            completion_tokens=min(self.slice_tokens, max_tokens),
            price=price or Price(),
            owner=self.owner,
            lease=self._lease,
            endpoint=endpoint,
        )
        if not principal.policies:
            answer = QuotaAnswer(state="running", completion_tokens=max_tokens)
            hold = Hold(self, request, max_tokens, answer)
            self._list_later(hold)
            return hold
        if (known := self._refusals.find(principal, prompt_tokens, price)) is not None:
            raise QuotaExceeded(known)
        self._standby.ask(principal)
        answer = await self._reserve(principal, request)
        if answer.state != "running":
            raise QuotaExceeded(answer)
        # Rates limit the first slice as well, but that does not mean that a budget ends. Without
        # the store there may be more later.
        wanted = min([request.completion_tokens, *_minutes_worth(principal, prompt_tokens)])
        is_last = answer.completion_tokens < wanted and not self._standby.is_away
        hold = Hold(self, request, max_tokens, answer, is_last=is_last)
        self._holds[request_id] = hold
        return hold

    async def _reserve(self, principal: Principal, request: QuotaRequest) -> QuotaAnswer:
        """Ask the store, or while it is away, the standby."""
        if not self._standby.is_away:
            try:
                answer = await self._ask(principal, request)
            except StoreUnavailable as error:
                self._begin_standby(error)
            except asyncio.CancelledError:
                await self.undo(request)
                raise
            else:
                if answer.state == "running":
                    self._standby.took(principal, request, answer.completion_tokens)
                return answer
        return self._standby.reserve(principal, request)

    def _begin_standby(self, error: Exception) -> None:
        self._standby.begin()
        self._standby_outage.failed("Limits are kept from what is known of them: %s", error)

    def check(self, principal: Principal, *, price: Price | None = None) -> None:
        """Raise ``QuotaExceeded`` if ``reserve`` is known to, whatever the request is; reserves
        nothing. ``price``: the lowest of the models that the request may name; None: 0."""
        if (answer := self._refusals.find(principal, price=price)) is not None:
            raise QuotaExceeded(answer)

    async def release(self, hold: Hold) -> None:
        """Release a reservation whose request never reached the engine and will not be settled."""
        is_held = hold.request_id in self._holds
        self._standby.dropped(hold.request_id)
        await hold.close()
        if is_held:
            await self.undo(hold.request)

    def _list_later(self, hold: Hold) -> None:
        """List the request if it still runs after ``LIST_AFTER_S``."""
        loop = asyncio.get_running_loop()
        self._to_be_listed[hold] = loop.time() + LIST_AFTER_S
        if self._list_timer is None:
            self._list_timer = loop.call_later(LIST_AFTER_S, self._list_old)

    def _list_old(self) -> None:
        loop = asyncio.get_running_loop()
        while self._to_be_listed:
            hold, due_s = next(iter(self._to_be_listed.items()))  # the oldest
            if due_s > loop.time():
                break
            del self._to_be_listed[hold]
            hold.start_listing()
        self._list_timer = (
            loop.call_later(LIST_EVERY_S, self._list_old) if self._to_be_listed else None
        )

    def cancel_listing(self, hold: Hold) -> None:
        """Do not list a request, because it has ended."""
        self._to_be_listed.pop(hold, None)

    async def list_hold(self, hold: Hold) -> None:
        """List a request without limits among the running ones.

        Does nothing if the store is away, or if limits that were set meanwhile leave no room.
        """
        try:
            answer = await self._store.reserve(hold.request)
        except StoreUnavailable as error:
            self._listing_outage.failed("Request %s runs unlisted: %s", hold.request_id, error)
            return
        self._listing_outage.succeeded("Requests are listed again")
        if answer.state == "running":
            self._holds[hold.request_id] = hold
        else:
            await self.undo(hold.request)

    async def extend(self, hold: Hold, tokens: int, *, patience_s: float = 0.0) -> int:
        """How many of ``tokens`` more the monthly limits allow, as far as they are known."""
        if not self._standby.is_away:
            try:
                granted = await self._extend(hold, tokens, patience_s=patience_s)
                if granted is None:
                    granted = await self._reserve_again(hold, tokens)
            except StoreUnavailable as error:
                self._begin_standby(error)
            except Exception as error:  # Without an answer the request would wait forever.
                logger.warning("Request %s: %s", hold.request_id, error, exc_info=error)
                self._begin_standby(error)
            else:
                self._standby.extended(hold.request_id, granted)
                return granted
        return self._standby.extend(hold.request_id, tokens)

    async def report(self, hold: Hold, claim: Claim) -> None:
        """Reserve in the store what a running request was given without it.

        If the store has no room, it is to be told again: room may be taken by reservations whose
        answers were lost, and which end soon.
        """
        tokens = claim.unreported
        if not claim.is_stored or await self._extend(hold, tokens) is None:
            whole = msgspec.structs.replace(hold.request, completion_tokens=hold.allowed)
            answer = await self._store.reserve(whole)
            if answer.state == "queued":
                await self.undo(hold.request)
            if answer.state != "running":
                return
            if (lacking := hold.allowed - answer.completion_tokens) > 0:
                await self._extend(hold, lacking)
        self._standby.reported(claim, tokens)

    async def _extend(self, hold: Hold, tokens: int, *, patience_s: float = 0.0) -> int | None:
        """As ``extend``; None if the store has no reservation."""
        return await self._store.extend(
            hold.request.tenant_id,
            hold.request_id,
            tokens=tokens,
            generated=hold.generated,
            lease=self._lease,
            patience_s=patience_s,
        )

    async def _reserve_again(self, hold: Hold, tokens: int) -> int:
        """Reserve again, because the database crashed and lost the reservation, or was away when it
        should have been made.

        Rates and slots do not end a running request, and its settlement charges them in any case.
        """
        whole = msgspec.structs.replace(hold.request, completion_tokens=hold.allowed + tokens)
        answer = await self._store.reserve(whole)
        if answer.state == "queued":
            await self.undo(hold.request)
        if answer.state != "running":
            return 0 if answer.refused_by in ("monthly_tokens", "monthly_cost") else tokens
        granted = answer.completion_tokens - hold.allowed
        if granted < tokens:  # One reservation cannot exceed the limit of a minute.
            granted += await self._extend(hold, tokens - granted) or 0
        return max(0, granted)

    def close_queue(self) -> None:
        """Let requests that wait in a queue be refused soon, because this process shuts down."""
        self._queue_is_closed = True

    def forget(self, request_id: UUID) -> None:
        """Stop renewing this request's lease."""
        self._holds.pop(request_id, None)

    def end(self, hold: Hold) -> None:
        """A request has ended, and its settlement is under way."""
        self._standby.ended(hold.request_id, hold.generated)
        self.forget(hold.request_id)

    async def follow(self) -> None:
        """Keep in mind what the limits leave, until cancelled."""
        while True:
            began_s, pause_s = self._clock(), REFRESH_S
            with contextlib.suppress(StoreUnavailable):
                await self.refresh()
                took_s = self._clock() - began_s
                pause_s = min(MAX_REFRESH_S, max(REFRESH_S, took_s * (1 / REFRESH_SHARE - 1)))
            await asyncio.sleep(pause_s)

    async def refresh(self) -> None:
        """Read what the limits leave, and tell the store what was served without it, if anything.

        Raises ``StoreUnavailable``; until a call succeeds, this process decides by itself.
        """
        try:
            claims = self._standby.unreported()
            holds = (self._holds.get(claim.request.request_id) for claim in claims)
            await asyncio.gather(
                *(hold.report(claim) for hold, claim in zip(holds, claims, strict=True) if hold)
            )
            await self._standby.refresh(self._store)
        except StoreUnavailable as error:
            self._begin_standby(error)
            raise
        if not self._standby.is_away:
            self._standby_outage.succeeded("Limits are the store's again")

    async def run(self) -> None:
        """Renew leases and settle for dead processes, until cancelled."""
        self._spare_the_living()
        outage = OutageLog(logger, clock=self._clock)
        while True:
            try:
                has_answered = await self.beat()
            except StoreUnavailable as error:
                outage.failed("Leases are not renewed: %s", error)
                self._spare_the_living()
            else:
                if has_answered:
                    outage.succeeded("Leases are renewed again")
            await asyncio.sleep(self._lease.total_seconds() / 3)

    async def beat(self) -> bool:
        """Renew once and settle for dead processes; returns whether there was anything to ask the
        store. Raises ``StoreUnavailable``."""
        generated = {request_id: hold.generated for request_id, hold in self._holds.items()}
        if generated:
            await self._store.renew(self.owner, generated, self._lease)
        if self._clock() < self._reaps_from:
            return bool(generated)
        await self._follow_clock()
        if self._clock() < self._reaps_from:
            return True
        while (request_id := await self._store.reap(patience=self._patience)) is not None:
            logger.warning("Request %s was settled for its dead owner", request_id)
        return True

    async def _follow_clock(self) -> None:
        """Look whether the store's clock was set: back, so that what lies in the future now must
        not hold up anybody; or forward, so that all leases have run out."""
        ahead_s = (await self._store.clock()).timestamp() - self._clock()
        before_s, lease_s = self._store_ahead_s, self._lease.total_seconds()
        set_by_s = 0.0 if before_s is None else ahead_s - before_s
        if before_s is None or abs(set_by_s) > lease_s:
            await self._store.follow_clock(self._lease)
        if abs(set_by_s) > lease_s:
            logger.warning("The store's clock was set by %+.0f s", set_by_s)
        if set_by_s > lease_s:
            self._spare_the_living()
        self._store_ahead_s = ahead_s

    def _spare_the_living(self) -> None:
        """Settle nothing for others for a while: after an outage all leases may have run out.
        Living owners need time to renew theirs, and neighbours of dead ones to settle the exact
        count."""
        self._reaps_from = self._clock() + self._lease.total_seconds()

    async def _ask(self, principal: Principal, request: QuotaRequest) -> QuotaAnswer:
        deadline = self._clock() + self._queue_timeout_s
        pause_s = 0.01
        while True:
            asked_at = self._clock()
            answer = await self._store.reserve(request)
            if answer.state != "queued":
                if self._refusals.note(principal, answer, asked_at=asked_at):
                    await self._learn_month(principal)
                return answer
            if self._queue_is_closed or self._clock() >= deadline:
                await self._store.release(request.tenant_id, request.request_id)
                return msgspec.structs.replace(answer, state="refused")
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_POLL_S, pause_s * 1.5)

    async def _learn_month(self, principal: Principal) -> None:
        """Learn whether others would be refused as well: nothing comes back to scopes in which no
        request runs."""
        scope_ids = [policy.scope_id for policy in principal.policies]
        asked_at = self._clock()
        with contextlib.suppress(StoreUnavailable):
            left = await self._store.month_left(principal.tenant.id, scope_ids)
            self._refusals.note_month(principal, left, asked_at=asked_at)

    async def undo(self, request: QuotaRequest) -> None:
        """Release what is reserved for the request, if anything is.

        The caller may be cancelled while it waits; the work goes on.
        """
        task = asyncio.create_task(self._release(request), name=f"release {request.request_id}")
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        await asyncio.shield(task)

    async def _release(self, request: QuotaRequest) -> None:
        try:
            await self._store.release(request.tenant_id, request.request_id)
        except StoreUnavailable as error:
            self._release_outage.failed(
                "Request %s stays reserved for a while: %s", request.request_id, error
            )
        else:
            self._release_outage.succeeded("Requests are released again")


def _minutes_worth(principal: Principal, prompt_tokens: int) -> Iterator[int]:
    """What each rate limit leaves for a completion after a prompt of this length."""
    for policy in principal.policies:
        if policy.limits.tokens_per_minute is not None:
            yield policy.limits.tokens_per_minute - prompt_tokens
