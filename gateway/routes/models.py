"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.client import EngineClient
from engine.errors import EngineDead
from gateway.errors import ModelNotFound
from gateway.schemas.models import Model, ModelList


def model_routes(name: str, engine: EngineClient) -> list[Route]:
    created = int(time.time())

    def model() -> Model:
        try:
            max_model_len = engine.info.max_model_len
        except EngineDead:
            max_model_len = None
        return Model(id=name, created=created, owned_by="sluice", max_model_len=max_model_len)

    async def list_models(request: Request) -> Response:
        return _json(ModelList(data=[model()]))

    async def retrieve(request: Request) -> Response:
        wanted = request.path_params["model"]
        if wanted != name:
            raise ModelNotFound(f"The model {wanted!r} does not exist.", param="model")
        return _json(model())

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{model:path}", retrieve, methods=["GET"]),
    ]


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
