"""One request, however often it is sent, runs once and is billed once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from engine.text.tokenizer import Tokenizer
from gateway.middleware import idempotency
from gateway.peers.routed_ids import mint, worker_of
from tenants.errors import StoreUnavailable
from tenants.shared import Claim, WorkerAddress
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.middleware.test_access_log import lines
from tests.gateway.raw_http import Answer, RawClient, events, exchange, get, post
from tests.gateway.routes.test_streams import stranger
from tests.gateway.serving import (
    MODEL,
    Gateway,
    chat_body,
    double_client,
    make_config,
    served,
    served_double,
    until,
)
from tests.gateway.test_two_workers import workers
from tests.memory_store.store import MemoryStore
from tests.tenants.reserving import Clock

pytestmark = pytest.mark.asyncio

TEXT = "".join(f"{number} ünd " for number in range(40))
CHAT = chat_body()
CASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": MODEL, "prompt": "a", "max_tokens": 1000},
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 1000},
}
Ask = Callable[..., Awaitable[Answer]]


def message(
    gateway: Gateway, body: object, *, key: str, path: str, api_key: str | None = None
) -> bytes:
    raw = post(gateway, json.dumps(body).encode(), key=api_key, idempotency_key=key)
    return raw.replace(b"/v1/chat/completions", path.encode())


async def ask(
    gateway: Gateway,
    body: object = CASES["/v1/chat/completions"],
    *,
    key: str = "k",
    path: str = "/v1/chat/completions",
    api_key: str | None = None,
) -> Answer:
    return await exchange(gateway, message(gateway, body, key=key, path=path, api_key=api_key))


@pytest_asyncio.fixture
async def quick(model_dir: Path) -> AsyncIterator[tuple[Gateway, EngineDouble]]:
    """What nobody waits for is soon given up."""
    async with served_double(model_dir, resume_grace_s=1.0) as pair:
        yield pair


def speak(double: EngineDouble, *, interval_s: float = 0.001) -> None:
    double.script = lambda prompt: Play(text=TEXT, interval_s=interval_s)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CASES)
async def test_the_same_answer_again(
    gateway: Gateway, double: EngineDouble, path: str, stream: bool
) -> None:
    speak(double)
    body = CASES[path] | {"stream": stream}
    together = await asyncio.gather(*(ask(gateway, body, path=path) for _ in range(4)))
    later = await ask(gateway, body, path=path)
    assert {answer.status for answer in (*together, later)} == {200}
    assert {answer.body for answer in (*together, later)} == {later.body}
    assert len(later.body) > len(TEXT.encode())
    kinds = {answer.headers["content-type"] for answer in (*together, later)}
    assert len(kinds) == 1
    replays = [answer.headers.get("idempotent-replayed") for answer in (*together, later)]
    assert sorted(map(str, replays)) == ["None", *["true"] * 4]
    assert len({answer.headers["x-request-id"] for answer in together}) == 4
    assert len(double.requests) == 1
    assert (await gateway.usage()).requests == 1
    # Of those who follow nothing stays, not even for the time that one may come back in.
    await until(lambda: not gateway.app.state.services.streams._running, within_s=10.0)


async def test_another_body_is_a_409(gateway: Gateway) -> None:
    await ask(gateway)
    for body, path in (
        (chat_body("other"), "/v1/chat/completions"),
        (CASES["/v1/responses"], "/v1/responses"),
    ):
        answer = await ask(gateway, body, path=path)
        assert (answer.status, answer.error["code"]) == (409, "idempotency_key_reused")
        assert answer.error["param"] == "idempotency-key"
        assert answer.headers["x-should-retry"] == "false"


async def test_keys_are_a_tenants_own(gateway: Gateway, double: EngineDouble) -> None:
    mine = await ask(gateway)
    theirs = await ask(gateway, chat_body("theirs"), api_key=await stranger(gateway))
    assert mine.body != theirs.body
    assert len(double.requests) == 2
    # Another key of the same tenant means the same request.
    again = await ask(gateway, api_key=await gateway.key("chat"))
    assert again.body == mine.body


async def test_who_comes_back_in_time_finds_the_answer(
    quick: tuple[Gateway, EngineDouble],
) -> None:
    gateway, double = quick
    speak(double, interval_s=0.002)
    for stream in (False, True):
        body, key = chat_body(stream=stream), f"key {stream}"
        client = await RawClient.connect(gateway)
        client.send(message(gateway, body, key=key, path="/v1/chat/completions"))
        await until(lambda: double.running)
        await asyncio.sleep(0.05)
        client.reset()
        await asyncio.sleep(0.05)
        answer = await ask(gateway, body, key=key)
        assert answer.status == 200
        assert TEXT[-20:] in _said(answer, stream=stream)
    assert len(double.requests) == 2
    assert double.aborted == {}
    assert (await gateway.usage(2)).requests == 2


def _said(answer: Answer, *, stream: bool) -> str:
    if not stream:
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content
    chunks = [event for event in events(answer.body) if event != "[DONE]"]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


async def test_what_nobody_waits_for_is_given_up_and_tried_again(
    quick: tuple[Gateway, EngineDouble],
) -> None:
    gateway, double = quick
    speak(double, interval_s=0.5)  # far longer than it is waited for, on a slow machine, too
    for stream in (False, True):
        body, key = chat_body(stream=stream), f"key {stream}"
        client = await RawClient.connect(gateway)
        client.send(message(gateway, body, key=key, path="/v1/chat/completions"))
        await until(lambda: double.running)
        client.reset()
        await until(lambda: not double.running)
        speak(double, interval_s=0)
        answer = await ask(gateway, body, key=key)
        assert TEXT[-20:] in _said(answer, stream=stream)
        assert "idempotent-replayed" not in answer.headers
        speak(double, interval_s=0.5)
    assert len(double.aborted) == 2
    assert (await gateway.usage(4)).requests == 4


async def test_who_asks_while_it_is_given_up_gets_a_whole_answer(
    quick: tuple[Gateway, EngineDouble], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is still there, and leads to an answer that breaks off."""
    gateway, double = quick
    shared = gateway.store.shared
    release, is_asked, may_go_on = shared.release_claim, asyncio.Event(), asyncio.Event()

    async def slow_once(*args: Any) -> bool:
        if not is_asked.is_set():
            is_asked.set()
            await may_go_on.wait()
        return await release(*args)

    monkeypatch.setattr(shared, "release_claim", slow_once)
    speak(double, interval_s=0.5)
    client = await RawClient.connect(gateway)
    client.send(message(gateway, CHAT, key="k", path="/v1/chat/completions"))
    await until(lambda: double.running)
    client.reset()
    await is_asked.wait()
    speak(double, interval_s=0)
    answer = await ask(gateway)
    may_go_on.set()
    assert _said(answer, stream=False) == TEXT
    assert (await ask(gateway)).body == answer.body, "the new claim is not taken for the old one"


