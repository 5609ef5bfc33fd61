"""On what terms a request runs: what the engine is told, what a settlement says, who ends it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from engine.messages import AdapterRef
from engine.sampling_params import SamplingParams
from gateway.admission.unenforced import WHOLE, LooseCalls, Unenforced
from gateway.errors import ApiError, Draining, Gone
from gateway.generation.compliance import ComplianceChecks
from gateway.generation.generation import Generation
from gateway.parsers.answer import AnswerParser
from gateway.parsers.hermes import HERMES
from gateway.parsers.reasoning import ThinkParser
from gateway.schemas.chat import FunctionDefinition
from gateway.schemas.common import Compliance
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec
from grammar.validation import Report, validate
from tenants.journal import Journal
from tenants.lanes import Lanes
from tenants.limits import Limits, ScopePolicy
from tenants.progress import read as read_progress
from tenants.types import UsageEvent
from tests.gateway.engine_double import Play, says
from tests.gateway.generating import Bench, bench, read
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio

UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
CALL = '<tool_call>{"name": "f", "arguments": {"a": "no"}}</tool_call>'


async def test_the_engine_is_told_all_of_a_request(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        tenant = here.principal.tenant
        limits = Limits(weight=2.5, max_cached_blocks=7)
        policy = ScopePolicy(scope_kind="tenant", scope_id=tenant.id, limits=limits)
        generation = here.begin(
            principal=msgspec.structs.replace(here.principal, policies=(policy,)),
            prompts=[[1, 2], [3]],
            num_choices=2,
            params=SamplingParams(max_tokens=1000, seed=5),
            cache_salt="salt",
            adapter=AdapterRef(name="a", path="/adapters/a"),
            priority=3,
        )
        await read(generation)
        generation.close()
        requests = here.double.requests
        assert [request.prompt_token_ids for request in requests] == [[1, 2], [1, 2], [3], [3]]
        assert [request.params.seed for request in requests] == [5, 6, 5, 6]
        groups = [request.group for request in requests]
        assert groups[0] == groups[1] != groups[2] == groups[3]
        for request in requests:
            assert (request.fair_key, request.weight) == (tenant.id.hex, 2.5)
            assert request.max_cached_blocks == {tenant.id.hex: 7}
            assert (request.cache_salt, request.priority) == ("salt", 3)
            assert request.adapter == generation.admitted.adapter


async def test_a_single_answer_is_in_no_group(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        generation = here.begin(prompts=[[1, 2], [3]])
        await read(generation)
        generation.close()
        assert [request.group for request in here.double.requests] == ["", ""]


async def test_a_prompts_cached_tokens_count_once(model_dir: Path) -> None:
    """However many answers it has, and never as more than it has tokens."""
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="hello", num_cached_tokens=50)
        generation = here.begin(prompts=[[1, 2, 3], [4, 5]], num_choices=2)
        await read(generation)
        usage = await generation.usage()
        assert usage.prompt_tokens_details.cached_tokens == 5
        generation.close()
        event = await here.event()
        assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (5, 5, 20)


@pytest.mark.parametrize("asked", ["usage", "event"])
async def test_usage_is_told_after_the_engines_last_word(model_dir: Path, asked: str) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x" * 500, interval_s=0.001)
        generation = here.begin()
        await until(lambda: here.double.generated)
        generation.cancel()
        assert here.double.running, "the engine has yet to hear of it"
        if asked == "usage":
            await generation.usage()
        else:
            await generation.usage_event("cancelled")
        assert not here.double.running
        generation.close()


async def test_the_budget_knows_what_was_generated(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x" * 500, interval_s=0.001)
        generation = here.begin(num_choices=2)
        await until(lambda: sum(here.double.generated.values()) > 9)
        assert generation.admitted.hold.generated == sum(here.double.generated.values())
        generation.close()


async def test_what_is_settled_is_held_no_more(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        tenant_id, request_id = here.principal.tenant.id, uuid4()
        limits = Limits(max_concurrent=1)
        await here.store.put_limits(tenant_id, "tenant", tenant_id, limits)
        policy = ScopePolicy(scope_kind="tenant", scope_id=tenant_id, limits=limits)
        hold = await here.quota.reserve(
            msgspec.structs.replace(here.principal, policies=(policy,)),
            request_id=request_id,
            model="tiny",
            prompt_tokens=3,
            max_tokens=1000,
        )
        generation = here.begin(id=request_id, hold=hold)
        await read(generation)
        assert here.quota.num_held == 1
        generation.close()
        assert await here.generations.drain(5) == 0
        assert here.quota.num_held == 0
        assert await here.store.list_running() == []


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path)
    yield journal
    journal.close()


def left(folder: Path) -> list[UsageEvent]:
    """What would be settled if this process died now."""
    (path,) = folder.glob("*.running")
    with path.open("rb") as file:
        return list(read_progress(file))


async def test_a_death_is_settled_with_what_every_prompt_found_cached(
    model_dir: Path, tmp_path: Path, journal: Journal
) -> None:
    async with bench(model_dir, journal=journal) as here:
        plays = iter([0.0, 0.02])
        here.double.script = lambda prompt: Play(
            text="x" * 300, queued_s=next(plays), interval_s=0.005, num_cached_tokens=50
        )
        generation = here.begin(prompts=[[1, 2, 3], [4, 5]])
        await until(lambda: here.double.generated)
        assert [event.cached_tokens for event in left(tmp_path)] == [3]
        await until(lambda: len(here.double.generated) == 2)
        (event,) = left(tmp_path)
        assert (event.prompt_tokens, event.cached_tokens) == (5, 5)
        assert event.completion_tokens == sum(here.double.generated.values())
        generation.close()
        assert await here.generations.drain(5) == 0
        assert left(tmp_path) == []


async def test_what_no_ledger_takes_is_not_counted_for_ever(
    model_dir: Path, tmp_path: Path, journal: Journal
) -> None:
    async with bench(model_dir, journal=journal) as here:
        here.store._keys.clear()
        generation = here.begin()
        await read(generation)
        assert len(left(tmp_path)) == 1
        generation.close()
        assert await here.generations.drain(5) == 0
        assert left(tmp_path) == []


async def test_a_settlement_is_counted_in_the_metrics(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        generation = here.begin()
        await read(generation)
        generation.close()
        event = await here.event()
        assert await here.generations.drain(5) == 0
        value = here.generations.metrics._registry.get_sample_value
        counted = {
            kind: value("sluice_tokens_total", {"kind": kind, "model": event.model})
            for kind in ("prompt", "cached", "completion")
        }
        assert counted == {"prompt": 3, "cached": 0, "completion": 5}
        labels = {"model": event.model, "endpoint": ""}
        assert value("sluice_e2e_request_latency_seconds_count", labels) == 1


async def test_a_refusal_as_the_first_output_costs_nothing(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(error="broken")
        generation = here.begin()
        with pytest.raises(ApiError, match="broken"):
            await generation.first_output(5)
        generation.close()
        event = await here.event()
        assert (event.status, event.prompt_tokens) == ("error", 0)


async def test_the_first_reason_to_fail_is_the_one_that_counts(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        plays = iter([Play(text="x" * 500, interval_s=0.001), Play(error="broken")])
        here.double.script = lambda prompt: next(plays)
        stopped, broken = here.begin(), here.begin()
        await until(lambda: here.double.generated and len(here.double.running) == 1)
        for generation in (stopped, broken):
            generation.fail(Gone("nobody is there", code="stream_abandoned"))
            generation.fail(Draining("bye"))
        with pytest.raises(Gone):
            await read(stopped)
        with pytest.raises(ApiError, match="broken"):
            await read(broken)
        stopped.close()
        broken.close()
        await until(lambda: len(here.store.events) == 2)
        assert [event.status for event in here.store.events] == ["disconnected"] * 2


async def test_who_still_reads_what_was_closed_hears_that_it_is_gone(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x" * 500, interval_s=0.001)
        generation = here.begin()
        async with aclosing(generation.deltas()) as deltas:
            await anext(deltas)
            generation.close()
            with pytest.raises(Gone):
                _ = [delta async for delta in deltas]
        assert (await here.event()).status == "disconnected"


async def test_reasoning_is_a_part_of_the_completion(model_dir: Path) -> None:
    async with bench(model_dir) as here:
        here.double.script = says("abc</think>hello")
        generation = here.begin(
            make_parser=lambda: AnswerParser(reasoning=ThinkParser(has_begun=True))
        )
        deltas = await read(generation)
        assert "".join(delta.content for delta in deltas) == "hello"
        usage = await generation.usage()
        generation.close()
        details = usage.completion_tokens_details
        assert 3 <= details.reasoning_tokens <= usage.completion_tokens - 5


def check(spec: GrammarSpec, text: str) -> Future[Report]:
    checked: Future[Report] = Future()
    checked.set_result(validate(spec, text))
    return checked


async def verdict(here: Bench, generation: Generation) -> Compliance | None:
    """Of its one answer; only the last delta has it."""
    *before, last = await read(generation)
    generation.close()
    assert not any(delta.compliance for delta in before)
    return last.compliance


async def test_an_answer_ends_with_what_became_of_its_loose_keywords(model_dir: Path) -> None:
    found = (Finding("uniqueItems", "$.uniqueItems", enforced=False),)
    unenforced = Unenforced(GrammarSpec.from_schema(UNIQUE, strict=False), found)
    for checks in (ComplianceChecks(check, Lanes()), None):
        async with bench(model_dir, checks=checks) as here:
            for text, is_valid in (('["a", "b"]', True), ('["a", "a"]', False)):
                here.double.script = says(text)
                compliance = await verdict(here, here.begin(unenforced=unenforced))
                if checks is None:
                    assert compliance is None
                else:
                    assert compliance is not None
                    assert compliance.valid is is_valid
            assert await verdict(here, here.begin()) is None


async def test_calls_are_checked_in_place_of_a_document(model_dir: Path) -> None:
    function = FunctionDefinition(name="f", parameters={"properties": {"a": {"type": "integer"}}})
    loose = LooseCalls({"f": function}, {"f": WHOLE})
    found = (Finding("uniqueItems", "$.uniqueItems", enforced=False),)
    unenforced = Unenforced(GrammarSpec.from_schema(UNIQUE, strict=False), found)
    async with bench(model_dir, checks=ComplianceChecks(check, Lanes())) as here:
        here.double.script = says(CALL)
        for loose_calls in (loose, None):
            generation = here.begin(
                make_parser=lambda: AnswerParser(tools=HERMES.make_parser({})),
                unenforced=unenforced,
                loose_calls=loose_calls,
            )
            compliance = await verdict(here, generation)
            if loose_calls is None:
                assert compliance is None
            else:
                assert compliance is not None
                assert [violation.path for violation in compliance.violations] == ["$.a"]
