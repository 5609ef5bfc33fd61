"""``/admin/v1/usage`` and ``/admin/v1/audit_log``: sums of usage, and who changed what."""

from __future__ import annotations

import time
from typing import cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import context
from gateway.errors import InvalidRequestError, NotFound
from gateway.routes.admin import (
    MAX_LIST,
    admin_route,
    listing,
    moment,
    query_id,
    query_number,
    query_tenant,
)
from gateway.schemas.admin import AuditObject, UsageObject
from tenants.errors import TenantNotFound
from tenants.store import Store
from tenants.types import USAGE_GROUPS, UsageBucket, UsageGroup

MAX_ROWS = 10_000
_DAY_S = 86_400
_MAX_TIME = 2**35
_USAGE_QUERY = ("tenant_id", "start_time", "end_time", "bucket_width", "group_by", "limit")
_BUCKETS: dict[str, UsageBucket] = {"1h": "hour", "1d": "day", "all": "total"}


def usage_routes(store: Store) -> list[Route]:
    async def usage(request: Request) -> Response:
        """Usage, grouped by hour and by everything else unless asked otherwise.

        ``start_time`` (30 days ago) and ``end_time`` (now) in Unix seconds, ``bucket_width`` one of
        1h, 1d and all, ``group_by`` a list of tenant, project, key and model.
        """
        principal = context.principal_of(request.scope)
        if "admin" in principal.key.scopes:
            tenant_id = await query_tenant(request, store)
        else:
            # A key with the scope ``usage`` sees its own tenant only; others do not exist for it.
            tenant_id = query_id(request, "tenant_id")
            if tenant_id not in (None, principal.tenant.id):
                assert tenant_id is not None
                raise NotFound(str(TenantNotFound(tenant_id)), param="tenant_id")
            tenant_id = principal.tenant.id
        now = int(time.time())
        start = query_number(request, "start_time", now - 30 * _DAY_S, most=_MAX_TIME)
        end = query_number(request, "end_time", now + 1, most=_MAX_TIME)
        limit = query_number(request, "limit", MAX_ROWS, most=MAX_ROWS)
        assert start is not None
        assert end is not None
        assert limit is not None
        if end < start:
            raise InvalidRequestError("Must not be before start_time.", param="end_time")
        sums = await store.sum_usage(
            tenant_id,
            moment(start, "start_time"),
            moment(end, "end_time"),
            group_by=_groups(request),
            bucket=_bucket(request),
            limit=limit + 1,
        )
        return listing([UsageObject.of(row) for row in sums], limit)

    async def audit_log(request: Request) -> Response:
        limit = query_number(request, "limit", 100, most=MAX_LIST)
        assert limit is not None
        entries = await store.list_audit(
            await query_tenant(request, store),
            before=query_number(request, "before", None, most=2**63 - 1),
            limit=limit + 1,
        )
        return listing([AuditObject.of(entry) for entry in entries], limit)

    return [
        admin_route("/usage", "GET", usage, scope="usage", query=_USAGE_QUERY),
        admin_route("/audit_log", "GET", audit_log, query=("tenant_id", "before", "limit")),
    ]


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
