"""``GET /v1/models`` and ``GET /v1/models/{id}``: what the key may use, aliases included."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.client import EngineClient
from engine.errors import EngineDead
from gateway import context
from gateway.errors import ModelNotFound
from gateway.schemas.models import Model, ModelList
from tenants.access import visible_models


def model_routes(served: str, engine: EngineClient) -> list[Route]:
    created = int(time.time())

    def model(name: str) -> Model:
        try:
            max_model_len = engine.info.max_model_len
        except EngineDead:
            max_model_len = None
        return Model(id=name, created=created, owned_by="sluice", max_model_len=max_model_len)

    def visible(request: Request) -> tuple[str, ...]:
        return visible_models(context.principal_of(request.scope).key, (served,))

    async def list_models(request: Request) -> Response:
        return _json(ModelList(data=[model(name) for name in visible(request)]))

    async def retrieve(request: Request) -> Response:
        wanted = request.path_params["model"]
        if wanted not in visible(request):
            raise ModelNotFound(f"The model {wanted!r} does not exist.", param="model")
        return _json(model(wanted))

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{model:path}", retrieve, methods=["GET"]),
    ]


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
