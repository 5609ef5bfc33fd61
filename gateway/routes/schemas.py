"""``POST /v1/schemas/check``: what is enforced of a schema, before anything is generated."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission import schema_report
from gateway.routes.http import json_answer
from gateway.schemas.schema_check import SchemaCheckRequest
from gateway.services import Services
from tenants.access import require_scope


async def check(services: Services, request: Request, body: SchemaCheckRequest) -> Response:
    principal = context.principal_of(request.scope)
    require_scope(principal.key, "chat")
    model = services.models.find(principal, body.model).base
    report = await schema_report.report(
        body.schema, lambda spec: services.admission.check(spec, principal.tenant.id, model)
    )
    return json_answer(report)
