"""Quota as a request without any limits has it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tenants.limits import Price, QuotaAnswer, QuotaRequest
from tenants.quota import Hold, Quota
from tenants.types import Principal

ENOUGH = 10**6


def free_hold(quota: Quota, principal: Principal, request_id: Any) -> Hold:
    """What ``quota.reserve`` gives to a principal without policies."""
    request = QuotaRequest(
        request_id=request_id,
        tenant_id=principal.tenant.id,
        project_id=principal.key.project_id,
        key_id=principal.key.id,
        model="tiny",
        prompt_tokens=1,
        completion_tokens=1,
        price=Price(),
        owner=quota.owner,
        lease=timedelta(seconds=30),
    )
    answer = QuotaAnswer(state="running", completion_tokens=ENOUGH)
    return Hold(quota, request, ENOUGH, answer)
