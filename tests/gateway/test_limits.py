"""Keys, limits and revocations, over a real PostgreSQL and its notifications."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import msgspec
import pytest
from openai import APIError, AuthenticationError, RateLimitError

from engine.text.tokenizer import Tokenizer
from gateway import config as configuration
from tenants.keys import mint
from tenants.limits import Limits, QuotaAnswer, QuotaRequest
from tenants.refusals import MAX_S
from tenants.store import Store
from tenants.types import ApiKey
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import Answer, chat, events, exchange, get, post
from tests.gateway.serving import (
    MODEL,
    SECRETS,
    Gateway,
    chat_body,
    double_client,
    encode,
    make_config,
    served,
    until,
)
from tests.gateway.ws_client import ready

pytestmark = [pytest.mark.asyncio, pytest.mark.pg]

HELLO: Any = [{"role": "user", "content": "hi"}]
SECOND_S = 5.0
"""How late may be what takes a second at most: a machine with other work tells a second late."""
ENDLESS = Play(text="x" * 1500, interval_s=0.01)


@dataclass
class Site:
    """A gateway with its database, and what administrators do there."""

    gateway: Gateway
    double: EngineDouble
    store: Store
    key: ApiKey

    async def limit(self, **limits: Any) -> None:
        """For the tenant; returns when the gateway knows."""
        tenant_id = self.gateway.tenant.id
        await self.store.put_limits(tenant_id, "tenant", tenant_id, Limits(**limits))

        async def is_known() -> bool:
            principal = await self.gateway.authenticator.authenticate(self.gateway.api_key)
            return bool(principal.policies)

        await until(is_known)

    async def make_key(
        self,
        *,
        allowed_models: tuple[str, ...] = (),
        model_aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        minted = mint(SECRETS.key_pepper)
        await self.store.create_key(
            self.gateway.tenant.id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name="special",
            scopes=["chat"],
            allowed_models=allowed_models,
            model_aliases=model_aliases,
        )
        return minted.text


@asynccontextmanager
async def site(
    model_dir: Path, dsn: str, *, max_num_queued_reqs: int = 100, **models: Any
) -> AsyncIterator[Site]:
    config = make_config(model_dir)
    config = msgspec.structs.replace(
        config,
        tenants=configuration.TenantsConfig(dsn=dsn),
        models=configuration.ModelsConfig(served_model_name=MODEL, **models),
    )
    double = EngineDouble(Tokenizer.load(model_dir))
    store = await Store.connect(dsn)
    async with served(
        config, double_client(config, double, max_num_queued_reqs=max_num_queued_reqs), store=store
    ) as gateway:
        (key,) = await store.list_keys(gateway.tenant.id)
        await until(lambda: b"sluice_changes_connects_total 1.0" in metrics(gateway))
        yield Site(gateway, double, store, key)


def metrics(gateway: Gateway) -> bytes:
    rendered: bytes = gateway.app.state.services.metrics.render()
    return rendered


async def ask(gateway: Gateway, body: object, *, key: str) -> Answer:
    return await exchange(gateway, post(gateway, encode(body), key=key))


async def test_above_the_rate_the_client_learns_when_to_come_back(
    model_dir: Path, pg_dsn: str
) -> None:
    async with site(model_dir, pg_dsn) as here:
        await here.limit(requests_per_minute=2, tokens_per_minute=10_000)
        async with here.gateway.openai() as client:
            for remaining in ("1", "0"):
                answer = await client.chat.completions.with_raw_response.create(
                    model=MODEL, messages=HELLO, max_tokens=5
                )
                assert answer.headers["x-ratelimit-limit-requests"] == "2"
                assert answer.headers["x-ratelimit-remaining-requests"] == remaining
                assert answer.headers["x-ratelimit-limit-tokens"] == "10000"
                assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
            with pytest.raises(RateLimitError) as refused:
                await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
        headers = refused.value.response.headers
        assert refused.value.code == "rate_limit_exceeded"
        assert 25 <= int(headers["retry-after"]) <= 30
        assert 25_000 <= int(headers["retry-after-ms"]) <= 30_000
        assert headers["x-ratelimit-remaining-requests"] == "0"
        async with ready(here.gateway) as socket:
            await socket.chat("t")
            (frame,) = await socket.turn("t")
        assert (frame["status"], frame["retryable"]) == (429, True)
        assert frame["headers"]["x-ratelimit-remaining-requests"] == "0"
        assert int(frame["headers"]["retry-after-ms"]) > 0
        assert len(here.double.requests) == 2


async def test_a_flood_above_the_rate_costs_the_database_little_and_ends_in_time(
    model_dir: Path, pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(model_dir, pg_dsn) as here:
        await here.limit(requests_per_minute=30, tokens_per_minute=10_000)
        reserve, num_asked = here.store.reserve, 0

        async def counted(request: QuotaRequest) -> QuotaAnswer:
            nonlocal num_asked
            num_asked += 1
            return await reserve(request)

        monkeypatch.setattr(here.store, "reserve", counted)
        began, num_served = time.monotonic(), 0
        while (answer := await chat(here.gateway, chat_body())).status == 200:
            num_served += 1
        # A slow machine is given some back meanwhile, one each 2 s.
        assert 30 <= num_served <= 30 + (time.monotonic() - began) / 2
        num_asked, flooded_at, tokens_left = 1, time.monotonic(), 0
        while answer.status == 429:
            headers = answer.headers
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
            assert (headers["retry-after"], headers["x-ratelimit-limit-requests"]) in (
                ("1", "30"),
                ("2", "30"),
            )
            assert 0 < int(headers["retry-after-ms"]) <= 2000
            assert headers["x-ratelimit-remaining-requests"] == "0"
            # Time gives tokens back, and so do those that have ended, when they are settled.
            assert tokens_left <= int(headers["x-ratelimit-remaining-tokens"]) < 10_000
            tokens_left = int(headers["x-ratelimit-remaining-tokens"])
            answer = await chat(here.gateway, chat_body())
        assert answer.status == 200
        ended_at = time.monotonic()
        assert ended_at - began > 1.9, "one more fits in when 2 s have given it back"
        # It was asked for the first that was refused and the one that was served, for those between
        # them once a second, and for a few that came back a moment early.
        assert num_asked <= 1 + (ended_at - flooded_at) / MAX_S + 1 + 3
        assert tokens_left > 0
        assert len(here.double.requests) == num_served + 1


async def test_the_engine_is_told_how_many_blocks_may_stay_cached(
    model_dir: Path, pg_dsn: str
) -> None:
    async with site(model_dir, pg_dsn) as here:
        await here.limit(max_cached_blocks=40)
        tenant_id = here.gateway.tenant.id
        await here.store.put_limits(tenant_id, "key", here.key.id, Limits(max_cached_blocks=0))
        expected = {tenant_id.hex: 40, here.key.id.hex: 0}

        async def told() -> bool:
            assert (await ask(here.gateway, chat_body(), key=here.gateway.api_key)).status == 200
            return here.double.requests[-1].max_cached_blocks == expected

        await until(told)
        other = await here.make_key()
        assert (await ask(here.gateway, chat_body(), key=other)).status == 200
        assert here.double.requests[-1].max_cached_blocks == {tenant_id.hex: 40}


async def test_a_spent_budget_refuses_and_says_that_retrying_is_in_vain(
    model_dir: Path, pg_dsn: str
) -> None:
    async with site(model_dir, pg_dsn) as here:
        await here.limit(monthly_tokens=3)
        async with here.gateway.openai(max_retries=2) as client:
            with pytest.raises(RateLimitError) as refused:
                await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert refused.value.code == "insufficient_quota"
        assert refused.value.type == "insufficient_quota"
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.value.response.headers
        assert here.double.requests == []


async def test_a_budget_that_ends_meanwhile_ends_the_answer_with_length(
    model_dir: Path, pg_dsn: str
) -> None:
    async with site(model_dir, pg_dsn, price_prompt=10**6, price_completion=2 * 10**6) as here:
        here.double.script = lambda prompt: Play(text="x" * 1500, interval_s=0.002)
        await here.limit(monthly_tokens=400)
        async with here.gateway.openai() as client:
            answer = await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=1500, user="jo"
            )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.total_tokens == 400
        assert answer.usage.completion_tokens == sum(here.double.generated.values())
        totals = await here.gateway.usage()
        assert totals.completion_tokens == answer.usage.completion_tokens
        prompt, completion = answer.usage.prompt_tokens, answer.usage.completion_tokens
        assert totals.cost_micro == prompt + 2 * completion
        await until(lambda: not here.double.running)


async def test_several_answers_share_a_budget_to_the_token(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: Play(text="x" * 1500, interval_s=0.001)
        await here.limit(monthly_tokens=700)
        async with here.gateway.openai() as client:
            answer = await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=1500, n=3
            )
        assert [choice.finish_reason for choice in answer.choices] == ["length"] * 3
        assert answer.usage is not None
        assert answer.usage.total_tokens == 700
        assert sum(here.double.generated.values()) == answer.usage.completion_tokens
        totals = await here.gateway.usage()
        assert totals.completion_tokens == answer.usage.completion_tokens


async def test_a_store_that_answers_late_makes_the_answer_wait_but_not_overdraw(
    model_dir: Path, pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: Play(text="x" * 600)
        await here.limit(monthly_tokens=10_000)
        extend, reserved = Store.extend, [256]

        async def late(*arguments: Any, **options: Any) -> int | None:
            assert sum(here.double.generated.values()) <= sum(reserved)
            await until(lambda: sum(here.double.generated.values()) == sum(reserved))
            await asyncio.sleep(0.1)
            assert sum(here.double.generated.values()) == sum(reserved), "it waits there"
            granted = await extend(*arguments, **options)
            reserved.append(granted or 0)
            return granted

        monkeypatch.setattr(Store, "extend", late)
        async with here.gateway.openai() as client:
            answer = await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=1500
            )
        assert answer.choices[0].message.content == "x" * 600
        assert len(reserved) > 1


async def test_not_one_token_goes_beyond_a_budget_that_ends_in_the_first_slice(
    model_dir: Path, pg_dsn: str
) -> None:
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: Play(text="x" * 1500, interval_s=0.001)
        await here.limit(monthly_tokens=100)
        async with here.gateway.openai() as client:
            answer = await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=1500, extra_body={"min_tokens": 200}
            )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.total_tokens == 100
        assert sum(here.double.generated.values()) == answer.usage.completion_tokens


async def test_of_two_at_once_the_second_is_refused_until_the_first_has_ended(
    model_dir: Path, pg_dsn: str
) -> None:
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: ENDLESS
        await here.limit(max_concurrent=1)
        async with here.gateway.openai() as client:
            first = await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=1500, stream=True
            )
            await anext(aiter(first))
            with pytest.raises(RateLimitError) as refused:
                await client.chat.completions.create(model=MODEL, messages=HELLO)
            assert int(refused.value.response.headers["retry-after"]) >= 1
            await first.close()
            await here.gateway.usage()
            here.double.script = lambda prompt: Play(text="ok")
            answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
            assert answer.choices[0].message.content == "ok"


async def test_with_a_queue_the_second_waits_its_turn(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn) as here:
        most = 0

        def script(prompt: str) -> Play:
            nonlocal most
            most = max(most, len(here.double.running))
            return Play(text="x" * 20, interval_s=0.005)

        here.double.script = script
        await here.limit(max_concurrent=1, max_queued=5)
        async with here.gateway.openai() as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(model=MODEL, messages=HELLO) for _ in range(3))
            )
        assert [answer.choices[0].finish_reason for answer in answers] == ["stop"] * 3
        assert most == 1


async def test_an_engine_that_refuses_costs_nothing(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn, max_num_queued_reqs=0) as here:
        await here.limit(tokens_per_minute=100, max_concurrent=1)

        async def is_refused_by_the_engine() -> bool:
            body = chat_body(max_tokens=80)
            answer = await ask(here.gateway, body, key=here.gateway.api_key)
            return (answer.status, answer.error["code"]) == (503, "overloaded")

        assert await is_refused_by_the_engine()
        await until(is_refused_by_the_engine)  # once slot and tokens are given back
        await until(lambda: here.gateway.app.state.services.quota.num_held == 0)


async def test_a_revoked_key_ends_what_runs_within_a_second(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: ENDLESS
        other = await here.gateway.key("chat")
        async with (
            here.gateway.openai() as client,
            here.gateway.openai(api_key=other) as neighbour,
            ready(here.gateway) as busy,
            ready(here.gateway) as idle,
        ):
            stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            spared = await neighbour.chat.completions.create(
                model=MODEL, messages=HELLO, stream=True
            )
            await busy.chat("t")
            await until(lambda: len(here.double.generated) == 3)
            began = time.monotonic()
            await here.store.revoke_key(here.key.public_id)
            with pytest.raises(APIError) as ended:
                async for _ in stream:
                    pass
            frames = await busy.turn("t")
            assert await idle.closed() == 4401
            assert await busy.closed() == 4401
            assert time.monotonic() - began < SECOND_S
            assert ended.value.code == "invalid_api_key"
            assert frames[-1]["error"]["code"] == "invalid_api_key"
            with pytest.raises(AuthenticationError):
                await client.chat.completions.create(model=MODEL, messages=HELLO)
            totals = await here.gateway.usage(2)
            assert totals.requests == 2
            assert totals.completion_tokens > 0
            assert len(here.double.running) == 1  # the neighbour's
            await anext(aiter(spared))


async def test_a_revoked_key_reads_no_stream_of_another_key_on(
    model_dir: Path, pg_dsn: str
) -> None:
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: ENDLESS
        other = {"authorization": f"Bearer {await here.gateway.key('chat')}"}
        mine = {"authorization": f"Bearer {here.gateway.api_key}"}
        body = {"model": MODEL, "messages": HELLO, "stream": True}
        keyed = {"idempotency-key": "k"}
        async with (
            httpx.AsyncClient(base_url=here.gateway.url, timeout=30) as client,
            client.stream(
                "POST", "/v1/chat/completions", json=body | {"resumable": True}, headers=other
            ) as stream,
            client.stream(
                "POST", "/v1/chat/completions", json=body, headers=other | keyed
            ) as answer,
        ):
            lines = [stream.aiter_lines(), answer.aiter_lines()]
            for begun in lines:
                await anext(begun)
            path = f"/v1/streams/{stream.headers['x-sluice-stream-id']}"
            async with (
                client.stream("GET", path, headers=mine) as followed,
                client.stream(
                    "POST", "/v1/chat/completions", json=body, headers=mine | keyed
                ) as replay,
            ):
                assert replay.headers["idempotent-replayed"] == "true"
                began = time.monotonic()
                await here.store.revoke_key(here.key.public_id)
                ends = [await one.aread() for one in (followed, replay)]
                assert time.monotonic() - began < SECOND_S
            for read in ends:
                assert events(read)[-1]["error"]["code"] == "invalid_api_key"
            for running in lines:  # those of the other key go on
                await anext(running)
        assert not here.gateway.app.state.services.streams.readers


async def test_a_key_that_ends_ends_what_runs_within_a_second(model_dir: Path, pg_dsn: str) -> None:
    """By its expiry, and by the end of its grace after a rotation: no notification comes then."""
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: ENDLESS
        for how in ("expires", "rotated"):
            minted, other = mint(SECRETS.key_pepper), mint(SECRETS.key_pepper)
            ends_at = datetime.now(UTC) + timedelta(seconds=2)
            await here.store.create_key(
                here.gateway.tenant.id,
                public_id=minted.public_id,
                key_hash=minted.key_hash,
                name=how,
                scopes=["chat"],
                expires_at=ends_at if how == "expires" else None,
            )
            async with (
                here.gateway.openai(api_key=minted.text) as client,
                ready(here.gateway, api_key=minted.text) as idle,
            ):
                stream = await client.chat.completions.create(
                    model=MODEL, messages=HELLO, stream=True
                )
                await anext(aiter(stream))
                if how == "rotated":
                    await here.store.rotate_key(
                        minted.public_id,
                        new_public_id=other.public_id,
                        key_hash=other.key_hash,
                        grace=ends_at - datetime.now(UTC),
                    )
                with pytest.raises(APIError):
                    async for _ in stream:
                        pass
                assert await idle.closed() == 4401
            late = (datetime.now(UTC) - ends_at).total_seconds()
            assert -0.05 < late < SECOND_S, how


async def test_a_request_ends_by_the_word_of_another_worker(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: ENDLESS
        await here.limit(max_concurrent=5)
        async with here.gateway.openai() as client:
            stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            await anext(aiter(stream))
            (running,) = await here.store.list_running()
            began = time.monotonic()
            await here.store.kill_request(running.tenant_id, running.request_id)
            with pytest.raises(APIError, match="administrator"):
                async for _ in stream:
                    pass
            assert time.monotonic() - began < SECOND_S
        await here.gateway.usage()
        assert await here.store.list_running() == []


async def test_a_key_revoked_in_the_queue_never_runs(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: ENDLESS
        await here.limit(max_concurrent=1, max_queued=1)
        other = await here.gateway.key("chat")
        async with (
            here.gateway.openai(api_key=other) as neighbour,
            here.gateway.openai() as client,
        ):
            first = await neighbour.chat.completions.create(
                model=MODEL, messages=HELLO, stream=True
            )
            await anext(aiter(first))
            queued = asyncio.create_task(
                client.chat.completions.create(model=MODEL, messages=HELLO)
            )
            await asyncio.sleep(0.1)
            await here.store.revoke_key(here.key.public_id)
            await first.close()
            with pytest.raises(AuthenticationError):
                await queued
        assert len(here.double.requests) == 1
        await until(lambda: here.gateway.app.state.services.quota.num_held == 0)


async def test_a_disabled_tenant_is_shut_out(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn) as here:
        here.double.script = lambda prompt: ENDLESS
        async with here.gateway.openai() as client:
            stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            await anext(aiter(stream))
            await here.store.update_tenant(here.gateway.tenant.id, disabled=True)
            with pytest.raises(APIError, match="API key"):
                async for _ in stream:
                    pass
            with pytest.raises(AuthenticationError):
                await client.models.list()
            await here.store.update_tenant(here.gateway.tenant.id, disabled=False)
            await until(lambda: b"sluice_changes_age_seconds" in metrics(here.gateway))

            async def is_open() -> bool:
                answer = await get(
                    here.gateway,
                    "/v1/models",
                    authorization=f"Bearer {here.gateway.api_key}",
                )
                return answer.status == 200

            await until(is_open)


async def test_keys_see_and_use_their_models(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn) as here:
        aliased = await here.make_key(model_aliases={"gpt-4o": MODEL, "gone": "nowhere"})
        async with here.gateway.openai(api_key=aliased) as client:
            assert [model.id async for model in client.models.list()] == [MODEL, "gpt-4o"]
            answer = await client.chat.completions.create(model="gpt-4o", messages=HELLO)
            assert answer.model == MODEL
        barred = await here.make_key(allowed_models=("another",))
        for key, model, status, code in (
            (aliased, "gone", 404, "model_not_found"),
            (aliased, "unknown", 404, "model_not_found"),
            (barred, MODEL, 403, "permission_denied"),
        ):
            refusal = await ask(here.gateway, chat_body() | {"model": model}, key=key)
            assert (refusal.status, refusal.error["code"]) == (status, code)
            assert refusal.error["param"] == "model"


async def test_a_user_that_can_be_no_name_is_refused(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn) as here:
        answer = await ask(here.gateway, chat_body(user="a\u202eb"), key=here.gateway.api_key)
        assert (answer.status, answer.error["param"]) == (400, "user")


async def test_a_scopes_priority_and_weight_reach_the_engine(model_dir: Path, pg_dsn: str) -> None:
    async with site(model_dir, pg_dsn) as here:
        await here.limit(priority=-3, weight=2.5)
        async with here.gateway.openai() as client:
            await client.chat.completions.create(model=MODEL, messages=HELLO)
        (request,) = here.double.requests
        assert (request.priority, request.weight) == (-3, 2.5)
