"""Every place that takes an id, with another tenant's: as if there were nothing of that name.

Routes are taken from the application itself: one that is new and takes an id is tried here from its
first day, and one that takes an id of a new kind fails until that kind is furnished. Keys that are
dead, or may not use a route, are tried at every route in ``tests/attack/test_isolation.py``.
"""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest

from gateway.routes.table import OPERATIONS
from tests.gateway.engine_double import Play
from tests.gateway.owners import PARAMETER, SECRET, Place, place, routes_with_ids
from tests.gateway.raw_http import Answer
from tests.gateway.serving import MODEL, chat_body, until
from tests.gateway.ws_client import ready

__all__ = ["place"]
pytestmark = [pytest.mark.asyncio, pytest.mark.pg]

KEYS = ("chat", "responses", "usage")
"""Scopes of a tenant's own keys."""
BODIES: dict[str, Any] = {"PATCH": {"name": "taken over"}}
CONVERSATION = "/v1/conversations/{conversation_id}"
OF_PATHS: dict[str, Any] = {
    "/v1/chat/completions/{completion_id}": {"metadata": {"taken": "over"}},
    CONVERSATION: {"metadata": {"taken": "over"}},
    f"{CONVERSATION}/items": {"items": [{"role": "user", "content": "mine"}]},
}
"""What to POST there."""


def unmask(answer: Answer, *names: str) -> bytes:
    """The body without the ids that were asked for."""
    body = answer.body
    for name in names:
        body = body.replace(name.encode(), b"ID")
    return body


async def test_no_path_reaches_what_is_anothers(place: Place) -> None:
    """Each of the owner's ids in each place; and told as what never was, word for word."""
    before = await place.snapshot()
    num_tried = 0
    for method, path in routes_with_ids(admin=False):
        body = OF_PATHS.get(path) if method == "POST" else None
        for name in place.owner.everything():
            taken = PARAMETER.sub(name, path)
            answer = await place.send(method, taken, place.stranger.api_key, body)
            assert answer.status == 404, (method, path, name, answer.body)
            assert SECRET.encode() not in answer.body
            unknown = name[:-4] + ("0000" if name[-4:] != "0000" else "1111")
            unheard = PARAMETER.sub(unknown, path)
            nothing = await place.send(method, unheard, place.stranger.api_key, body)
            assert (nothing.status, unmask(nothing, unknown)) == (404, unmask(answer, name))
            num_tried += 1
    assert num_tried >= 7 * 11
    assert await place.snapshot() == before


async def test_no_admin_path_mixes_tenants(place: Place) -> None:
    """Below the stranger's tenant nothing of the owner's is found, nor below one that is none."""
    before = await place.snapshot()
    num_tried = 0
    for method, path in routes_with_ids(admin=True):
        names = PARAMETER.findall(path)
        if "tenant_id" not in names:
            continue  # the streams: an administrator's, whosever they are
        tenants = [str(uuid4()), "nonsense"]
        others: list[tuple[str, ...]] = [()]
        if len(names) > 1:
            tenants.append(str(place.stranger.tenant.id))
            others = list(itertools.product(place.owner.everything(), repeat=len(names) - 1))
        body = None if method in ("GET", "DELETE") else BODIES.get(method, {})
        if (method, path) == ("POST", "/admin/v1/tenants/{tenant_id}/adapters"):
            body = {"name": "support", "path": "acme/support"}
        if path.endswith("/mcp_servers") and method == "POST":
            body = {"url": "https://example.com/mcp"}
        if path.endswith("/projects") and method == "POST":
            body = {"name": "new"}
        for tenant_id, rest in itertools.product(tenants, others):
            values = iter((tenant_id, *rest))
            real = PARAMETER.sub(lambda _, values=values: next(values), path)  # type: ignore[misc]
            answer = await place.send(method, real, place.admin_key, body)
            assert answer.status == 404, (method, real, answer.body)
            num_tried += 1
    assert num_tried > 200
    assert await place.snapshot() == before
    for kind in ("streams", "usage", "audit_log"):
        answer = await place.send("GET", f"/admin/v1/{kind}?tenant_id={uuid4()}", place.admin_key)
        assert (answer.status, answer.error["param"]) == (404, "tenant_id")
    answer = await place.send("DELETE", f"/admin/v1/streams/{uuid4()}", place.admin_key)
    assert answer.status == 404


async def test_no_query_reaches_what_is_anothers(place: Place) -> None:
    """One of each kind of the owner's ids for each parameter of each route, as for one that is
    none: neither what is found nor how it is refused tells that it is there."""
    before, key = await place.snapshot(), place.stranger.api_key
    names = [*dict.fromkeys(ids[0] for ids in place.owner.ids.values()), SECRET]
    num_tried = 0
    for operation in OPERATIONS:
        if operation.method != "GET" or PARAMETER.search(operation.path):
            continue
        for parameter in operation.query if operation.scope in KEYS else ():
            if parameter.schema.get("type") != "string":
                continue
            for name in names:
                unknown = name[:-4] + ("0000" if name[-4:] != "0000" else "1111")
                asked = [
                    await place.send("GET", f"{operation.path}?{parameter.name}={quote(one)}", key)
                    for one in (name, unknown)
                ]
                told = [unmask(one, text) for one, text in zip(asked, (name, unknown), strict=True)]
                where = operation.path, parameter.name, name
                assert (asked[0].status, told[0]) == (asked[1].status, told[1]), where
                for other in (*place.owner.everything(), SECRET):
                    assert other.encode() not in told[0], where
                num_tried += 1
    assert num_tried > 150
    assert await place.snapshot() == before


