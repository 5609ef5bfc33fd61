"""``/v1/files`` through the ``openai`` package, and what forms may look like otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from starlette.requests import Request

from engine.text.tokenizer import Tokenizer
from gateway.batches import files as uploads
from gateway.batches.form import Form
from gateway.errors import ClientMistake
from tenants.files import CHUNK_BYTES
from tenants.store import Store
from tests.gateway.engine_double import EngineDouble
from tests.gateway.raw_http import RawClient, exchange, upload
from tests.gateway.serving import Gateway, double_client, make_config, served, until

pytestmark = pytest.mark.pg

MAX_FILE, MAX_ALL = CHUNK_BYTES * 2, CHUNK_BYTES * 3


@pytest_asyncio.fixture
async def here(model_dir: Path, pg_dsn: str) -> AsyncIterator[Gateway]:
    config = make_config(model_dir, max_file_bytes=MAX_FILE, body_timeout_s=5.0)
    tenants = msgspec.structs.replace(config.tenants, max_files_bytes=MAX_ALL)
    config = msgspec.structs.replace(config, tenants=tenants)
    double = EngineDouble(Tokenizer.load(model_dir))
    store = await Store.connect(pg_dsn)
    async with served(config, double_client(config, double), store=store) as gateway:
        yield gateway


@pytest_asyncio.fixture
async def client(here: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with here.openai() as client:
        yield client


@pytest.mark.asyncio
async def test_a_file_as_openais_client_handles_it(client: AsyncOpenAI) -> None:
    content = bytes(range(256)) * 4096
    made = await client.files.create(
        file=("a.jsonl", content),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )
    assert (made.object, made.bytes, made.filename) == ("file", len(content), "a.jsonl")
    assert (made.status, made.purpose) == ("processed", "batch")
    assert made.expires_at == made.created_at + 7200
    other = await client.files.create(file=b"x", purpose="user_data")
    assert other.expires_at is None
    assert await client.files.retrieve(made.id) == made
    assert (await client.files.content(made.id)).content == content
    assert [file.id async for file in client.files.list(limit=1)] == [other.id, made.id]
    found = await client.files.list(purpose="batch", order="asc")
    assert ([file.id for file in found.data], found.has_more) == ([made.id], False)
    assert (await client.files.delete(made.id)).deleted
    for gone in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            await gone(made.id)


@pytest.mark.asyncio
async def test_what_is_refused_leaves_nothing(here: Gateway, client: AsyncOpenAI) -> None:
    async def refused(status: int, param: str | None, content: bytes, **fields: str) -> str:
        answer = await exchange(here, upload(here, content, **fields))
        assert (answer.status, answer.error["param"]) == (status, param), answer.body
        code: str = answer.error["code"]
        return code

    await refused(400, "purpose", b"x", purpose="")
    await refused(400, "purpose", b"x", purpose="fine-tune")
    await refused(400, "metadata", b"x", metadata="x")
    await refused(400, "file", b"")
    await refused(400, "expires_after", b"x", **{"expires_after[anchor]": "created_at"})
    seconds = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}
    await refused(400, "expires_after.seconds", b"x", **seconds)
    assert await refused(413, None, b"x" * (MAX_FILE + 1)) == "request_too_large"
    assert await refused(413, None, b"x" * (MAX_FILE + 10**6)) == "request_too_large"
    kept = await client.files.create(file=b"x" * MAX_FILE, purpose="batch")
    assert await refused(413, None, b"x" * (CHUNK_BYTES + 1)) == "file_quota_exceeded"
    cut = upload(here, b"x" * 100).replace(b"\r\n--x--\r\n", b"\r\nyyxyy\r\n")
    assert (await exchange(here, cut)).error["code"] == "invalid_form"
    assert await here.store.files.used(here.tenant.id) == kept.bytes
    json = upload(here, b"x").replace(b"multipart/form-data; boundary=x", b"application/json")
    assert (await exchange(here, json)).status == 415


@pytest.mark.asyncio
async def test_who_leaves_in_mid_upload_leaves_nothing(
    here: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 1)
    files, tenant_id = here.store.files, here.tenant.id
    sent = upload(here, b"x" * MAX_FILE)
    slow = await RawClient.connect(here)
    slow.send(sent[: CHUNK_BYTES + 1000])

    async def has_begun() -> bool:
        return await files.used(tenant_id) == CHUNK_BYTES

    await until(has_begun)
    assert (await exchange(here, upload(here, b"x"))).status == 429, "one at a time"
    slow.reset()

    async def is_empty() -> bool:
        return await files.used(tenant_id) == 0

    await until(is_empty)
    assert (await exchange(here, upload(here, b"x"))).status == 200


async def form_of(body: bytes, cuts: list[int]) -> tuple[bytes, dict[str, str], str | None]:
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    headers = [(b"content-type", b'multipart/form-data; boundary="x"')]
    form = Form(Request({"type": "http", "headers": headers}, receive))
    file = b"".join([piece async for piece in form.pieces(5)])
    return file, form.fields, form.filename


@given(
    content=st.lists(st.sampled_from([b"\r\n", b"--x", b"a", b"-", b"\0"]), max_size=9),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_a_form_is_read_however_it_is_cut(content: list[bytes], cuts: list[int]) -> None:
    data = b"".join(content)
    if b"\r\n--x" in data:
        return  # It would end the part.
    head = b"--x\r\nContent-Disposition: form-data; name="
    body = b'%s"file"; filename="../b\\\\c.jsonl"\r\nContent-Type: x\r\n\r\n%s\r\n' % (head, data)
    body += b'%s"purpose"\r\n\r\nbatch\r\n--x--' % head
    places = sorted(min(cut, len(body)) for cut in cuts)
    assert asyncio.run(form_of(body, places)) == (data, {"purpose": "batch"}, "c.jsonl")


FRAGMENTS = (
    *(b"--x", b"--", b"\r\n", b"content-disposition: ", b'form-data; name="', b'file"'),
    *(b'; filename="', b":", b"a"),
)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=20))
def test_no_form_is_our_fault(parts: list[bytes]) -> None:
    with contextlib.suppress(ClientMistake):
        asyncio.run(form_of(b"--x\r\n" + b"".join(parts), []))