async def test_who_read_the_claim_before_it_was_given_up_gets_a_whole_answer(
    quick: tuple[Gateway, EngineDouble], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, double = quick
    shared = gateway.store.shared
    claim, has_read = shared.claim, asyncio.Event()
    speak(double, interval_s=0.5)
    client = await RawClient.connect(gateway)
    client.send(message(gateway, CHAT, key="k", path="/v1/chat/completions"))
    await until(lambda: double.running)

    async def slow(*args: Any, **kwargs: Any) -> Claim:
        found = await claim(*args, **kwargs)
        has_read.set()
        await until(lambda: not double.running and not _recorded(gateway))
        return found

    monkeypatch.setattr(shared, "claim", slow)
    asking = asyncio.create_task(ask(gateway))
    await has_read.wait()
    client.reset()
    await until(lambda: not double.running)
    monkeypatch.setattr(shared, "claim", claim)
    speak(double, interval_s=0)
    assert _said(await asking, stream=False) == TEXT


def _recorded(gateway: Gateway) -> list[str]:
    """Answers that run, and are waited for or given up."""
    running = gateway.app.state.services.streams._running
    return [stream_id for stream_id, one in running.items() if one.work._may_start.is_set()]


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_are_not_kept(gateway: Gateway, double: EngineDouble, stream: bool) -> None:
    body = chat_body(stream=stream)
    double.script = lambda prompt: Play(error="too odd", error_code="invalid_request")
    for _ in range(2):
        assert (await ask(gateway, body)).error["message"] == "too odd"
    speak(double, interval_s=0.005)
    asking = asyncio.create_task(ask(gateway, body))
    await until(lambda: double.running)
    await asyncio.sleep(0.05)
    double.crash()
    failed = await asking
    assert (failed.status == 500) != stream or failed.status == 503
    await until(lambda: gateway.engine.ready)
    speak(double, interval_s=0)
    assert TEXT[-20:] in _said(await ask(gateway, body), stream=stream)
    # The fields are wrong: nothing ran, and the mended request may use the key.
    assert (await ask(gateway, chat_body(n=0), key="n")).status == 400
    assert (await ask(gateway, chat_body(n=1), key="n")).status == 200


async def test_where_nothing_is_generated_the_key_means_nothing(gateway: Gateway) -> None:
    for _ in range(2):
        answer = await ask(gateway, {"model": MODEL, "prompt": "a"}, path="/v1/tokenize")
        assert answer.status == 200
        assert "idempotent-replayed" not in answer.headers
        head = {"authorization": f"Bearer {gateway.api_key}", "idempotency_key": "k"}
        answer = await get(gateway, "/v1/completions", **head)
        assert answer.status == 405
        assert "idempotent-replayed" not in answer.headers
    assert (await ask(gateway)).status == 200, "nobody has claimed it"


async def test_what_is_made_is_made_once(gateway: Gateway) -> None:
    made = [await ask(gateway, {}, path="/v1/conversations") for _ in range(2)]
    assert made[0].json()["id"] == made[1].json()["id"]
    items: Any = {"items": [{"role": "user", "content": "hi"}]}
    path = f"/v1/conversations/{made[0].json()['id']}/items"
    added = [await ask(gateway, items, key="items", path=path) for _ in range(2)]
    assert added[0].body == added[1].body
    found = await get(gateway, path, authorization=f"Bearer {gateway.api_key}")
    assert len(found.json()["data"]) == 1


async def test_refusals_keep_their_form(gateway: Gateway) -> None:
    answer = await ask(gateway, {"model": MODEL, "messages": []}, path="/v1/messages")
    assert (answer.status, answer.json()["type"]) == (400, "error")


async def test_replays_are_counted_as_their_route(gateway: Gateway) -> None:
    for _ in range(2):
        await ask(gateway)
    key = await gateway.key("admin")
    text = (await get(gateway, "/metrics", authorization=f"Bearer {key}")).body.decode()
    assert 'sluice_http_responses_total{route="/v1/chat/completions",status="200"} 2.0' in text


async def test_the_log_tells_replays(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        await ask(gateway)
    await until(lambda: len(lines(caplog)) == 2)
    assert [line.get("idempotent_replay") for line in lines(caplog)] == [None, "true"]


async def test_keys_have_a_length(gateway: Gateway, double: EngineDouble) -> None:
    answer = await ask(gateway, key="k" * 256)
    assert (answer.status, answer.error["param"]) == (400, "idempotency-key")
    assert (await ask(gateway, key="k" * 255)).status == 200
    assert len(double.requests) == 1


async def test_the_oldest_keys_make_room(
    gateway: Gateway, double: EngineDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "MAX_KEYS", 20)
    for number in range(60):
        await ask(gateway, key=str(number))
    await ask(gateway, key="59")
    assert len(double.requests) == 60
    await ask(gateway, key="0")
    assert len(double.requests) == 61
    assert 20 <= len(gateway.store.shared._claims._rows) <= 23  # type: ignore[attr-defined]


async def test_who_fails_while_old_keys_make_room_waits_for_the_answer_no_more(
    quick: tuple[Gateway, EngineDouble], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any) -> int:
        raise ValueError("of no kind that is foreseen")

    gateway, double = quick
    speak(double, interval_s=60.0)
    monkeypatch.setattr(idempotency, "MAX_KEYS", 0)
    monkeypatch.setattr(gateway.store.shared, "trim_claims", fail)
    assert (await ask(gateway)).status == 500
    await until(lambda: not gateway.app.state.services.streams._running)
    assert not double.running


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), asyncio.CancelledError()])
async def test_where_nothing_can_be_claimed_nothing_runs_or_stays(
    gateway: Gateway,
    double: EngineDouble,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
) -> None:
    """Of the request that fails; of one that follows another's answer neither."""

    async def fail(*_: object, **__: object) -> Claim:
        raise failure

    streams = gateway.app.state.services.streams
    with monkeypatch.context() as patch:
        patch.setattr(gateway.store.shared, "claim", fail)
        answer = await ask(gateway)
    assert answer.status == (503 if isinstance(failure, StoreUnavailable) else 500)
    await until(lambda: not streams._running)
    assert not double.requests
    for _ in range(2):
        assert (await ask(gateway)).status == 200
    await until(lambda: not streams._running)
    assert len(double.requests) == 1
    assert {record.num_readers for record in streams._log._records.values()} <= {0}


