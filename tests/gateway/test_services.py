"""The parts, made from settings: what each setting decides, and what cannot be made."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.errors import InvalidRequest, ModelLoadError
from engine.text.tokenizer import Tokenizer
from gateway import config as configuration
from gateway.config import Config
from gateway.errors import ConfigError, UnsupportedParameter
from gateway.services import Services, create_services
from tenants.errors import StoreUnavailable
from tests.gateway.engine_double import EngineDouble, Play, says
from tests.gateway.parts import Parts, parts
from tests.gateway.serving import MODEL, SECRETS, double_client, make_config, until
from tests.ledger import usage_totals
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import make_key

METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


def config_of(
    model_dir: Path, journal: Path, *, tenants: dict[str, Any] | None = None, **models: Any
) -> Config:
    config = make_config(model_dir, models=models)
    settings = {"journal_dir": str(journal)} | (tenants or {})
    return msgspec.structs.replace(
        config, tenants=msgspec.structs.replace(config.tenants, **settings)
    )


@contextlib.asynccontextmanager
async def made(config: Config, folder: Path | None = None) -> AsyncIterator[Parts]:
    """The services of a config, with an engine that has started."""
    double = EngineDouble(Tokenizer.load(config.engine.model_dir))
    engine = double_client(config, double)
    await engine.start()
    store = MemoryStore()
    _, principal = await make_key(store)
    services = create_services(
        config, engine=engine, store=store, secrets=SECRETS, metrics_folder=folder
    )
    try:
        yield Parts(services, double, principal)
    finally:
        await services.lifecycle.close()


def fails(config: Config) -> None:
    """Makes services that cannot be made; nothing of them runs."""
    double = EngineDouble(Tokenizer.load(config.engine.model_dir))
    create_services(
        config, engine=double_client(config, double), store=MemoryStore(), secrets=SECRETS
    )


def background(services: Services) -> set[str]:
    """Names of what runs once the lifecycle has begun."""
    before = asyncio.all_tasks()
    services.lifecycle.start()
    return {task.get_name() for task in asyncio.all_tasks() - before}


@pytest.fixture
def own_model(model_dir: Path, tmp_path: Path) -> Path:
    """A model folder that a test may change."""
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


ALWAYS = {
    "quota leases",
    "settlements of the dead",
    "last uses of keys",
    "refusals",
    "line to other workers",
    "registry of engines",
    "batches",
    "webhooks",
    "deleted adapters",
    "quota for outages",
    "upkeep",
    "revocations",
}


@pytest.mark.asyncio
async def test_nothing_runs_before_the_start(model_dir: Path, tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with made(config_of(model_dir, tmp_path)) as here:
        assert {task.get_name() for task in asyncio.all_tasks() - before} == {"engine-supervisor"}
        assert background(here.services) == ALWAYS
    assert asyncio.all_tasks() == before


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "tenants", [{"dsn": NOWHERE}, {"direct_dsn": NOWHERE, "dsn": "x", "transaction_pooling": True}]
)
async def test_a_database_is_listened_to(
    model_dir: Path, tmp_path: Path, tenants: dict[str, Any]
) -> None:
    async with made(config_of(model_dir, tmp_path, tenants=tenants)) as here:
        assert background(here.services) == ALWAYS | {"changes"}


@pytest.mark.asyncio
async def test_workers_share_their_metrics_in_a_folder(model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    async with made(config_of(model_dir, tmp_path / "journal"), folder) as here:
        assert background(here.services) == ALWAYS | {"metrics for other workers"}


@pytest.mark.asyncio
async def test_the_metrics_see_the_requests_and_the_engine(model_dir: Path, tmp_path: Path) -> None:
    async with parts(model_dir, tmp_path) as here:
        here.double.script = lambda prompt: Play(text="xxx", interval_s=0.001)

        def value(name: str) -> float:
            lines = here.services.metrics.render().decode().splitlines()
            (found,) = [line for line in lines if line.startswith(f"{name} ")]
            return float(found.rpartition(" ")[2])

        generation = await here.begin()
        assert value("sluice_generations_running") == 1
        assert await here.answer(generation) == "xxx"
        assert value("sluice_generations_running") == 0
        assert value("sluice_inter_token_latency_seconds_count") == 2


@pytest.mark.asyncio
async def test_the_page_of_metrics_has_those_of_a_gateway(model_dir: Path, tmp_path: Path) -> None:
    named = set(re.findall(r"^\| `(\w+)`", METRICS.read_text(), re.MULTILINE))
    async with made(config_of(model_dir, tmp_path, tenants={"dsn": NOWHERE})) as here:
        text = here.services.metrics.render().decode()
        there = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    assert named == {name for name in there if not name.endswith("_created")}


# -- what the model's folder decides


@pytest.mark.asyncio
@pytest.mark.parametrize(("source", "temperature"), [("auto", 0.25), ("ignore", 1.0)])
async def test_sampling_defaults_come_from_the_model_unless_ignored(
    own_model: Path, tmp_path: Path, source: str, temperature: float
) -> None:
    (own_model / "generation_config.json").write_text(json.dumps({"temperature": 0.25}))
    config = config_of(own_model, tmp_path / "journal", generation_config=source)
    async with made(config) as here:
        await here.answer(await here.begin())
        await here.answer(await here.begin(temperature=0.5))
    found = [request.params.temperature for request in here.double.requests]
    assert found == [temperature, 0.5]


@pytest.mark.asyncio
async def test_a_model_without_a_template_is_served_and_says_so(
    own_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (own_model / "chat_template.jinja").unlink()
    async with made(config_of(own_model, tmp_path / "journal")) as here:
        (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert f"{MODEL} has no chat template" in warning.getMessage()
        assert "models.chat_template" in warning.getMessage()
        with pytest.raises(InvalidRequest, match="template"):
            await here.begin()


@pytest.mark.asyncio
async def test_a_template_of_ones_own_takes_its_place(own_model: Path, tmp_path: Path) -> None:
    (own_model / "chat_template.jinja").unlink()
    template = tmp_path / "template.jinja"
    template.write_text("Q: {{ messages[-1].content }} A:")
    config = config_of(own_model, tmp_path / "journal", chat_template=str(template))
    async with made(config) as here:
        here.double.script = lambda prompt: Play(text="hello")
        await here.answer(await here.begin("who?"))
        assert here.double.prompt() == "Q: who? A:"


def test_a_template_that_is_not_there_is_named(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"nowhere\.jinja"):
        fails(config_of(model_dir, tmp_path, chat_template="nowhere.jinja"))


def test_a_system_prompt_that_the_template_refuses_is_named(
    own_model: Path, tmp_path: Path
) -> None:
    (own_model / "chat_template.jinja").write_text("{{ raise_exception('no system prompts') }}")
    prefixes = {"helper": configuration.PublicPrefix(system="You help.", tenants=("acme",))}
    with pytest.raises(ConfigError, match=r"helper.*no system prompts"):
        fails(config_of(own_model, tmp_path / "journal", public_prefixes=prefixes))


# -- what the settings decide


def test_a_journal_that_cannot_be_kept_is_named_with_its_mend(
    model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"usage cannot be kept here.*tenants\.journal_dir"):
        fails(config_of(model_dir, tmp_path / "file" / "journal"))


@pytest.mark.asyncio
async def test_tokens_of_a_chunk_travel_together_for_the_flush_interval(
    model_dir: Path, tmp_path: Path
) -> None:
    async with parts(model_dir, tmp_path, flush_interval_ms=60_000) as here:
        here.double.script = lambda prompt: Play(text="x" * 20, interval_s=0.001)
        generation = await here.begin()
        deltas = [delta.content async for delta in generation.deltas()]
        generation.close()
    assert len(deltas) <= 3, "the first at once, the last at once, and nothing in between"
    assert "".join(deltas) == "x" * 20


@pytest.mark.asyncio
async def test_public_system_prompts_reach_the_engine(model_dir: Path, tmp_path: Path) -> None:
    prefixes = {"helper": configuration.PublicPrefix(system="You help.", tenants=("acme",))}
    async with made(config_of(model_dir, tmp_path, public_prefixes=prefixes)) as here:
        for system in ("You help.", "Be brief."):
            said = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
            await here.answer(await here.begin(messages=said))
    public, private = (request.num_public_tokens for request in here.double.requests)
    assert public > len("You help.")
    assert private < public


@pytest.mark.asyncio
async def test_a_service_tier_moves_a_request_by_what_it_is_worth(
    model_dir: Path, tmp_path: Path
) -> None:
    tiers = {"priority": -10, "flex": 3}
    async with made(config_of(model_dir, tmp_path, service_tiers=tiers)) as here:
        for tier in ("default", "priority", "flex"):
            await here.answer(await here.begin(service_tier=tier))
    own = here.principal.priority
    assert [r.priority for r in here.double.requests] == [own, own - 10, own + 3]


@pytest.mark.asyncio
async def test_requests_set_the_template_variables_that_are_named_and_no_others(
    own_model: Path, tmp_path: Path
) -> None:
    template = "{{ mood }} {{ enable_thinking }}: {{ messages[-1].content }}"
    (own_model / "chat_template.jinja").write_text(template)
    config = config_of(own_model, tmp_path / "journal", template_kwargs=("mood",))
    async with made(config) as here:
        here.double.script = says("hello")
        await here.answer(await here.begin("who?", chat_template_kwargs={"mood": "sad"}))
        assert here.double.prompt() == "sad : who?"
        with pytest.raises(UnsupportedParameter, match=r"variables: mood\.") as caught:
            await here.begin(chat_template_kwargs={"enable_thinking": False})
        assert caught.value.param == "chat_template_kwargs.enable_thinking"


@pytest.mark.asyncio
async def test_each_kind_of_token_is_charged_its_price(model_dir: Path, tmp_path: Path) -> None:
    config = config_of(
        model_dir,
        tmp_path,
        price_prompt=7 * 10**6,
        price_cached=10**6,
        price_completion=3 * 10**6,
    )
    async with made(config) as here:
        here.double.script = lambda prompt: Play(text="xxxxx", num_cached_tokens=4)
        generation = await here.begin()
        await here.answer(generation)
        await here.services.generations.drain(5.0)
        totals = await usage_totals(here.services.store, here.principal.tenant.id)
    assert (totals.cached_tokens, totals.completion_tokens) == (4, 5)
    assert totals.cost_micro == 7 * (totals.prompt_tokens - 4) + 4 + 3 * 5


@pytest.mark.asyncio
async def test_the_ledger_is_kept_for_as_long_as_is_said(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: asyncio.Queue[int | None] = asyncio.Queue()

    async def maintain(*, usage_retention_months: int | None) -> None:
        kept.put_nowait(usage_retention_months)

    config = config_of(model_dir, tmp_path, tenants={"usage_retention_months": 3})
    async with made(config) as here:
        monkeypatch.setattr(here.services.store, "maintain", maintain)
        here.services.lifecycle.start()
        assert await asyncio.wait_for(kept.get(), 60) == 3


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("peer_host", "where"), [("127.0.0.1", "tcp://127.0.0.1:"), (None, "ipc://")]
)
async def test_other_workers_find_this_one_where_the_settings_say(
    model_dir: Path, tmp_path: Path, peer_host: str | None, where: str
) -> None:
    async with parts(model_dir, tmp_path, peer_host=peer_host) as here:
        services = here.services
        services.lifecycle.start()
        found = None

        async def is_known() -> bool:
            nonlocal found
            found = await services.store.shared.find_worker(services.peers.worker_id)
            return found is not None

        await until(is_known)
        assert found is not None
        assert found.address.startswith(where)


async def _away(public_id: str) -> None:
    raise StoreUnavailable("away")


@pytest.mark.asyncio
@pytest.mark.parametrize(("key_grace_s", "works"), [(60.0, False), (900.0, True)])
async def test_how_long_a_key_works_while_the_database_is_away(
    model_dir: Path, tmp_path: Path, key_grace_s: float, works: bool
) -> None:
    config = config_of(model_dir, tmp_path, tenants={"key_grace_s": key_grace_s})
    async with made(config) as here:
        authenticator = here.services.authenticator
        key = here.principal.key
        await authenticator.check(key.public_id)
        authenticator._store.find_key = _away  # type: ignore[method-assign]
        clock = authenticator._clock
        authenticator._clock = lambda: clock() + 600
        if works:
            assert (await authenticator.check(key.public_id)).key == key
        else:
            with pytest.raises(StoreUnavailable):
                await authenticator.check(key.public_id)


@pytest.mark.asyncio
async def test_as_many_keys_are_remembered_as_is_said(model_dir: Path, tmp_path: Path) -> None:
    config = config_of(model_dir, tmp_path, tenants={"max_cached_keys": 2})
    async with made(config) as here:
        store, authenticator = here.services.store, here.services.authenticator
        keys = [
            await store.create_key(
                here.principal.tenant.id,
                public_id=f"{number}" * 12,
                key_hash=bytes(32),
                name="x",
                scopes=["chat"],
            )
            for number in range(3)
        ]
        asked: list[str] = []
        find_key = store.find_key

        async def counted(public_id: str) -> Any:
            asked.append(public_id)
            return await find_key(public_id)

        store.find_key = counted  # type: ignore[method-assign]
        for key in (*keys, keys[2], keys[1], keys[0]):
            await authenticator.check(key.public_id)
        assert asked == [key.public_id for key in (*keys, keys[0])]
