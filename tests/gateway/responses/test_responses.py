"""What becomes of responses when the store is away, or full; over HTTP: ``routes``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway import config as configuration
from gateway import lifecycle
from gateway.responses.responses import MAX_LINEAGE, MOST_AT_ONCE
from tenants.errors import StoreUnavailable
from tests.gateway.engine_double import EngineDouble, Life, Play
from tests.gateway.raw_http import RawClient, post
from tests.gateway.serving import (
    MODEL,
    Gateway,
    double_client,
    encode,
    make_config,
    served,
    served_double,
    until,
)

pytestmark = pytest.mark.asyncio


async def away(*args: object, **kwargs: object) -> Any:
    raise StoreUnavailable("away")


async def test_an_answer_is_given_and_says_that_it_is_not_stored(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.store.shared, "put_response", away)
    async with gateway.openai() as client:
        response = await client.responses.create(model=MODEL, input="hi")
        assert response.output_text == "You said: hi"
        assert response.to_dict()["store"] is False
        async with client.responses.stream(model=MODEL, input="hi") as stream:
            async for _ in stream:
                pass
            assert (await stream.get_final_response()).to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)
        # One in the background would be of no use: it is refused, and nothing runs on.
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model=MODEL, input="hi", background=True)
        assert caught.value.status_code == 503
    await gateway.usage(3)
    await until(lambda: not gateway.app.state.services.responses._running)


@pytest.mark.parametrize("how", [{}, {"resumable": True}, {"background": True}])
async def test_no_heartbeat_disturbs_the_numbers_while_an_answer_is_stored(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    async with served_double(model_dir, heartbeat_s=0.05) as (gateway, double):
        double.script = lambda prompt: Play(text="slowly said", interval_s=0.02)
        put = gateway.store.shared.put_response

        async def put_slowly(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.3)
            return await put(*args, **kwargs)

        async with gateway.openai() as client:
            monkeypatch.setattr(gateway.store.shared, "put_response", put_slowly)
            stream = await client.responses.create(
                model=MODEL, input="hi", stream=True, extra_body=how
            )
            events = [event async for event in stream]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[-1].type == "response.completed"
            if how:
                again = await client.responses.retrieve(events[-1].response.id, stream=True)
                assert [event async for event in again] == events


async def test_what_cannot_be_looked_up_is_a_503(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("find_response", "lineage", "delete_response"):
        monkeypatch.setattr(gateway.store.shared, name, away)
    async with gateway.openai() as client:
        for call in (
            client.responses.retrieve("resp_1"),
            client.responses.delete("resp_1"),
            client.responses.create(model=MODEL, input="x", previous_response_id="resp_1"),
        ):
            with pytest.raises(openai.InternalServerError) as caught:
                await call
            assert caught.value.status_code == 503


async def test_a_tenant_has_so_much_room(model_dir: Path, double: EngineDouble) -> None:
    config = make_config(model_dir)
    tenants = configuration.TenantsConfig(max_response_bytes=100_000)
    config = configuration.Config(
        engine=config.engine, server=config.server, tenants=tenants, models=config.models
    )
    double.script = lambda prompt: Play(text="x" * 1000, at_once=True)
    async with (
        served(config, double_client(config, double)) as gateway,
        gateway.openai() as client,
    ):
        made = [await client.responses.create(model=MODEL, input="hi") for _ in range(80)]
        kept = []
        for response in made:
            try:
                kept.append(await client.responses.retrieve(response.id))
            except openai.NotFoundError:
                assert not kept, "the oldest go first"
        assert 30 < len(kept) < 60


async def test_a_line_has_an_end(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LINEAGE == 1000
    monkeypatch.setattr("gateway.responses.responses.MAX_LINEAGE", 2)
    async with gateway.openai() as client:
        previous: Any = openai.omit
        for _ in range(3):
            response = await client.responses.create(
                model=MODEL, input="hi", previous_response_id=previous
            )
            previous = response.id
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model=MODEL, input="x", previous_response_id=previous)
        assert caught.value.param == "previous_response_id"
        assert "has at most" in caught.value.message


@pytest.mark.parametrize("bound", ["MAX_BYTES", "MAX_ITEMS"])
async def test_a_line_holds_only_so_much(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A request of a few bytes would otherwise read gigabytes into memory."""
    monkeypatch.setattr(f"gateway.responses.responses.{bound}", 3)
    async with gateway.openai() as client:
        response = await client.responses.create(model=MODEL, input="hi")
        if bound == "MAX_ITEMS":
            response = await client.responses.create(
                model=MODEL, input="hi", previous_response_id=response.id
            )
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model=MODEL, input="x", previous_response_id=response.id)
        assert caught.value.param == "previous_response_id"
        assert f"has at most 3 {bound[4:].lower()}" in caught.value.message
    assert len(gateway.app.state.services.responses._lanes) == 0


async def test_few_of_a_tenant_hold_what_they_continue_until_they_are_admitted(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = gateway.app.state.services.responses
    monkeypatch.setattr("gateway.responses.responses.MUCH_BYTES", 0)
    begun, go_on = list[str](), asyncio.Event()
    admit = responses._admission.admit

    async def admit_later(asked: Any) -> Any:
        begun.append(asked.id)
        await go_on.wait()
        return await admit(asked)

    async with gateway.openai() as client:
        before = await client.responses.create(model=MODEL, input="hi")
        monkeypatch.setattr(responses._admission, "admit", admit_later)
        asking = [
            asyncio.create_task(
                client.responses.create(model=MODEL, input="x", previous_response_id=before.id)
            )
            for _ in range(MOST_AT_ONCE + 3)
        ]
        fresh = asyncio.create_task(client.responses.create(model=MODEL, input="x"))
        await until(lambda: len(begun) == MOST_AT_ONCE + 1)
        await asyncio.sleep(0.05)
        assert len(begun) == MOST_AT_ONCE + 1
        go_on.set()
        await asyncio.gather(*asking, fresh)
    assert len(responses._lanes) == 0


async def test_an_engine_that_hangs_does_not_hold_up_a_shutdown(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never says what became of a response that its client left."""
    monkeypatch.setattr(lifecycle, "ABORT_S", 0.1)
    monkeypatch.setattr("gateway.app.ABORT_S", 0.1)
    monkeypatch.setattr(Life, "_abort", lambda *_: None)
    async with asyncio.timeout(30):
        async with served_double(model_dir, shutdown_timeout_s=0.05) as (gateway, double):
            double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.02)
            client = await RawClient.connect(gateway)
            body = {"model": MODEL, "input": "hi", "stream": True}
            client.send(post(gateway, encode(body), path="/v1/responses"))
            await client.head()
            services = gateway.app.state.services
            ((response_id, run),) = services.responses._running.items()
            client.reset()
            await until(lambda: services.responses._tasks)
    kept = await gateway.store.shared.find_response(gateway.tenant.id, response_id)
    assert kept is not None, "its last word comes when the engine is closed"
    assert kept.status == run.record().status == "cancelled"
