"""``/v1/batches`` through the ``openai`` package, over PostgreSQL and the engine double."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from engine.messages import IDLE_PRIORITY
from engine.text.tokenizer import Tokenizer
from gateway.batches import runner
from gateway.batches.validation import Validation
from tenants.limits import Limits
from tenants.store import Store
from tests.gateway.engine_double import EngineDouble, Play, says
from tests.gateway.raw_http import exchange, post
from tests.gateway.serving import (
    MODEL,
    Gateway,
    chat_body,
    double_client,
    make_config,
    served,
    until,
)
from tests.gateway.test_embeddings import write_embedder
from tests.postgres import execute

pytestmark = [pytest.mark.asyncio, pytest.mark.pg]

CHAT, VECTORS = "/v1/chat/completions", "/v1/embeddings"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.05)
    monkeypatch.setattr(runner, "LEASE", timedelta(seconds=6))


@pytest.fixture
def double(model_dir: Path) -> EngineDouble:
    return EngineDouble(Tokenizer.load(model_dir))


@pytest_asyncio.fixture
async def here(model_dir: Path, pg_dsn: str, double: EngineDouble) -> AsyncIterator[Gateway]:
    config = make_config(model_dir, max_batch_lines=4, shutdown_timeout_s=0.5)
    store = await Store.connect(pg_dsn)
    async with served(config, double_client(config, double), store=store) as gateway:
        gateway.api_key = await gateway.key("chat", "responses", "admin")
        yield gateway


@pytest_asyncio.fixture
async def client(here: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with here.openai() as client:
        yield client


def line(name: str, text: str = "hi", *, url: str = CHAT, **fields: Any) -> bytes:
    body = chat_body(text, **fields) if url == CHAT else {"model": MODEL, **fields}
    document = {"custom_id": name, "method": "POST", "url": url, "body": body}
    return msgspec.json.encode(document)


async def begin(
    client: AsyncOpenAI, *lines: bytes, endpoint: Any = CHAT, window: Any = "24h"
) -> str:
    file = await client.files.create(file=b"\n".join(lines), purpose="batch")
    made = await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=window, metadata={"a": "b"}
    )
    assert (made.status, made.metadata) == ("validating", {"a": "b"})
    return made.id


async def ended(client: AsyncOpenAI, batch_id: str) -> Any:
    found: Any = None

    async def has_ended() -> bool:
        nonlocal found
        found = await client.batches.retrieve(batch_id)
        return found.status in ("completed", "failed", "expired", "cancelled")

    await until(has_ended)
    return found


async def read(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of an output or error file, by custom id."""
    if file_id is None:
        return {}
    text = (await client.files.content(file_id)).text
    rows = [msgspec.json.decode(row) for row in text.splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["custom_id"]: row for row in rows}


async def ledger(here: Gateway) -> list[dict[str, Any]]:
    asked = post(here, b"", path="/admin/v1/usage/requests", key=here.api_key)
    answer = await exchange(here, asked.replace(b"POST", b"GET", 1))
    rows: list[dict[str, Any]] = answer.json()["data"]
    return rows


async def test_a_batch_from_its_file_to_its_answers(
    here: Gateway, client: AsyncOpenAI, double: EngineDouble
) -> None:
    lines = [line(f"n{number}", f"question {number}") for number in range(12)]
    batch_id = await begin(
        client, *lines, line("bad", max_tokens=-1), b"", line("stream", stream=True)
    )
    batch = await ended(client, batch_id)
    assert batch.status == "completed"
    assert batch.request_counts.model_dump() == {"total": 14, "completed": 12, "failed": 2}
    assert batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    answers = await read(client, batch.output_file_id)
    assert list(answers) == [f"n{number}" for number in range(12)], "in the order of the input"
    for number, row in enumerate(answers.values()):
        response = row["response"]
        said = response["body"]["choices"][0]["message"]["content"]
        assert (response["status_code"], said) == (200, f"You said: question {number}")
    errors = await read(client, batch.error_file_id)
    assert {row["response"]["body"]["error"]["param"] for row in errors.values()} == {
        "max_tokens", "stream",
    }  # fmt: skip
    rows = await ledger(here)
    billed = {row["response"]["request_id"]: row for row in answers.values()}
    assert {row["id"] for row in rows} == set(billed)
    assert {row["endpoint"] for row in rows} == {CHAT}
    for row in rows:
        usage = billed[row["id"]]["response"]["body"]["usage"]
        assert row["completion_tokens"] == usage["completion_tokens"]
    assert {request.priority for request in double.requests} == {IDLE_PRIORITY}
    assert [one.id async for one in client.batches.list(limit=1)] == [batch_id]
    output = await client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch_id}_output.jsonl")
    assert not await here.store.list_running()
    while await here.store.shared.delete_expired():
        pass
    assert await client.batches.retrieve(batch_id) == batch, "without its lines"


