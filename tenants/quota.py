"""A request's quota from admission to settlement: reserve, extend while it generates, settle.

    reserve ──► hold (prompt + a slice) ──► note(generated) … ──► Ledger.settle(event)
                     ▲                           │
                     └──── extend, ahead of ◄────┘
                           the generation

Settling is the ledger's: its transaction gives back what the hold has too much. A hold is a lease
of this process: ``run`` renews all of them with what was generated so far, and settles requests
whose process died. Principals without any policy are not asked about: that costs no round trip.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import msgspec

from tenants.errors import QuotaExceeded, StoreUnavailable
from tenants.limits import Price, QuotaAnswer, QuotaRequest
from tenants.store import Store
from tenants.types import Principal

logger = logging.getLogger(__name__)

SLICE_TOKENS = 256
MAX_POLL_S = 0.25
_MAINTENANCE_S = 6 * 3600.0


class Hold:
    """What one request may generate so far. Made by ``Quota.reserve``; ends with ``close``."""

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
        """For ``x-ratelimit-*``; without windows when no policy limits the rate."""
        self._quota = quota
        self._request = request
        self._max_tokens = max_tokens
        self._allowed = answer.completion_tokens
        self._generated = 0
        self._ended = is_last
        self._extending: asyncio.Task[None] | None = None

    @property
    def request_id(self) -> UUID:
        return self._request.request_id

    @property
    def generated(self) -> int:
        """As last noted."""
        return self._generated

    @property
    def allowed(self) -> int:
        """Tokens of completion that are paid for by now."""
        return self._allowed

    @property
    def is_last(self) -> bool:
        """Whether the budget ends at ``allowed``: no more will be asked for."""
        return self._ended

    def note(self, generated: int) -> bool:
        """So many tokens are generated; False when the budget ends here: stop with ``length``.

        Asks for the next slice when half of the last one is left, in a task of its own.
        """
        self._generated = max(self._generated, generated)
        if self._ended:
            return self._generated < self._allowed
        ahead = self._allowed - self._generated
        wants_more = self._allowed < self._max_tokens and ahead < self._quota.slice_tokens // 2
        if wants_more and self._extending is None:
            self._extending = asyncio.create_task(
                self._extend(), name=f"extend {self._request.request_id}"
            )
        return True

    async def _extend(self) -> None:
        wanted = min(self._quota.slice_tokens, self._max_tokens - self._allowed)
        try:
            granted = await self._quota.extend(self._request, wanted, self._generated)
        except StoreUnavailable as error:
            # Settling charges all the same; to cut the stream for it would be worse.
            logger.warning("Request %s runs on without quota: %s", self.request_id, error)
            granted = wanted
        self._allowed += granted
        self._ended = granted < wanted
        self._extending = None

    async def close(self) -> None:
        """Renew the lease no more. Call it after ``Ledger.settle``; idempotent."""
        self._quota.forget(self._request.request_id)
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.wait([self._extending])


class Quota:
    """The limits as one process sees them. One per process; safe for concurrent tasks."""

    def __init__(
        self,
        store: Store,
        *,
        slice_tokens: int = SLICE_TOKENS,
        lease_s: float = 30.0,
        queue_timeout_s: float = 30.0,
        overdraft_tokens: int = 20_000,
        usage_retention_months: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``overdraft_tokens`` is what each tenant may hold in this process, over its limits,
        for as long as the store is away. ``usage_retention_months`` is the store's to act on.
        """
        assert slice_tokens > 1
        self.slice_tokens = slice_tokens
        self.owner = uuid4()
        self._store = store
        self._lease = timedelta(seconds=lease_s)
        self._queue_timeout_s = queue_timeout_s
        self._overdraft_tokens = overdraft_tokens
        self._usage_retention_months = usage_retention_months
        self._overdrawn: dict[UUID, int] = {}
        self._clock = clock
        self._reaps_from = -math.inf
        self._holds: dict[UUID, Hold] = {}
        self._undoing: set[asyncio.Task[None]] = set()

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
    ) -> Hold:
        """Take the prompt and a first slice from all scopes of the principal, or from none.

        Waits in the queue where the policies have one, ``queue_timeout_s`` at most. Raises
        ``QuotaExceeded``, and ``StoreUnavailable`` when the store is away and the overdraft is
        used up. Cancelling it leaves nothing held.
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
        )
        if not principal.policies:
            answer = QuotaAnswer(state="running", completion_tokens=max_tokens)
            return Hold(self, request, max_tokens, answer)
        try:
            answer = await self._ask(request)
        except StoreUnavailable:
            if not self._overdraw(request):
                raise
            answer = QuotaAnswer(state="running", completion_tokens=request.completion_tokens)
        except asyncio.CancelledError:
            await self._undo(request)
            raise
        else:
            self._overdrawn.pop(request.tenant_id, None)
        if answer.state != "running":
            raise QuotaExceeded(answer)
        # A minute's worth bounds the first slice too, but not the answer.
        wanted = min([request.completion_tokens, *_minutes_worth(principal, prompt_tokens)])
        is_last = answer.completion_tokens < wanted
        hold = Hold(self, request, max_tokens, answer, is_last=is_last)
        self._holds[request_id] = hold
        return hold

    async def release(self, hold: Hold) -> None:
        """Undo a hold whose request never reached the engine: nothing will be settled for it."""
        if hold.request_id in self._holds:
            await hold.close()
            await self._undo(hold._request)

    async def extend(self, request: QuotaRequest, tokens: int, generated: int) -> int:
        """How many of ``tokens`` more the months' limits allow. Raises ``StoreUnavailable``."""
        granted = await self._store.extend(
            request.tenant_id,
            request.request_id,
            tokens=tokens,
            generated=generated,
            lease=self._lease,
        )
        # Without its reservation (the server crashed and forgot it) settling charges everything.
        return tokens if granted is None else granted

    def forget(self, request_id: UUID) -> None:
        """Renew this request's lease no more."""
        self._holds.pop(request_id, None)

    async def run(self) -> None:
        """Renew leases, clear away those of the dead and look after the ledger, until cancelled."""
        next_maintenance = self._clock()
        self._spare_the_living()
        while True:
            try:
                await self.beat()
                if self._clock() >= next_maintenance:
                    await self._store.maintain(usage_retention_months=self._usage_retention_months)
                    next_maintenance = self._clock() + _MAINTENANCE_S
            except StoreUnavailable as error:
                logger.warning("Leases are not renewed: %s", error)
                self._spare_the_living()
            await asyncio.sleep(self._lease.total_seconds() / 3)

    async def beat(self) -> None:
        """Renew once and settle for the dead. Raises ``StoreUnavailable``."""
        if self._holds:
            generated = {request_id: hold.generated for request_id, hold in self._holds.items()}
            await self._store.renew(self.owner, generated, self._lease)
        if self._clock() < self._reaps_from:
            return
        while (request_id := await self._store.reap()) is not None:
            logger.warning("Request %s was settled for its dead owner", request_id)

    def _spare_the_living(self) -> None:
        """After an outage all leases may have run out: give every owner the time to renew its own,
        and dead ones' neighbours the time to settle what was really generated.
        """
        self._reaps_from = self._clock() + self._lease.total_seconds()

    async def _ask(self, request: QuotaRequest) -> QuotaAnswer:
        deadline = self._clock() + self._queue_timeout_s
        pause_s = 0.01
        while True:
            answer = await self._store.reserve(request)
            if answer.state != "queued":
                return answer
            if self._clock() >= deadline:
                await self._store.release(request.tenant_id, request.request_id)
                return msgspec.structs.replace(answer, state="refused")
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_POLL_S, pause_s * 1.5)

    async def _undo(self, request: QuotaRequest) -> None:
        """The caller may be cancelled while it waits; the work goes on."""
        task = asyncio.create_task(self._release(request), name=f"release {request.request_id}")
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        await asyncio.shield(task)

    async def _release(self, request: QuotaRequest) -> None:
        try:
            await self._store.release(request.tenant_id, request.request_id)
        except StoreUnavailable as error:
            logger.warning("Request %s stays reserved for a while: %s", request.request_id, error)

    def _overdraw(self, request: QuotaRequest) -> bool:
        """Whether the tenant may go on while the store is away."""
        tokens = request.prompt_tokens + request.completion_tokens
        drawn = self._overdrawn.get(request.tenant_id, 0) + tokens
        if drawn > self._overdraft_tokens:
            return False
        self._overdrawn[request.tenant_id] = drawn
        return True


def _minutes_worth(principal: Principal, prompt_tokens: int) -> Iterator[int]:
    """What each rate leaves to a completion after so long a prompt."""
    for policy in principal.policies:
        if policy.limits.tokens_per_minute is not None:
            yield policy.limits.tokens_per_minute - prompt_tokens
