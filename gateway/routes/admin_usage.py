"""``/admin/v1/usage`` and ``/admin/v1/audit_log``: sums of usage, and who changed what."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import cast
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway import context
from gateway.admin.exports import MEDIA_TYPES, exported
from gateway.errors import InvalidRequestError, NotFound, quoted
from gateway.routes.http import moment, query_id, query_number, query_tenant
from gateway.routes.paging import DEFAULT_LIMIT, MAX_LIMIT, first_listing, listing, page_of
from gateway.schemas.admin import (
    AuditObject,
    BudgetObject,
    RefusalObject,
    UsageObject,
    UsageRowObject,
)
from gateway.services import Services
from tenants.access import has_scope
from tenants.errors import ObjectNotFound
from tenants.limits import BudgetUse
from tenants.types import (
    USAGE_GROUPS,
    USAGE_STATUSES,
    Refused,
    UsageBucket,
    UsageFilter,
    UsageGroup,
    UsageStatus,
    UsageSum,
)

MAX_ROWS = 10_000
_DAY_S = 86_400
_MAX_TIME = 2**35
_BUCKETS: dict[str, UsageBucket] = {"1h": "hour", "1d": "day", "all": "total"}


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """What sums are ordered by."""

    start: datetime | None
    tenant_id: UUID | None
    project_id: UUID | None
    key_id: UUID | None
    model: str | None


async def usage(services: Services, request: Request) -> Response:
    """Usage, grouped by hour and by everything else unless asked otherwise.

    ``start_time`` (30 days ago) and ``end_time`` (now) in Unix seconds, ``bucket_width`` one of
    1h, 1d and all, ``group_by`` a list of tenant, project, key and model. ``order`` tokens: those
    with the most first, without pages.
    """
    page = page_of(request, _Place, default=MAX_ROWS, most=MAX_ROWS)
    tenant_id = await _tenant(services, request)
    order, after = request.query_params.get("order"), page.after
    if order not in (None, "tokens"):
        raise InvalidRequestError(f"Can only be tokens, is {quoted(order)}.", param="order")
    if order is not None and after is not None:
        raise InvalidRequestError("There are no pages in this order.", param="after")
    sums = await services.store.sum_usage(
        tenant_id,
        _span(request),
        group_by=_groups(request),
        bucket=_bucket(request),
        search=page.search,
        after=None if after is None else UsageSum(**msgspec.structs.asdict(after)),
        by_tokens=order is not None,
        limit=page.fetched,
    )
    names = await _names(services, (row.tenant_id for row in sums))

    def show(row: UsageSum) -> UsageObject:
        return UsageObject.of(row, tenant_name=row.tenant_id and names.get(row.tenant_id))

    if order is not None:
        return first_listing(sums, page.limit, show)
    return listing(sums, page, lambda row: msgspec.convert(row, _Place, from_attributes=True), show)


async def requests(services: Services, request: Request) -> Response:
    """Single requests, the newest first: a page of them, or all as CSV or JSON lines."""
    page = page_of(request, tuple[datetime, UUID])
    start, end = _span(request)
    params = request.query_params
    status, form = params.get("status"), params.get("format", "json")
    for name, value, known in (
        ("status", status, USAGE_STATUSES),
        ("format", form, ("json", *MEDIA_TYPES)),
    ):
        if value is not None and value not in known:
            raise InvalidRequestError(f"{quoted(value)} is none of {', '.join(known)}.", param=name)
    wanted = UsageFilter(
        start=start,
        end=end,
        tenant_id=await _tenant(services, request),
        key_id=query_id(request, "key_id"),
        model=_plain(request, "model"),
        status=cast("UsageStatus | None", status),
        end_user=_plain(request, "end_user"),
        endpoint=_plain(request, "endpoint"),
    )
    if form in MEDIA_TYPES:
        return StreamingResponse(
            exported(services.store, wanted, form, page.after),
            media_type=MEDIA_TYPES[form],
            headers={
                "cache-control": "no-store",
                "content-disposition": f'attachment; filename="requests.{form}"',
            },
        )
    rows = await services.store.list_usage(wanted, after=page.after, limit=page.fetched)
    return listing(rows, page, lambda row: (row.created_at, row.request_id), UsageRowObject.of)


async def _tenant(services: Services, request: Request) -> UUID | None:
    principal = context.principal_of(request.scope)
    if has_scope(principal.key, "billing"):
        return await query_tenant(request, services.store)
    # A key with the scope ``usage`` sees its own tenant only; others do not exist for it.
    tenant_id = query_id(request, "tenant_id")
    if tenant_id not in (None, principal.tenant.id):
        assert tenant_id is not None
        raise NotFound(str(ObjectNotFound("tenant", tenant_id)), param="tenant_id")
    return principal.tenant.id


async def _names(services: Services, ids: Iterable[UUID | None]) -> Mapping[UUID, str]:
    wanted = {tenant_id for tenant_id in ids if tenant_id is not None}
    return await services.store.names(wanted) if wanted else {}


async def budgets(services: Services, request: Request) -> Response:
    tenant_id = await query_tenant(request, services.store)
    limit = query_number(request, "limit", DEFAULT_LIMIT, most=MAX_LIMIT)
    assert limit is not None
    found = await services.store.list_budgets(tenant_id, limit=limit + 1)

    def show(one: BudgetUse) -> BudgetObject:
        return BudgetObject(
            tenant_id=str(one.tenant_id),
            tenant_name=one.tenant_name,
            scope_kind=one.policy.scope_kind,
            scope_id=str(one.policy.scope_id),
            limits=one.policy.limits,
            used=one.used,
        )

    return first_listing(found, limit, show)


async def refusals(services: Services, request: Request) -> Response:
    limit = query_number(request, "limit", DEFAULT_LIMIT, most=MAX_LIMIT)
    since = query_number(request, "start_time", int(time.time()) - 7 * _DAY_S, most=_MAX_TIME)
    assert limit is not None
    assert since is not None
    found = await services.store.list_refusals(
        await query_tenant(request, services.store),
        since=moment(since, "start_time"),
        limit=limit + 1,
    )
    ids = {one for row in found for one in (row.tenant_id, row.key_id)}
    names = await services.store.names(ids) if ids else {}

    def show(row: Refused) -> RefusalObject:
        named = {"tenant_name": names.get(row.tenant_id), "key_name": names.get(row.key_id)}
        return RefusalObject.of(row, **named)

    return first_listing(found, limit, show)


async def audit_log(services: Services, request: Request) -> Response:
    page = page_of(request, int)
    entries = await services.store.list_audit(
        await query_tenant(request, services.store),
        search=page.search,
        after=page.after,
        limit=page.fetched,
    )
    names = await _names(services, (entry.tenant_id for entry in entries))
    return listing(
        entries,
        page,
        lambda entry: entry.id,
        lambda entry: AuditObject.of(entry, tenant_name=names.get(entry.tenant_id)),
    )


def _span(request: Request) -> tuple[datetime, datetime]:
    """``start_time`` and ``end_time`` in the query; by default the last 30 days."""
    now = int(time.time())
    start = query_number(request, "start_time", now - 30 * _DAY_S, most=_MAX_TIME)
    end = query_number(request, "end_time", now + 1, most=_MAX_TIME)
    assert start is not None
    assert end is not None
    if end < start:
        raise InvalidRequestError("Must not be before start_time.", param="end_time")
    return moment(start, "start_time"), moment(end, "end_time")


def _plain(request: Request, name: str) -> str | None:
    text = request.query_params.get(name)
    if text is not None and "\0" in text:
        raise InvalidRequestError("Must not contain NUL.", param=name)
    return text


def _groups(request: Request) -> tuple[UsageGroup, ...]:
    given = request.query_params.getlist("group_by")
    if not given:
        return USAGE_GROUPS
    groups = [name for text in given for name in text.split(",") if name]
    for group in groups:
        if group not in USAGE_GROUPS:
            raise InvalidRequestError(
                f"{group!r} is none of {', '.join(USAGE_GROUPS)}.", param="group_by"
            )
    return cast("tuple[UsageGroup, ...]", tuple(groups))


def _bucket(request: Request) -> UsageBucket:
    width = request.query_params.get("bucket_width", "1h")
    if width not in _BUCKETS:
        raise InvalidRequestError(
            f"{width!r} is none of {', '.join(_BUCKETS)}.", param="bucket_width"
        )
    return _BUCKETS[width]