async def test_other_endpoints(client: AsyncOpenAI, double: EngineDouble) -> None:
    double.script = lambda _: Play(text="fine")
    for url, fields in (("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x"})):
        batch_id = await begin(client, line("a", url=url, **fields), endpoint=url)
        batch = await ended(client, batch_id)
        row = (await read(client, batch.output_file_id))["a"]
        assert "fine" in msgspec.json.encode(row["response"]["body"]).decode()


async def test_vectors(tmp_path: Path, pg_dsn: str) -> None:
    folder = write_embedder(tmp_path / "embedder")
    config = make_config(folder)
    double = EngineDouble(Tokenizer.load(folder), script=says(""), max_model_len=64)
    store = await Store.connect(pg_dsn)
    async with served(config, double_client(config, double), store=store) as here:
        here.api_key = await here.key("chat", "admin")
        async with here.openai() as client:
            texts = [line(str(n), url=VECTORS, input=["hello", "fox"]) for n in range(5)]
            batch = await ended(client, await begin(client, *texts, endpoint=VECTORS))
            answers = await read(client, batch.output_file_id)
        rows = await ledger(here)
    assert {len(row["response"]["body"]["data"]) for row in answers.values()} == {2}
    assert {row["id"] for row in rows} == {
        row["response"]["request_id"] for row in answers.values()
    }
    assert {row["endpoint"] for row in rows} == {VECTORS}
    assert {request.priority for request in double.requests} == {IDLE_PRIORITY}


async def test_lines_that_are_none_get_their_numbers(client: AsyncOpenAI) -> None:
    """As an editor counts them: empty ones count, though they are no requests."""
    bad = [
        b"{",
        b"",
        line("a"),
        b" \r",
        line("a"),
        line("other", url="/v1/completions", prompt="x"),
        b'{"custom_id": "x"}',
        b'"text"',
        line("get").replace(b"POST", b"GET"),
        line(""),
        b"[" * 5000,
        b"\xff",
    ]
    batch = await ended(client, await begin(client, *bad))
    assert batch.status == "completed"
    assert batch.request_counts.model_dump() == {"total": 10, "completed": 1, "failed": 9}
    codes = {error.line: error.code for error in batch.errors.data}
    assert codes == {
        1: "invalid_json_line", 5: "duplicate_custom_id", 6: "mismatched_endpoint",
        7: "invalid_json_line", 8: "invalid_json_line", 9: "invalid_method", 10: "invalid_request",
        11: "invalid_json_line", 12: "invalid_json_line",
    }  # fmt: skip
    text = (await client.files.content(batch.error_file_id)).text
    rows = [msgspec.json.decode(row) for row in text.splitlines()]
    assert [row["error"]["line"] for row in rows] == [*codes]
    ids = {row["error"]["line"]: row["custom_id"] for row in rows}
    assert [ids[number] for number in (5, 6, 9, 10)] == ["a", "other", "get", None]
    failed = await ended(client, await begin(client, b"{", b"x"))
    assert (failed.status, len(failed.errors.data)) == ("failed", 2)
    empty = await ended(client, await begin(client, b"\n\n "))
    assert (empty.status, empty.errors.data[0].code) == ("failed", "empty_file")


async def test_a_file_that_kills_its_readers_fails(
    client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, pg_dsn: str
) -> None:
    async def dies(*_: Any) -> None:
        await execute(pg_dsn, "UPDATE batch SET free_at = now()")

    monkeypatch.setattr(Validation, "run", dies)
    batch = await ended(client, await begin(client, line("a")))
    assert (batch.status, batch.errors.data[0].code) == ("failed", "server_error")


