"""``GET /v1/models`` and ``GET /v1/models/{id}``: the models that a key may use, including its
tenant's adapters and its own aliases."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.client.client import EngineClient
from engine.errors import EngineDead
from gateway import context
from gateway.admission.served_models import ServedModels
from gateway.errors import ModelNotFound, quoted
from gateway.schemas.models import Model, ModelList
from tenants.types import Principal


def model_routes(models: ServedModels, engine: EngineClient) -> list[Route]:
    started = int(time.time())

    def model(principal: Principal, name: str) -> Model:
        try:
            max_model_len = engine.info.max_model_len
        except EngineDead:
            max_model_len = None
        adapter = models.adapter(principal, name)
        return Model(
            id=name,
            created=started if adapter is None else int(adapter.created_at.timestamp()),
            owned_by="sluice" if adapter is None else principal.tenant.name,
            parent=None if adapter is None else adapter.parent,
            max_model_len=max_model_len,
        )

    async def list_models(request: Request) -> Response:
        principal = context.principal_of(request.scope)
        return _json(ModelList(data=[model(principal, name) for name in models.names(principal)]))

    async def retrieve(request: Request) -> Response:
        principal, wanted = context.principal_of(request.scope), request.path_params["model"]
        if wanted not in models.names(principal):
            raise ModelNotFound(f"The model {quoted(wanted)} does not exist.", param="model")
        return _json(model(principal, wanted))

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{model:path}", retrieve, methods=["GET"]),
    ]


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
