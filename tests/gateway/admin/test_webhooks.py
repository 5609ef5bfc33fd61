"""Events reach receivers: real ones, over HTTP, from a real outbox."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import openai
import pytest
import pytest_asyncio

from engine.text.tokenizer import Tokenizer
from gateway.admin import webhooks
from gateway.admin.webhooks import WebhookSender, headers_of, secret_of
from gateway.config import TenantsConfig
from gateway.metrics.metrics import Metrics
from tenants.store import Store
from tenants.webhooks import Delivery, Webhook
from tests.gateway.engine_double import EngineDouble
from tests.gateway.raw_http import exchange, post
from tests.gateway.serving import chat_body, double_client, encode, make_config, served, until

pytestmark = [pytest.mark.asyncio, pytest.mark.pg]

ROOT = b"the secret of a deployment"
LOOPBACK = ("127.0.0.0/8",)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Answering = Callable[["Received"], "str | float | None"]
"""The status line with which a receiver answers; seconds that it waits before 200; or None: it
closes the connection."""


@pytest_asyncio.fixture
async def pg_store(pg_dsn: str) -> AsyncIterator[Store]:
    store = await Store.connect(pg_dsn)
    yield store
    await store.close()


class Received(msgspec.Struct):
    """A request that a receiver has got."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    def __init__(self, answering: Answering) -> None:
        self.got: list[Received] = []
        self.url = ""
        self._answering = answering

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            assert head[0].startswith("POST /hooks ")
            pairs = (line.split(": ", 1) for line in head[1:] if line)
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers["content-length"]))
            self.got.append(Received(headers, body))
            answer = self._answering(self.got[-1])
            if answer is None:
                return
            if not isinstance(answer, str):
                await asyncio.sleep(answer)
                answer = "200 OK"
            writer.write(f"HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()


@asynccontextmanager
async def listening(handle: Handler) -> AsyncIterator[str]:
    """The URL of a server at 127.0.0.1."""
    writers: list[asyncio.StreamWriter] = []

    async def handle_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await handle(reader, writer)
        writer.close()

    async with await asyncio.start_server(handle_and_close, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks"
        for writer in writers:
            writer.transport.abort()
    await asyncio.sleep(0.01)


@asynccontextmanager
async def receiver(answering: Answering = lambda _: "204 No Content") -> AsyncIterator[Receiver]:
    made = Receiver(answering)
    async with listening(made.handle) as made.url:
        yield made


@asynccontextmanager
async def sending(store: Store, **options: Any) -> AsyncIterator[WebhookSender]:
    """A worker that sends."""
    options = {"poll_s": 0.02, "again_s": (0.0, 0.0, 0.0), **options}
    networks = options.pop("networks", LOOPBACK)
    sender = WebhookSender(store.webhooks, ROOT, networks, **options)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "PAUSE_S", 0.0)


def verify(received: Received, secret: str) -> Any:
    """As clients of OpenAI's do, which take the same standard."""
    client = openai.OpenAI(api_key="-", webhook_secret=secret)
    client.webhooks.verify_signature(received.body, received.headers)
    return json.loads(received.body)


async def ended(store: Store, hook: Webhook) -> list[Delivery]:
    """The deliveries of a webhook, once none is pending."""

    async def found() -> bool:
        return all(one.state != "pending" for one in await store.webhooks.deliveries(hook.id))

    await until(found)
    return [*await store.webhooks.deliveries(hook.id)]


async def test_signatures_are_those_of_the_standard(pg_store: Store) -> None:
    async with receiver() as one, sending(pg_store):
        hook = await pg_store.webhooks.create(None, one.url, ())
        event_id = await pg_store.webhooks.test(hook.id)
        await until(lambda: one.got)
        event = verify(one.got[0], secret_of(hook, ROOT))
        assert (event["type"], event["data"]) == ("webhook.test", {"webhook_id": str(hook.id)})
        assert one.got[0].id == f"evt_{event_id.hex}"
        with pytest.raises(openai.InvalidWebhookSignatureError):
            verify(one.got[0], secret_of(hook, b"another root"))

        new = await pg_store.webhooks.rotate(hook.id)
        await pg_store.webhooks.test(hook.id)
        await until(lambda: len(one.got) == 2)
        for secret in (secret_of(hook, ROOT), secret_of(new, ROOT)):  # for a day, both
            verify(one.got[1], secret)
        changed = await pg_store.webhooks.rotate(hook.id, timedelta(seconds=-1))
        await pg_store.webhooks.test(hook.id)
        await until(lambda: len(one.got) == 3)
        verify(one.got[2], secret_of(changed, ROOT))
        with pytest.raises(openai.InvalidWebhookSignatureError):
            verify(one.got[2], secret_of(new, ROOT))


async def test_the_example_of_the_specification() -> None:
    """Its own secret, id, time and body, through our headers."""
    hook = Webhook(
        id=UUID(int=0), tenant_id=None, url="", events=(), secret_version=1,
        old_secret_until=None, created_at=datetime.now(UTC), disabled_at=None,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            webhooks, "secret_of", lambda *_, **__: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        )
        at = datetime.fromtimestamp(1614265330, UTC)
        headers = headers_of(
            hook, ROOT, "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', at
        )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_what_is_not_taken_is_sent_again_under_the_same_id(pg_store: Store) -> None:
    answers = iter(["500 No", None, "302 There\r\nlocation: http://127.0.0.1:1/", "200 OK"])
    async with receiver(lambda _: next(answers)) as one, sending(pg_store):
        hook = await pg_store.webhooks.create(None, one.url, ())
        await pg_store.webhooks.test(hook.id)
        (done,) = await ended(pg_store, hook)
    assert (done.state, done.num_attempts, done.last_answer) == ("delivered", 4, "200")
    assert len({received.id for received in one.got}) == 1
    assert len({received.body for received in one.got}) == 1


async def test_an_event_is_given_up_after_its_last_attempt(pg_store: Store) -> None:
    async with receiver(lambda _: "404 Not Found") as one, sending(pg_store):
        hook = await pg_store.webhooks.create(None, one.url, ())
        await pg_store.webhooks.test(hook.id)
        (done,) = await ended(pg_store, hook)
    assert (done.state, done.num_attempts, done.last_answer) == ("failed", 4, "404")
    assert len(one.got) == 4


async def test_what_is_not_taken_is_counted(
    pg_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LOOK_S", 0.0)
    answers = iter(["500 No", "204 No Content"])
    metrics = Metrics()

    def figures() -> dict[str, float]:
        lines = metrics.render().decode().splitlines()
        return {
            name: float(value)
            for name, value in (line.rsplit(" ", 1) for line in lines if "webhook" in line)
            if not name.startswith("#")
        }

    async with (
        receiver(lambda _: next(answers)) as good,
        receiver(lambda _: "410 Gone") as bad,
        sending(pg_store, again_s=(0.0, 3600.0)) as sender,
    ):
        metrics.watch_webhooks(sender.num_attempts, lambda: sender.backlog)
        for url in (good.url, bad.url, "http://127.0.0.1:1/"):
            hook = await pg_store.webhooks.create(None, url, ())
            await pg_store.webhooks.test(hook.id)

        async def all_tried() -> bool:
            found = figures()
            return (
                found['sluice_webhook_attempts_total{outcome="again"}'] == 3
                and found["sluice_webhook_events_pending"] == 1
            )

        await until(all_tried)
    found = figures()
    assert found['sluice_webhook_attempts_total{outcome="delivered"}'] == 1
    assert found['sluice_webhook_attempts_total{outcome="failed"}'] == 1
    assert 0 < found["sluice_webhook_oldest_pending_seconds"] < 60


async def test_waits_grow(pg_store: Store) -> None:
    async with receiver(lambda _: "500 No") as one, sending(pg_store, again_s=(3600.0,)):
        hook = await pg_store.webhooks.create(None, one.url, ())
        await pg_store.webhooks.test(hook.id)

        async def noted() -> bool:
            (found,) = await pg_store.webhooks.deliveries(hook.id)
            return found.num_attempts == 1

        await until(noted)
        await asyncio.sleep(0.1)
    (found,) = await pg_store.webhooks.deliveries(hook.id)
    assert 3500 < (found.due_at - datetime.now(UTC)).total_seconds() < 1.2 * 3600
    assert (found.state, len(one.got)) == ("pending", 1)


async def test_a_receiver_that_is_gone_gets_no_more(pg_store: Store) -> None:
    async with receiver(lambda _: "410 Gone") as one, sending(pg_store):
        hook = await pg_store.webhooks.create(None, one.url, ())
        await pg_store.webhooks.test(hook.id)
        assert [done.state for done in await ended(pg_store, hook)] == ["failed"]

        async def disabled() -> bool:
            return (await pg_store.webhooks.all())[0].disabled_at is not None

        await until(disabled)
        assert len(one.got) == 1


async def test_the_events_of_a_worker_that_is_killed_are_sent_by_another(
    pg_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once before it has sent anything, and once after the receiver has the event: that is why it
    may come twice, under one id."""
    monkeypatch.setattr(webhooks, "LEASE_S", 0.3)
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.1)
    slow = [5.0]
    async with receiver(lambda _: slow.pop() if slow else "200 OK") as one:
        before = await pg_store.webhooks.create(None, one.url, ())
        await pg_store.webhooks.test(before.id)
        assert await pg_store.webhooks.claim(1, timedelta(seconds=0.3))  # and then it is killed
        async with sending(pg_store):
            assert len(one.got) == 0
            monkeypatch.setattr(webhooks, "TIMEOUT_S", 9.0)
            await until(lambda: len(one.got) == 1)  # and then it is killed, waiting for the answer
        async with sending(pg_store):
            (done,) = await ended(pg_store, before)
    assert done.state == "delivered"
    assert [received.id for received in one.got] == [f"evt_{done.event_id.hex}"] * 2


async def test_two_workers_send_each_event_once(pg_store: Store, pg_dsn: str) -> None:
    second = await Store.connect(pg_dsn)
    async with receiver() as one, sending(pg_store), sending(second):
        hooks = [await pg_store.webhooks.create(None, one.url, ()) for _ in range(8)]
        for hook in hooks:
            for _ in range(5):
                await pg_store.webhooks.test(hook.id)
        for hook in hooks:
            assert {done.num_attempts for done in await ended(pg_store, hook)} == {1}
    assert set(Counter(received.id for received in one.got).values()) == {1}
    await second.close()


async def test_hostile_receivers_hold_up_nobody(
    pg_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They never answer, drip, or send without end."""
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 60.0)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b".")
            await asyncio.sleep(0.05)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(4_000_000))

    async def tested(url: str) -> Webhook:
        hook = await pg_store.webhooks.create(None, url, ())
        await pg_store.webhooks.test(hook.id)
        return hook

    answers = {}
    async with (
        receiver() as good,
        receiver(lambda _: 60.0) as silent,
        listening(drip) as drips,
        listening(flood) as floods,
    ):
        urls = {"silent": silent.url, "drips": drips, "floods": floods}
        async with sending(pg_store, again_s=()):
            for url in urls.values():
                flooded = await tested(url)
            await until(lambda: silent.got)
            await tested(good.url)
            await until(lambda: good.got)  # long before the others have used up their time
            (done,) = await ended(pg_store, flooded)
            answers["floods"] = done.last_answer
            monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.3)
            for name in ("silent", "drips"):
                (done,) = await ended(pg_store, await tested(urls[name]))
                assert done.state == "failed", name
                answers[name] = done.last_answer
    assert answers == {
        "silent": "no answer within 0.3 s",
        "drips": "no answer within 0.3 s",
        "floods": "The answer has more than 65536 bytes.",
    }