async def test_what_cannot_be_a_batch_is_refused(client: AsyncOpenAI) -> None:
    file = await client.files.create(file=line("a"), purpose="batch")
    other = await client.files.create(file=b"x", purpose="user_data")
    good: dict[str, Any] = {
        "input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h",
    }  # fmt: skip
    for field, value in (
        ("input_file_id", "file-0"),
        ("input_file_id", other.id),
        ("endpoint", "/v1/tokenize"),
        ("completion_window", "1d"),
        ("completion_window", "999h"),
        ("metadata", {"k" * 65: "v"}),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.batches.create(**good | {field: value})
        assert str(caught.value.param).startswith(field)
    with pytest.raises(openai.NotFoundError):
        await client.batches.cancel("batch_0")


async def test_cancelling_ends_what_runs_and_bills_what_it_used(
    here: Gateway, client: AsyncOpenAI, double: EngineDouble
) -> None:
    services = here.app.state.services
    double.script = lambda _: Play(text="x" * 500, interval_s=0.02)
    batch_id = await begin(client, *(line(str(number)) for number in range(9)))
    await until(lambda: services.batches.num_running == 4 and len(double.generated) == 4)
    file_id = (await client.batches.retrieve(batch_id)).input_file_id
    with pytest.raises(openai.ConflictError):
        await client.files.delete(file_id)
    assert (await client.batches.cancel(batch_id)).status == "cancelling"
    assert (await client.batches.cancel(batch_id)).status in ("cancelling", "cancelled")
    batch = await ended(client, batch_id)
    assert (batch.status, batch.output_file_id) == ("cancelled", None)
    errors = await read(client, batch.error_file_id)
    assert {row["error"]["code"] for row in errors.values()} == {"batch_cancelled"}
    assert len(errors) == 9
    rows = await ledger(here)
    assert {row["status"] for row in rows} <= {"disconnected", "cancelled"}
    assert sum(row["completion_tokens"] for row in rows) == sum(double.generated.values())
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel((await ended(client, await begin(client, b"{"))).id)
    await client.files.delete(file_id)


async def test_what_is_not_done_in_time_expires(
    client: AsyncOpenAI, double: EngineDouble, pg_dsn: str
) -> None:
    double.script = lambda prompt: Play(
        text="x" * (500 if "slow" in prompt else 1), interval_s=0.02
    )
    batch_id = await begin(client, line("quick"), *(line(f"s{n}", "slow") for n in range(9)))

    async def one_is_done() -> bool:
        found = await client.batches.retrieve(batch_id)
        return found.request_counts is not None and found.request_counts.completed == 1

    await until(one_is_done)
    await execute(pg_dsn, "UPDATE batch SET expires_at = now()")
    batch = await ended(client, batch_id)
    assert batch.status == "expired"
    assert batch.request_counts.model_dump() == {"total": 10, "completed": 1, "failed": 9}
    assert [*await read(client, batch.output_file_id)] == ["quick"]
    errors = await read(client, batch.error_file_id)
    assert {row["error"]["code"] for row in errors.values()} == {"batch_expired"}


async def test_a_rate_keeps_lines_waiting_and_a_budget_fails_them(
    here: Gateway, client: AsyncOpenAI
) -> None:
    await here.store.put_limits(
        here.tenant.id, "tenant", here.tenant.id, Limits(requests_per_minute=600)
    )
    batch_id = await begin(client, *(line(str(number)) for number in range(6)))
    assert (await ended(client, batch_id)).request_counts.completed == 6
    await here.store.put_limits(here.tenant.id, "tenant", here.tenant.id, Limits(monthly_tokens=1))
    await asyncio.sleep(0.1)
    failed = await ended(client, await begin(client, line("a")))
    errors = await read(client, failed.error_file_id)
    assert errors["a"]["response"]["body"]["error"]["code"] == "insufficient_quota"


async def test_a_revoked_keys_lines_fail(
    here: Gateway, client: AsyncOpenAI, double: EngineDouble
) -> None:
    double.script = lambda _: Play(text="x", interval_s=0.1)
    mine = await here.key("chat")
    (key,) = [key for key in await here.store.list_keys(here.tenant.id) if key.public_id in mine]
    async with here.openai(api_key=mine) as other:
        batch_id = await begin(other, *(line(str(number)) for number in range(9)))
        await until(lambda: double.generated)
    await here.store.revoke_key(key.public_id)
    here.authenticator.forget()
    batch = await ended(client, batch_id)
    errors = await read(client, batch.error_file_id)
    assert {row["response"]["status_code"] for row in errors.values()} == {401}
    assert batch.request_counts.completed + len(errors) == 9
