"""``GET /v1/models`` and ``GET /v1/models/{id}``: the models that a key may use, including its
tenant's adapters and its own aliases."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.errors import ModelNotFound, quoted
from gateway.routes.http import json_answer
from gateway.routes.paging import IdPage, id_listing
from gateway.schemas.models import Model, ModelList
from gateway.services import Services
from tenants.types import Principal

_STARTED = int(time.time())


async def list_all(services: Services, request: Request) -> Response:
    principal = context.principal_of(request.scope)
    names = services.models.names(principal)
    page = IdPage(None, len(names), is_descending=False)
    show = partial(_model, services, principal)
    return id_listing(ModelList, names, page, show, attrgetter("id"))


async def retrieve(services: Services, request: Request) -> Response:
    principal, wanted = context.principal_of(request.scope), request.path_params["model"]
    if wanted not in services.models.names(principal, with_loading=True):
        raise ModelNotFound(f"The model {quoted(wanted)} does not exist.", param="model")
    fleet = services.models.find(principal, wanted).base.engine
    if not fleet.has_served:
        _ = fleet.info  # raises ``EngineDead``
    return json_answer(_model(services, principal, wanted))


def _model(services: Services, principal: Principal, name: str) -> Model:
    adapter = services.models.adapter(principal, name)
    base = services.models.find(principal, name).base
    created = _STARTED if adapter is None else int(adapter.created_at.timestamp())
    return Model(
        id=name,
        created=created,
        display_name=name,
        created_at=datetime.fromtimestamp(created, UTC).isoformat(),
        owned_by="sluice" if adapter is None else principal.tenant.name,
        parent=None if adapter is None else adapter.parent,
        max_model_len=base.max_model_len,
        input_modalities=["text"] if base.vision is None else ["text", "image"],
    )