async def test_no_body_names_what_is_anothers(place: Place) -> None:
    before, key = await place.snapshot(), place.stranger.api_key
    place.double.script = lambda _: Play(text="fine")
    for response_id in place.owner.ids["response"]:
        for fields in (
            {"input": "x", "previous_response_id": response_id},
            {
                "input": [
                    {"type": "item_reference", "id": response_id.replace("resp", "msg") + "_0"}
                ]
            },
        ):
            answer = await place.send("POST", "/v1/responses", key, {"model": MODEL} | fields)
            assert answer.status == 400
            assert SECRET.encode() not in answer.body
    batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    for file_id in (place.owner.ids["file"][0], f"file-{'0' * 32}"):
        answer = await place.send("POST", "/v1/batches", key, {"input_file_id": file_id, **batch})
        assert (answer.status, answer.error["param"]) == (400, "input_file_id")
    for name in place.owner.ids["adapter name"]:
        for path, body in (
            ("/v1/chat/completions", chat_body()),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/responses", {"input": "x"}),
            ("/v1/tokenize", {"prompt": "x"}),
        ):
            answer = await place.send("POST", path, key, body | {"model": name})
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    answer = await place.send("GET", f"/admin/v1/usage?tenant_id={place.owner.tenant.id}", key)
    assert answer.status == 404
    answer = await place.send("GET", "/admin/v1/usage", key)
    assert {row["tenant_id"] for row in answer.json()["data"]} <= {str(place.stranger.tenant.id)}
    assert await place.snapshot() == before


async def test_an_idempotency_key_is_each_tenants_own(place: Place) -> None:
    place.double.script = lambda _: Play(text=SECRET)
    body, name = chat_body(SECRET), str(uuid4())
    mine = await place.send(
        "POST", "/v1/chat/completions", place.owner.api_key, body, idempotency_key=name
    )
    place.double.script = lambda _: Play(text="something else")
    for text in (SECRET, "another question"):
        theirs = await place.send(
            "POST", "/v1/chat/completions", place.stranger.api_key, chat_body(text),
            idempotency_key=f"{name}{text[:1]}",
        )  # fmt: skip
        assert theirs.status == 200
    theirs = await place.send(
        "POST", "/v1/chat/completions", place.stranger.api_key, body, idempotency_key=name
    )
    assert theirs.status == 200
    assert "idempotent-replayed" not in theirs.headers
    assert theirs.json()["id"] != mine.json()["id"]
    assert SECRET.encode() not in theirs.body


async def test_no_socket_reaches_what_is_anothers(place: Place) -> None:
    before = await place.snapshot()
    async with ready(place.gateway, api_key=place.stranger.api_key) as socket:
        for number, stream_id in enumerate(place.owner.everything()):
            await socket.send(type="resume", id=f"t{number}", stream_id=stream_id, last_seq=-1)
            frame = await socket.receive()
            assert (frame["type"], frame["status"]) == ("error", 404), frame
            assert SECRET not in str(frame)
        await socket.send(type="cancel", id="t0")
    assert await place.snapshot() == before


async def test_what_the_owner_asks_for_is_there(place: Place) -> None:
    """The ids above are good ones: for their owner each opens something."""
    owner = place.owner
    for response_id in owner.ids["response"]:
        assert (
            await place.send("GET", f"/v1/responses/{response_id}", owner.api_key)
        ).status == 200
    conversation, item = f"/v1/conversations/{owner.ids['conversation'][0]}", owner.ids["item"][0]
    chat = f"/v1/chat/completions/{owner.ids['chat'][0]}"
    for path in (chat, f"{chat}/messages"):
        answer = await place.send("GET", path, owner.api_key)
        assert (answer.status, SECRET.encode() in answer.body) == (200, True)
    for path in (conversation, f"{conversation}/items", f"{conversation}/items/{item}"):
        assert (await place.send("GET", path, owner.api_key)).status == 200
    done, running = owner.ids["stream"]
    assert (await place.send("GET", f"/v1/streams/{done}", owner.api_key)).status == 200
    assert (await place.send("DELETE", f"/v1/streams/{running}", owner.api_key)).status == 204
    name = owner.ids["adapter name"][0]
    assert (await place.send("GET", f"/v1/models/{name}", owner.api_key)).status == 200
    for request_id in map(UUID, owner.ids["request"]):
        await place.send("DELETE", f"/admin/v1/streams/{request_id}", place.admin_key)
    await until(lambda: not place.double.running)