async def test_with_the_store_away_after_the_claim_the_answer_comes_all_the_same(
    gateway: Gateway,
    double: EngineDouble,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It only keeps what it should forget: a failure, and more keys than there should be."""
    monkeypatch.setattr(idempotency, "MAX_KEYS", 15)

    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(gateway.store.shared, "trim_claims", away)
        patch.setattr(gateway.store.shared, "release_claim", away)
        assert (await ask(gateway, key="good")).status == 200
        double.script = lambda prompt: Play(error="too odd", error_code="invalid_request")
        assert (await ask(gateway, key="bad")).error["message"] == "too odd"
        await until(lambda: "its idempotency key stands for it" in caplog.text)
    assert "more idempotency keys than should be" in caplog.text
    speak(double)
    assert (await ask(gateway, key="bad")).error["message"] == "too odd"
    assert (await ask(gateway, key="new")).status == 200


async def test_a_key_whose_answers_keep_vanishing_is_given_up(
    gateway: Gateway, double: EngineDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when each worker that takes it dies before it can be asked."""
    asked: list[str] = []

    async def lost(
        tenant_id: UUID, key_hash: bytes, *, body_hash: bytes, answer_id: str, **_: object
    ) -> Claim:
        asked.append(answer_id)
        return Claim(body_hash=body_hash, answer_id=mint("answer", worker_of(answer_id) or ""))

    with monkeypatch.context() as patch:
        patch.setattr(gateway.store.shared, "claim", lost)
        answer = await ask(gateway)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert len(set(asked)) == 5
    assert not double.requests
    assert (await ask(gateway)).status == 200


async def test_an_answer_too_long_to_be_kept_is_made_again(model_dir: Path) -> None:
    async with served_double(model_dir, max_stream_log_bytes=8000) as (gateway, double):
        speak(double, interval_s=0.002)  # the client keeps up
        body = chat_body(stream=True)
        for _ in range(2):
            answer = await ask(gateway, body)
            assert answer.status == 200
        assert len(double.requests) == 2


async def test_the_package_retries_and_is_billed_once(
    quick: tuple[Gateway, EngineDouble],
) -> None:
    gateway, double = quick
    double.script = lambda prompt: Play(text="done", queued_s=1.0)
    async with gateway.openai(max_retries=3, timeout=0.7) as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            extra_headers={"idempotency-key": "one"},
        )
    assert answer.choices[0].message.content == "done"
    assert len(double.requests) == 1
    assert (await gateway.usage()).requests == 1


