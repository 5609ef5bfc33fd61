from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from engine.errors import QueueFull
from gateway.errors import ApiError, Draining, EngineUnavailable, Gone, InternalError
from gateway.generation.generation import Generation, usage_of
from tenants.keys import mint
from tenants.limits import Limits, ScopePolicy
from tenants.types import Principal, UsageEvent
from tests.gateway.engine_double import Play
from tests.gateway.generating import bench, read
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio


async def test_an_answer_that_nobody_takes_is_given_up(model_dir: Path) -> None:
    async with bench(model_dir, max_unread_tokens=10, stall_timeout_s=0.2) as here:
        here.double.script = lambda prompt: Play(text="x" * 800, interval_s=0.005)
        generation = here.begin()
        async with aclosing(generation.deltas()) as deltas:
            await anext(deltas)
            await until(lambda: here.double.aborted)
            with pytest.raises(Gone, match="Nobody read this stream") as caught:
                async for _ in deltas:
                    pass
        assert caught.value.code == "stream_abandoned"
        generation.close()
        event = await here.event()
        assert event.status == "disconnected"
        assert 10 < event.completion_tokens < 800


async def test_a_budget_ends_an_answer_that_nobody_reads(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x" * 1500, interval_s=0.001)
        tenant, key, request_id = here.principal.tenant, here.principal.key, uuid4()
        limits = Limits(monthly_tokens=len(here.tokens) + 300)
        await here.store.put_limits(tenant.id, "tenant", tenant.id, limits)
        policy = ScopePolicy(scope_kind="tenant", scope_id=tenant.id, limits=limits)
        hold = await here.quota.reserve(
            msgspec.structs.replace(here.principal, policies=(policy,)),
            request_id=request_id,
            model="tiny",
            prompt_tokens=len(here.tokens),
            max_tokens=1000,
        )
        generation = here.begin(id=request_id, hold=hold)
        await until(lambda: not here.double.running)
        (last,) = (await read(generation))[-1:]
        assert last.finish_reason == "length"
        generation.close()
        event = await here.event()
        assert (event.status, event.key_id) == ("length", key.id)
        assert event.completion_tokens == 300


async def test_a_whole_answer(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        generation = here.begin()
        assert len(here.generations) == 1
        deltas = await read(generation)
        assert "".join(delta.content for delta in deltas) == "hello"
        assert [delta.finish_reason for delta in deltas] == [None] * 5 + ["stop"]
        assert (await generation.usage()).completion_tokens == 5
        generation.close()
        event = await here.event()
    assert event.request_id == generation.admitted.id
    assert (event.status, event.prompt_tokens, event.completion_tokens) == ("stop", 3, 5)
    assert event.tenant_id == here.principal.tenant.id
    assert event.key_id == here.principal.key.id


async def test_closing_twice_settles_once(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        generation = here.begin()
        await read(generation)
        generation.close()
        generation.close()
        await here.generations.drain(5)
        generation.close()
        await asyncio.sleep(0.01)
        assert len(here.store.events) == 1


@pytest.mark.parametrize(
    ("ending", "status"), [("cancel", "cancelled"), ("close", "disconnected"), ("fail", "error")]
)
async def test_an_end_before_the_end_bills_what_was_generated(
    model_dir: Path, ending: str, status: str
) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x" * 500, interval_s=0.001)
        generation = here.begin()
        async with aclosing(generation.deltas()) as deltas:
            await anext(deltas)
            if ending == "cancel":
                generation.cancel()
                rest = [delta async for delta in deltas]
                assert rest[-1].finish_reason == "cancelled"
            elif ending == "fail":
                generation.fail(Draining("bye"))
                with pytest.raises(Draining):
                    _ = [delta async for delta in deltas]
        generation.close()
        event = await here.event()
        assert event.status == status
        assert event.completion_tokens == sum(here.double.generated.values()) < 500
        assert not here.double.running


async def test_a_cancel_that_comes_too_late_changes_nothing(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        generation = here.begin()
        deltas = await read(generation)
        generation.cancel()
        generation.close()
        assert deltas[-1].finish_reason == "stop"
        assert (await here.event()).status == "stop"


async def test_nobody_reads_and_it_is_still_settled(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x", queued_s=60)
        generation = here.begin()
        await until(lambda: here.double.running)
        generation.close()
        event = await here.event()
        assert (event.status, event.prompt_tokens, event.completion_tokens) == (
            "disconnected",
            3,
            0,
        )


async def test_a_crash_bills_what_came_and_a_failed_start_nothing(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        plays = iter([Play(text="x" * 500, interval_s=0.001), Play(text="x", queued_s=60)])
        here.double.script = lambda prompt: next(plays)
        begun, waiting = here.begin(), here.begin()
        reading = asyncio.create_task(read(begun))
        await until(lambda: here.double.generated)
        here.double.crash()
        for outcome in await asyncio.gather(reading, read(waiting), return_exceptions=True):
            assert isinstance(outcome, EngineUnavailable)
        begun.close()
        waiting.close()
        await until(lambda: len(here.store.events) == 2)
        events = {event.request_id: event for event in here.store.events}
        assert events[begun.admitted.id].completion_tokens == sum(here.double.generated.values())
        assert events[begun.admitted.id].prompt_tokens == 3
        assert events[waiting.admitted.id].prompt_tokens == 0
        assert {event.status for event in events.values()} == {"error"}


async def test_all_choices_begin_or_none(model_dir: Path) -> None:
    async with bench(model_dir, max_queued=2) as here:
        here.double.script = lambda prompt: Play(text="x", queued_s=60)
        with pytest.raises(QueueFull):
            here.begin(num_choices=3)
        await until(lambda: len(here.double.aborted) == 2)
        assert not here.double.running
        assert not len(here.generations)
        assert not here.store.events


async def test_what_cannot_begin_gives_back_what_is_reserved(model_dir: Path) -> None:
    async with bench(model_dir, max_queued=0) as here:
        tenant_id = here.principal.tenant.id
        await here.store.put_limits(tenant_id, "tenant", tenant_id, Limits(max_concurrent=1))
        record = await here.store.find_key(here.principal.key.public_id)
        assert record is not None
        for _ in range(2):  # the second time there is room again
            hold = await here.quota.reserve(
                record.principal, request_id=uuid4(), model="tiny", prompt_tokens=3, max_tokens=9
            )
            with pytest.raises(QueueFull):
                here.begin(hold=hold, id=hold.request_id)
            assert await here.generations.drain(5) == 0
        assert here.quota.num_held == 0
        assert await here.store.list_running() == []


async def test_choices_run_side_by_side(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        texts = iter(["aaa", "bb", "c"])
        here.double.script = lambda prompt: Play(text=next(texts), interval_s=0.001)
        generation = here.begin(num_choices=3)
        deltas = await read(generation)
        generation.close()
        joined = ["".join(d.content for d in deltas if d.index == i) for i in range(3)]
        assert joined == ["aaa", "bb", "c"]
        (group,) = {request.group for request in here.double.requests}
        assert group, "they share their prompt's blocks, whether prefixes are cached or not"
        event = await here.event()
        assert (event.prompt_tokens, event.completion_tokens) == (3, 6)


async def test_one_failed_choice_fails_the_request(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        plays = iter([Play(text="x" * 500, interval_s=0.001), Play(error="broken", queued_s=0.02)])
        here.double.script = lambda prompt: next(plays)
        generation = here.begin(num_choices=2)
        with pytest.raises(ApiError, match="broken"):
            await read(generation)
        generation.close()
        event = await here.event()
        assert event.status == "error"
        assert event.completion_tokens == sum(here.double.generated.values()) > 0
        assert not here.double.running


async def test_the_first_output_is_not_lost(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        for num_choices in (1, 2):
            generation = here.begin(num_choices=num_choices)
            await generation.first_output(1)
            deltas = await read(generation)
            generation.close()
            joined = "".join(delta.content for delta in deltas if delta.index == 0)
            assert joined == "hello"


async def test_a_late_first_output_is_not_waited_for(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="hello", queued_s=0.1)
        generation = here.begin()
        await generation.first_output(0.01)
        assert "".join(delta.content for delta in await read(generation)) == "hello"
        generation.close()


async def test_a_crash_before_the_first_output(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="hello", queued_s=60)
        generation = here.begin()
        asyncio.get_running_loop().call_later(0.02, here.double.crash)
        with pytest.raises(EngineUnavailable):
            await generation.first_output(5)
        generation.close()
        assert (await here.event()).status == "error"


async def test_leaving_mid_stream_leaves_no_reader_behind(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x" * 500, interval_s=0.001)
        generation = here.begin(num_choices=3)
        async with aclosing(generation.deltas()) as deltas:
            await anext(deltas)
        generation.close()
        await here.generations.drain(5)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert not any(name.startswith("read ") for name in names)


async def test_slow_flushes_merge_and_lose_nothing(model_dir: Path) -> None:
    async with bench(model_dir, flush_interval_s=0.05) as here:
        here.double.script = lambda prompt: Play(text="0123456789" * 20, interval_s=0.001)
        for num_choices in (1, 2):
            generation = here.begin(num_choices=num_choices)
            deltas = [delta for delta in await read(generation) if delta.index == 0]
            generation.close()
            assert "".join(delta.content for delta in deltas) == "0123456789" * 20
            assert len(deltas) < 60


async def test_usage_waits_for_a_store_that_is_away(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.store.away = True
        generation = here.begin()
        await read(generation)
        generation.close()
        await here.generations.drain(5)
        assert here.ledger.num_pending == 1
        here.store.away = False
        assert (await here.event()).completion_tokens == 5


async def test_no_answer_about_quota_comes_after_the_settlement(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would reserve anew what nobody would give back."""
    async with bench(model_dir) as here:
        tenant_id = here.principal.tenant.id
        await here.store.put_limits(tenant_id, "tenant", tenant_id, Limits(monthly_tokens=10_000))
        policies = tuple(await here.store.list_limits(tenant_id))
        limited = msgspec.structs.replace(here.principal, policies=policies)
        asked, go_on = asyncio.Event(), asyncio.Event()
        extend, record = here.store.extend, here.store.record_usage

        async def late(*args: Any, **kwargs: Any) -> Any:
            asked.set()
            await go_on.wait()
            return await extend(*args, **kwargs)

        async def recorded(event: UsageEvent) -> bool:
            answer = await record(event)
            go_on.set()
            for _ in range(5):
                await asyncio.sleep(0)
            return answer

        monkeypatch.setattr(here.store, "extend", late)
        monkeypatch.setattr(here.store, "record_usage", recorded)
        here.double.script = lambda prompt: Play(text="x" * 500)
        request_id = uuid4()
        hold = await here.quota.reserve(
            limited, request_id=request_id, model="tiny", prompt_tokens=3, max_tokens=1000
        )
        generation = here.begin(id=request_id, principal=limited, hold=hold)
        await asked.wait()
        generation.close()
        await here.event()
        assert await here.generations.drain(5) == 0
        assert await here.store.list_running() == []
        assert here.quota.num_held == 0


async def test_a_key_that_is_gone_is_logged_and_harms_nobody(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(model_dir) as here:
        here.store._keys.clear()
        generation = here.begin()
        await read(generation)
        generation.close()
        assert await here.generations.drain(5) == 0
    assert str(generation.admitted.id) in caplog.text


async def test_an_end_that_nobody_asked_for_is_an_error(model_dir: Path) -> None:
    """The engine gave it up: that is no answer, and no client's wish either."""
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="hello", finish_reason="abort")
        generation = here.begin()
        with pytest.raises(InternalError, match="aborted by the server"):
            await read(generation)
        generation.close()
        event = await here.event()
        assert (event.status, event.completion_tokens) == ("error", 5)


async def test_while_the_ledger_is_full_an_ended_request_stays_held_and_counted(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its reservation would be settled with what it had said when it was renewed last."""
    async with bench(model_dir) as here:
        monkeypatch.setattr(here.ledger, "_max_pending", 1)
        ends: list[UUID] = []
        monkeypatch.setattr(Generation, "stop_counting", lambda self: ends.append(self.admitted.id))
        tenant_id, limits = here.principal.tenant.id, Limits(monthly_tokens=10_000)
        await here.store.put_limits(tenant_id, "tenant", tenant_id, limits)
        policy = ScopePolicy(scope_kind="tenant", scope_id=tenant_id, limits=limits)
        limited = msgspec.structs.replace(here.principal, policies=(policy,))
        holds = [
            await here.quota.reserve(
                limited, request_id=uuid4(), model="tiny", prompt_tokens=3, max_tokens=1000
            )
            for _ in range(2)
        ]
        here.store.away = True
        for hold in holds:
            generation = here.begin(id=hold.request_id, hold=hold)
            await read(generation)
            generation.close()
        await until(lambda: here.quota.num_held == 1)  # the first one's is kept by the ledger
        await asyncio.sleep(0.05)
        assert here.quota.num_held == 1
        assert ends == [holds[0].request_id]
        assert holds[1].generated == 5
        here.store.away = False
        assert await here.generations.drain(30) == 0
        assert await here.ledger.drain(30) == 0
        assert here.quota.num_held == 0
        assert ends == [hold.request_id for hold in holds]
        assert [event.completion_tokens for event in here.store.events] == [5, 5]


async def test_a_settlement_that_breaks_is_logged_and_stops_nobody(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(model_dir) as here:

        async def broken(event: UsageEvent) -> bool:
            raise RuntimeError("nobody thought of this")

        with monkeypatch.context() as patch:
            patch.setattr(here.ledger, "settle", broken)
            generation = here.begin()
            await read(generation)
            generation.close()
            assert await here.generations.drain(5) == 0
        assert "nobody thought of this" in caplog.text
        assert here.quota.num_held == 0
        after = here.begin()
        await read(after)
        after.close()
        assert (await here.event()).request_id == after.admitted.id


async def test_waiting_for_idleness(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        await here.generations.wait_idle(1)
        here.double.script = lambda prompt: Play(text="x" * 50, interval_s=0.002)
        generation = here.begin()
        await here.generations.wait_idle(0.01)  # gives up in time
        assert len(here.generations) == 1
        waiting = asyncio.create_task(here.generations.wait_idle(5))
        await read(generation)
        assert not waiting.done()
        generation.close()
        await waiting


@pytest.mark.parametrize("of", ["request", "key"])
async def test_failing_those_of_one_request_or_key(model_dir: Path, of: str) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x" * 300, interval_s=0.001)
        ours, others = here.begin(), here.begin()
        reading = [asyncio.create_task(read(generation)) for generation in (ours, others)]
        await until(lambda: len(here.double.generated) == 2)
        if of == "request":
            here.generations.fail_request(ours.admitted.id, Draining("bye"))
        else:
            here.generations.fail_key(mint(b"p" * 32).public_id, Draining("not yours"))
            assert not any(task.done() for task in reading)
            here.generations.fail_key(here.principal.key.public_id, Draining("bye"))
        ends = await asyncio.gather(*reading, return_exceptions=True)
        assert isinstance(ends[0], Draining)
        assert isinstance(ends[1], Draining) == (of == "key")
        for generation in (ours, others):
            generation.close()
        await until(lambda: len(here.store.events) == 2)


async def test_failing_a_key_spares_the_tenants_other_keys(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x" * 100, interval_s=0.001)
        minted, own = mint(b"p" * 32), here.principal
        key = await here.store.create_key(
            own.tenant.id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name="other",
            scopes=["chat"],
        )
        spared = here.begin(principal=Principal(tenant=own.tenant, key=key))
        ours = here.begin()
        reading = [asyncio.create_task(read(generation)) for generation in (ours, spared)]
        await until(lambda: len(here.double.generated) == 2)
        here.generations.fail_key(own.key.public_id, Draining("bye"))
        ends = await asyncio.gather(*reading, return_exceptions=True)
        for generation in (ours, spared):
            generation.close()
    assert isinstance(ends[0], Draining)
    assert not isinstance(ends[1], BaseException)
    assert ends[1][-1].finish_reason == "stop"
    assert [request.num_public_tokens for request in here.double.requests] == [0, 0]


async def test_the_time_to_the_first_token_is_measured_from_the_beginning(
    model_dir: Path,
) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="hello", queued_s=0.05)
        generation = here.begin(num_choices=2)
        await read(generation)
        generation.close()
        text = here.generations.metrics.render().decode()
        found = re.findall(r"sluice_time_to_first_token_seconds_(count|sum)\{.*\} (\S+)", text)
        values = {name: float(value) for name, value in found}
        assert values["count"] == 1, "once for a request, however many its choices"
        assert 0.05 <= values["sum"] < 30


async def test_failing_all(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x" * 500, interval_s=0.01)
        running = [here.begin() for _ in range(3)]
        reading = [asyncio.create_task(read(generation)) for generation in running]
        await until(lambda: len(here.double.generated) == 3)
        here.generations.fail_all(Draining("bye"))
        for outcome in await asyncio.gather(*reading, return_exceptions=True):
            assert isinstance(outcome, Draining)
        for generation in running:
            generation.close()
        await until(lambda: len(here.store.events) == 3)


async def test_drafts_that_were_not_accepted_are_told_as_rejected() -> None:
    usage = usage_of(
        prompt_tokens=5, cached_tokens=2, completion_tokens=9, draft_tokens=7, accepted_tokens=4
    )
    details = usage.completion_tokens_details
    assert (usage.total_tokens, usage.prompt_tokens_details.cached_tokens) == (14, 2)
    assert details.accepted_prediction_tokens == 4
    assert details.rejected_prediction_tokens == 3
