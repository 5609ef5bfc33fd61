"""Requests made up from the published OpenAPI document: none of them is the server's fault."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from openai import AsyncOpenAI

from engine.text.tokenizer import Tokenizer
from gateway.routes.table import OPERATIONS
from gateway.schemas import openapi
from tenants.store import Store
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.serving import MODEL, Gateway, double_client, make_config, served
from tests.gateway.test_embeddings import served_by, write_embedder

COMMAND = (
    *(sys.executable, "-m", "schemathesis.cli", "run"),
    *("--checks", "not_a_server_error"),
    *("--generation-database", "none"),
    *("--seed", "1"),
    *("--request-timeout", "60"),
    "--no-color",
)
FEW = ("examples,fuzzing", 4)
MANY = ("examples,coverage,fuzzing", 10)
"""The phases, and the examples of each operation."""


class Told(NamedTuple):
    """What a run of schemathesis said."""

    num_sent: int
    num_passed: int


async def sent(
    gateway: Gateway,
    folder: Path,
    *,
    beginnings: tuple[str, ...],
    effort: tuple[str, int],
    known: Mapping[str, str],
    api_key: str | None = None,
) -> Told:
    """Send requests to the routes that begin so. known: ids that exist, by the names that paths
    have for them; every other such part of a path is made up, as are half of these."""
    document = openapi.document([one for one in OPERATIONS if one.path.startswith(beginnings)])
    for schema in document["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"]["const"] = MODEL  # else every request ends with a 404
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in known:
                    parameter["schema"] = {"enum": [known[parameter["name"]], "other\x01 é"]}
    path = folder / "openapi.json"
    path.write_bytes(msgspec.json.encode(document))
    phases, num_examples = effort
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("--phases", phases, "--max-examples", str(num_examples)),
        *("--header", f"Authorization: Bearer {api_key or gateway.api_key}"),
        *("--url", gateway.url),
        str(path),
        cwd=folder,  # it leaves its cache where it runs
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    report = out.decode()
    assert process.returncode == 0, report[-8000:]
    found = re.search(r"(\d+) generated, (\d+) passed", report)
    assert found is not None, report[-8000:]
    return Told(int(found[1]), int(found[2]))


async def things(client: AsyncOpenAI) -> dict[str, str]:
    """One of each thing that a tenant can make, but a batch, by the name that paths have for its
    id."""
    asked: Any = [{"role": "user", "content": "hi"}]
    file = await client.files.create(file=("lines.jsonl", b'{"custom_id": "a"}\n'), purpose="batch")
    conversation = await client.conversations.create(items=asked)
    items = await client.conversations.items.list(conversation.id)
    response = await client.responses.create(model=MODEL, input="hi")
    chat = await client.chat.completions.create(model=MODEL, messages=asked, store=True)
    return {
        "file_id": file.id,
        "conversation_id": conversation.id,
        "item_id": items.data[0].id or "",
        "response_id": response.id,
        "completion_id": chat.id,
    }


@pytest.mark.parametrize(
    ("effort", "num_sent", "num_generating"),
    [(FEW, 40, 2), pytest.param(MANY, 1000, 10, marks=pytest.mark.nightly)],
)
@pytest.mark.asyncio
async def test_no_request_is_answered_with_a_5xx(
    effort: tuple[str, int],
    num_sent: int,
    num_generating: int,
    gateway: Gateway,
    double: EngineDouble,
    tmp_path: Path,
) -> None:
    double.script = lambda prompt: Play(text="Hi")
    async with gateway.openai() as client:
        known = await things(client)
    told = await sent(
        gateway, tmp_path, beginnings=("/v1/", "/v2/", "/auth/"), effort=effort, known=known
    )
    assert told.num_sent == told.num_passed > num_sent
    assert len(double.requests) >= num_generating, "some get as far as the engine"


@pytest.mark.parametrize("effort", [FEW, pytest.param(MANY, marks=pytest.mark.nightly)])
@pytest.mark.asyncio
async def test_nor_one_for_vectors(effort: tuple[str, int], tmp_path: Path) -> None:
    paths = ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score")
    async with served_by(write_embedder(tmp_path / "m")) as (gateway, double, _):
        told = await sent(gateway, tmp_path, beginnings=paths, effort=effort, known={})
        assert told.num_sent == told.num_passed >= len(paths)
        assert double.requests, "some get as far as the engine"


@asynccontextmanager
async def on_postgres(model_dir: Path, dsn: str) -> AsyncIterator[tuple[Gateway, EngineDouble]]:
    config = make_config(model_dir)
    double = EngineDouble(Tokenizer.load(model_dir), script=lambda prompt: Play(text="Hi"))
    store = await Store.connect(dsn, max_size=3)
    async with served(config, double_client(config, double), store=store) as gateway:
        yield gateway, double


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
async def test_nor_one_on_postgresql(model_dir: Path, pg_dsn: str, tmp_path: Path) -> None:
    """Which refuses what a dictionary takes, such as NUL in a text, or a number of 64 bits."""
    beginnings = (
        *("/v1/files", "/v1/batches", "/v1/conversations", "/v1/responses"),
        *("/v1/chat/completions", "/v1/messages"),
    )
    async with on_postgres(model_dir, pg_dsn) as (gateway, _), gateway.openai() as client:
        known = await things(client)
        batch = await client.batches.create(
            input_file_id=known["file_id"],
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        known["batch_id"] = batch.id
        told = await sent(gateway, tmp_path, beginnings=beginnings, effort=MANY, known=known)
        assert told.num_sent == told.num_passed > 400


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
async def test_nor_one_of_an_administrator(model_dir: Path, pg_dsn: str, tmp_path: Path) -> None:
    async with on_postgres(model_dir, pg_dsn) as (gateway, _):
        other = await gateway.store.create_tenant("other")
        hook = await gateway.store.webhooks.create(None, "https://receiver.example/", ())
        told = await sent(
            gateway,
            tmp_path,
            beginnings=("/admin/",),
            effort=MANY,
            known={"tenant_id": str(other.id), "webhook_id": str(hook.id)},
            api_key=await gateway.key("admin", "usage"),
        )
        assert told.num_sent == told.num_passed > 400
