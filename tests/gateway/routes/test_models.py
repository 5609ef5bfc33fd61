from __future__ import annotations

from datetime import datetime

import pytest

from tests.gateway.engine_double import EngineDouble
from tests.gateway.raw_http import get
from tests.gateway.serving import MODEL, Gateway

pytestmark = pytest.mark.asyncio


async def test_the_list(gateway: Gateway, double: EngineDouble) -> None:
    answer = await get(gateway, "/v1/models", authorization=f"Bearer {gateway.api_key}")
    assert answer.status == 200
    body = answer.json()
    assert body["object"] == "list"
    (model,) = body["data"]
    assert model["id"] == MODEL
    assert model["object"] == "model"
    assert model["created"] > 1_700_000_000
    assert model["owned_by"] == "sluice"
    assert model["max_model_len"] == double.max_model_len
    assert (model["type"], model["display_name"]) == ("model", MODEL)
    assert datetime.fromisoformat(model["created_at"]).timestamp() == model["created"]
    assert (body["first_id"], body["last_id"], body["has_more"]) == (MODEL, MODEL, False)


async def test_the_list_is_there_while_the_engine_is_away(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.crash()
    answer = await get(gateway, "/v1/models", authorization=f"Bearer {gateway.api_key}")
    assert answer.json()["data"][0]["max_model_len"] is None


async def test_one(gateway: Gateway) -> None:
    key = f"Bearer {gateway.api_key}"
    assert (await get(gateway, f"/v1/models/{MODEL}", authorization=key)).json()["id"] == MODEL
    answer = await get(gateway, "/v1/models/org/other", authorization=key)
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert answer.error["param"] == "model"