@pytest.mark.pg
async def test_any_worker_knows_the_key(model_dir: Path, pg_dsn: str) -> None:
    async with workers(model_dir, pg_dsn, shutdown_timeout_s=0.2) as (gateways, doubles):
        for double in doubles:
            speak(double)
        for stream in (False, True):
            body, key = chat_body(stream=stream), f"key {stream}"
            answers = await asyncio.gather(
                *(ask(gateway, body, key=key) for gateway in gateways * 3)
            )
            answers += [await ask(gateway, body, key=key) for gateway in gateways]
            assert {answer.status for answer in answers} == {200}
            assert len({answer.body for answer in answers}) == 1
            other = await ask(gateways[1], chat_body("other"), key=key)
            assert other.status == 409
        assert sum(len(double.requests) for double in doubles) == 2
        totals = await gateways[0].usage(2)
        assert (totals.requests, totals.completion_tokens) == (2, 2 * len(TEXT.encode()))
        # One whose worker has died is tried again.
        dead, alive = gateways
        speak(doubles[0], interval_s=0.5)
        asking = asyncio.create_task(ask(dead, chat_body(), key="dies"))
        await until(lambda: doubles[0].running)
        worker_id = dead.app.state.services.peers.worker_id
        await alive.store.shared.forget_worker(worker_id)
        assert (await ask(alive, chat_body(), key="dies")).status == 200
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_clock_that_is_set_forward_does_not_run_it_twice(model_dir: Path) -> None:
    """All leases of workers have run out then, until they are renewed."""
    clock = Clock()
    config, store = make_config(model_dir), MemoryStore(now=clock)
    doubles = [EngineDouble(Tokenizer.load(model_dir)) for _ in range(2)]
    async with (
        served(config, double_client(config, doubles[0]), store=store) as one,
        served(config, double_client(config, doubles[1]), store=store, beside=one) as two,
    ):
        worker_id = one.app.state.services.peers.worker_id

        async def lease() -> WorkerAddress | None:
            return await store.shared.find_worker(worker_id)

        await until(lease)
        speak(doubles[0], interval_s=0.02)
        asking = asyncio.create_task(ask(one))
        await until(lambda: doubles[0].running)
        clock.advance(hours=1)
        found = await lease()
        assert found is not None
        assert not found.is_leased
        again = await ask(two)
        assert again.body == (await asking).body
        assert again.headers["idempotent-replayed"] == "true"
        assert not doubles[1].requests
