"""Reservations as a request makes them, and a clock moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec

from tenants.limits import Limits, Price, QuotaRequest
from tenants.store import Store
from tenants.types import ApiKey, Principal
from tests.tenants.samples import make_event, make_key

LEASE = timedelta(seconds=30)
MINUTE_US = 60_000_000


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2031, 1, 15, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **by: float) -> None:
        self.now += timedelta(**by)


def ask(key: ApiKey, prompt: int = 10, completion: int = 20, **changes: object) -> QuotaRequest:
    request = QuotaRequest(
        request_id=uuid4(),
        tenant_id=key.tenant_id,
        project_id=key.project_id,
        key_id=key.id,
        model="demo",
        prompt_tokens=prompt,
        completion_tokens=completion,
        price=Price(),
        owner=uuid4(),
        lease=LEASE,
    )
    return msgspec.structs.replace(request, **changes)


async def limited(store: Store, name: str = "acme", **limits: object) -> ApiKey:
    """A key of a new tenant with these limits."""
    _, principal = await make_key(store, name)
    await put(store, principal, "tenant", **limits)
    return principal.key


async def put(store: Store, who: Principal, kind: str, **limits: object) -> None:
    scope_id = {"tenant": who.tenant.id, "project": who.key.project_id, "key": who.key.id}[kind]
    await store.put_limits(who.tenant.id, kind, scope_id, Limits(**limits))  # type: ignore[arg-type]


async def settle(store: Store, request: QuotaRequest, completion: int, **changes: object) -> bool:
    event = make_event(
        request_id=request.request_id,
        tenant_id=request.tenant_id,
        key_id=request.key_id,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=0,
        completion_tokens=completion,
    )
    return await store.record_usage(msgspec.structs.replace(event, **changes))