async def test_a_receiver_inside_the_network_is_not_connected_to(pg_store: Store) -> None:
    async with receiver() as inside, sending(pg_store, networks=(), again_s=()):
        hook = await pg_store.webhooks.create(None, inside.url, ())
        await pg_store.webhooks.test(hook.id)
        (done,) = await ended(pg_store, hook)
    assert "127.0.0.1, which is not a public address" in str(done.last_answer)
    assert not inside.got


async def test_a_budget_that_is_used_up_tells_its_owner(model_dir: Path, pg_dsn: str) -> None:
    """From the request of a client to a verified event, through the admin API."""
    config = make_config(model_dir, outbound_networks=LOOPBACK)
    config = msgspec.structs.replace(config, tenants=TenantsConfig(dsn=pg_dsn))
    client = double_client(config, EngineDouble(Tokenizer.load(model_dir)))
    store = await Store.connect(pg_dsn)
    async with receiver() as one, served(config, client, store=store) as gateway:
        admin = await gateway.key("admin")

        async def call(method: str, path: str, body: Any = None) -> Any:
            data = b"" if body is None else encode(body)
            request = post(gateway, data, path=f"/admin/v1{path}", key=admin)
            answer = await exchange(gateway, request.replace(b"POST", method.encode(), 1))
            assert answer.status < 300, answer.body
            return answer.json() if answer.body else None

        async def chat() -> int:
            answer = await exchange(gateway, post(gateway, encode(chat_body())))
            total: int = answer.json()["usage"]["total_tokens"]
            return total

        budget = await chat()
        await gateway.usage(requests=1)
        limits = f"/tenants/{gateway.tenant.id}/limits"
        await call("PUT", limits, {"monthly_tokens": budget})
        made = await call(
            "POST", "/webhooks",
            {"url": one.url, "tenant_id": str(gateway.tenant.id)},
        )  # fmt: skip
        assert "secret" not in (await call("GET", "/webhooks"))["data"][0]
        assert await chat() == budget
        await until(lambda: len(one.got) == 3)
        events = [verify(received, made["secret"]) for received in one.got]
        assert [event["data"]["threshold_percent"] for event in events] == [50, 80, 100]
        listed = await call("GET", f"/webhooks/{made['id']}/deliveries?limit=2")
        assert [row["state"] for row in listed["data"]] == ["delivered"] * 2
        rest = await call("GET", f"/webhooks/{made['id']}/deliveries?after={listed['next']}")
        assert {row["event_id"] for row in (*listed["data"], *rest["data"])} == {
            received.id for received in one.got
        }
        await call("PATCH", f"/webhooks/{made['id']}", {"disabled": True, "events": ["engine.up"]})
        rotated = await call("POST", f"/webhooks/{made['id']}/rotate", {"grace_seconds": 60})
        assert rotated["secret"] != made["secret"]
        assert rotated["disabled_at"] is not None
        await call("DELETE", f"/webhooks/{made['id']}")
        assert (await call("GET", "/webhooks"))["data"] == []
