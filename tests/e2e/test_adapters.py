"""Adapters of tenants over HTTP, on the bundled model: each answers as its merged weights do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import psutil
import pytest
import pytest_asyncio
import torch
from openai import AsyncOpenAI

from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.demo import MODEL_DIR
from engine.llm import LLM, SamplingParams
from gateway.config import Config
from tenants.keys import mint
from tests.engine.lora.making import merge, write_adapter, write_files
from tests.gateway.serving import MODEL, SECRETS, Gateway, make_config, served

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTIONS = ("What is 7 times 8?", "Tell me a story about a fox.")
NUM_TOKENS = 24
RANKS = {"one": 8, "two": 16, "three": 4}
"""Adapters by folder; tenant ``one`` has the first as its ``helper``, and so on."""


class Expected(NamedTuple):
    text: str
    logprob: float
    """Of the whole answer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``adapters`` and ``merged``, of the bundled model."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, (name, rank) in enumerate(RANKS.items()):
        path = folder / "adapters" / name
        write_adapter(path, MODEL_DIR, rank=rank, seed=seed, strength=0.04, lora_alpha=2 * rank)
        merge(MODEL_DIR, path, folder / "merged" / name)
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Mapping[tuple[str, str], Expected]:
    """By adapter, "" for none, and question: from the merged weights, without a server."""
    found = {}
    for name in ("", *RANKS):
        model = folder / "merged" / name if name else MODEL_DIR
        llm = LLM(model, device="cpu", num_threads=1, num_gpu_blocks_override=64)
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
        talks = [[{"role": "user", "content": question}] for question in QUESTIONS]
        for question, result in zip(QUESTIONS, llm.chat(talks, params), strict=True):
            (output,) = result.outputs
            assert output.cumulative_logprob is not None
            found[name, question] = Expected(output.text, output.cumulative_logprob)
    assert len({round(answer.logprob, 2) for answer in found.values()}) == len(found)
    return found


def config_of(folder: Path, **engine: Any) -> Config:
    return make_config(
        MODEL_DIR,
        flush_interval_ms=15,
        engine={
            "kv_cache_memory_bytes": 64 * 2**20,
            "num_threads": 1,
            "max_num_seqs": 64,
            "enable_lora": True,
            "max_loras": 2,
            "max_cpu_loras": 2,
            "max_lora_rank": 16,
            **engine,
        },
        models={"adapters_dir": str(folder / "adapters")},
    )


class Setup:
    """A gateway, and tenants ``one`` to ``three`` whose adapters are all called ``helper``."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.keys: dict[str, str] = {"": gateway.api_key}
        self.tenant_ids: dict[str, str] = {}
        self._http = httpx.AsyncClient(base_url=gateway.url, timeout=60)
        self._admin_key = ""

    async def __aenter__(self) -> Setup:
        self._admin_key = await self.gateway.key("admin")
        for name in RANKS:
            tenant = await self.gateway.store.create_tenant(name)
            minted = mint(SECRETS.key_pepper)
            await self.gateway.store.create_key(
                tenant.id,
                public_id=minted.public_id,
                key_hash=minted.key_hash,
                name="k",
                scopes=["chat"],
            )
            self.keys[name], self.tenant_ids[name] = minted.text, str(tenant.id)
            assert (await self.load(name)).status_code == 201
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._http.aclose()

    async def load(self, tenant: str, name: str = "helper", path: str = "") -> httpx.Response:
        return await self._admin("POST", tenant, "", {"name": name, "path": path or tenant})

    async def unload(self, tenant: str, name: str = "helper") -> httpx.Response:
        return await self._admin("DELETE", tenant, f"/{name}")

    async def listed(self, tenant: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._admin("GET", tenant)).json()["data"]
        return found

    async def _admin(
        self, method: str, tenant: str, path: str = "", body: Any = None
    ) -> httpx.Response:
        return await self._http.request(
            method,
            f"/admin/v1/tenants/{self.tenant_ids[tenant]}/adapters{path}",
            json=body,
            headers={"authorization": f"Bearer {self._admin_key}"},
        )

    def openai(self, tenant: str, **options: Any) -> AsyncOpenAI:
        return self.gateway.openai(api_key=self.keys[tenant], **options)

    async def ask(self, tenant: str, question: str = QUESTIONS[0], model: str = "helper") -> Any:
        async with self.openai(tenant) as client:
            return await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question}],
                max_tokens=NUM_TOKENS,
                temperature=0,
                logprobs=True,
                extra_body={"ignore_eos": True},
            )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(folder: Path) -> AsyncIterator[Setup]:
    config = config_of(folder)
    async with (
        served(config, Fleet([EngineClient(config.engine)])) as gateway,
        Setup(gateway) as setup,
    ):
        yield setup


def check(answer: Any, expected: Expected) -> None:
    (choice,) = answer.choices
    assert choice.message.content == expected.text
    logprob = sum(token.logprob for token in choice.logprobs.content)
    assert logprob == pytest.approx(expected.logprob, abs=1e-3)


async def test_two_tenants_with_adapters_of_one_name_in_one_batch(
    setup: Setup, expected: Mapping[tuple[str, str], Expected]
) -> None:
    asked = [(name, question) for name in ("one", "two", "") for question in QUESTIONS]
    before = await setup.gateway.engine.fetch_stats()
    answers = await asyncio.gather(
        *(setup.ask(name, question, "helper" if name else MODEL) for name, question in asked)
    )
    after = await setup.gateway.engine.fetch_stats()
    for key, answer in zip(asked, answers, strict=True):
        check(answer, expected[key])
    assert after.num_steps - before.num_steps < len(asked) * NUM_TOKENS / 2, "they took turns"


async def test_more_adapters_than_slots_and_than_stay_in_memory(
    setup: Setup, expected: Mapping[tuple[str, str], Expected]
) -> None:
    asked = [(name, question) for question in QUESTIONS for name in (*RANKS, "")]
    answers = await asyncio.gather(
        *(setup.ask(name, question, "helper" if name else MODEL) for name, question in asked)
    )
    for key, answer in zip(asked, answers, strict=True):
        check(answer, expected[key])
    stats = await setup.gateway.engine.fetch_stats()
    assert stats.num_loaded_adapters == 2
    assert stats.num_adapter_reads > len(RANKS)


async def test_cached_prefixes_are_an_adapters_own(setup: Setup) -> None:
    question = "Which prefix is whose? " * 4

    async def num_cached(tenant: str, model: str) -> int:
        answer = await setup.ask(tenant, question, model)
        cached: int = answer.usage.prompt_tokens_details.cached_tokens
        return cached

    # The template's first tokens were asked for before.
    assert await num_cached("one", "helper") < 8
    assert await num_cached("one", MODEL) < 8
    assert await num_cached("two", "helper") < 8
    assert await num_cached("one", "helper") > 16
    assert await num_cached("one", MODEL) > 16


async def test_nobody_elses(setup: Setup) -> None:
    with pytest.raises(openai.NotFoundError) as theirs:
        await setup.ask("", model="helper")
    with pytest.raises(openai.NotFoundError) as nobodys:
        await setup.ask("", model="helpes")
    assert theirs.value.message == nobodys.value.message.replace("helpes", "helper")


async def test_unloaded_while_it_runs(
    setup: Setup, expected: Mapping[tuple[str, str], Expected]
) -> None:
    async with setup.openai("one") as client:
        stream = await client.chat.completions.create(
            model="helper",
            messages=[{"role": "user", "content": QUESTIONS[1]}],
            max_tokens=150,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        first = await anext(stream)
        assert (await setup.unload("one")).json()["deleted"] is True
        with pytest.raises(openai.NotFoundError):
            await setup.ask("one")
        chunks = [first, *[chunk async for chunk in stream]]
    assert chunks[-1].choices[0].finish_reason == "length"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text.startswith(expected["one", QUESTIONS[1]].text[:-4])
    assert (await setup.load("one")).status_code == 201
    check(await setup.ask("one"), expected["one", QUESTIONS[0]])


async def test_after_the_engines_death_they_are_read_again(
    setup: Setup, expected: Mapping[tuple[str, str], Expected]
) -> None:
    async with setup.openai("two") as client:
        stream = await client.chat.completions.create(
            model="helper",
            messages=[{"role": "user", "content": QUESTIONS[1]}],
            max_tokens=300,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        first = await anext(stream)
        pid = setup.gateway.engine.info.pid
        os.kill(pid, signal.SIGKILL)
        chunks = [first, *[chunk async for chunk in stream]]
    assert chunks[-1].choices[0].finish_reason == "length"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text.startswith(expected["two", QUESTIONS[1]].text[:-4])
    assert not psutil.pid_exists(pid)
    assert (await setup.gateway.engine.fetch_stats()).num_loaded_adapters == 1
    answers = await asyncio.gather(*(setup.ask(name) for name in ("one", "two")))
    for name, answer in zip(("one", "two"), answers, strict=True):
        check(answer, expected[name, QUESTIONS[0]])


@pytest.mark.nightly
async def test_another_gateway_on_the_same_store_serves_them(
    setup: Setup, folder: Path, expected: Mapping[tuple[str, str], Expected]
) -> None:
    config = config_of(folder, max_loras=1, max_cpu_loras=None)
    engine = Fleet([EngineClient(config.engine)])
    async with (
        served(config, engine, store=setup.gateway.store, beside=setup.gateway) as gateway,
        gateway.openai(api_key=setup.keys["two"]) as client,
    ):
        answer = await client.chat.completions.create(
            model="helper",
            messages=[{"role": "user", "content": QUESTIONS[0]}],
            max_tokens=NUM_TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
    assert answer.choices[0].message.content == expected["two", QUESTIONS[0]].text


def _bad_adapters(root: Path) -> Iterator[tuple[str, str]]:
    """Folder and what has to be said of it."""
    write_adapter(root / "rank", MODEL_DIR, rank=32)
    yield "rank", "adapter_config.json: r is 32, but max_lora_rank is 16"
    place = "base_model.model.model.layers.0.self_attn.q_proj"
    wide = {
        f"{place}.lora_A.weight": torch.zeros(8, 4096),
        f"{place}.lora_B.weight": torch.zeros(4096, 8),
    }
    write_files(
        root / "base",
        wide,
        r=8,
        target_modules=["q_proj"],
        base_model_name_or_path="meta-llama/Llama-3.1-8B",
    )
    yield "base", "the adapter was made for 'meta-llama/Llama-3.1-8B'"
    write_adapter(root / "targets", MODEL_DIR, targets=("q_proj",))
    fields = json.loads((root / "targets/adapter_config.json").read_text())
    fields["target_modules"] = ["q_proj", "c_attn"]
    (root / "targets/adapter_config.json").write_text(json.dumps(fields))
    yield "targets", "target_modules names 'c_attn'"
    write_adapter(root / "cut", MODEL_DIR)
    weights = root / "cut/adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    yield "cut", "adapter_model.safetensors cannot be read"
    write_adapter(root / "dora", MODEL_DIR, use_dora=True)
    yield "dora", "use_dora: not supported"
    (root / "empty").mkdir()
    yield "empty", "adapter_config.json"


async def test_what_does_not_fit_is_named_in_one_line_and_nothing_stays(
    setup: Setup, folder: Path
) -> None:
    before = await setup.listed("three")
    for path, message in _bad_adapters(folder / "adapters"):
        answer = await setup.load("three", "broken", path)
        assert answer.status_code == 400, path
        error = answer.json()["error"]
        assert message in error["message"]
        assert "\n" not in error["message"]
        assert (error["param"], error["code"]) == ("path", "invalid_adapter")
        with pytest.raises(openai.NotFoundError):
            await setup.ask("three", model="broken")
    answer = await setup.load("three", "broken", "../merged/one")
    assert "Must be a folder below models.adapters_dir." in answer.json()["error"]["message"]
    assert await setup.listed("three") == before


async def test_files_that_change_later_are_not_taken_for_what_was_loaded(
    setup: Setup, folder: Path
) -> None:
    path = folder / "adapters" / "changing"
    write_adapter(path, MODEL_DIR, seed=7, strength=0.03)
    assert (await setup.load("three", "changing", "changing")).status_code == 201
    assert await setup.ask("three", model="changing")
    write_adapter(path, MODEL_DIR, seed=8, strength=0.03)
    for name in ("one", "two"):  # so that it is put away
        await setup.ask(name)
    with pytest.raises(openai.InternalServerError) as caught:
        await setup.ask("three", model="changing")
    assert caught.value.code == "adapter_unavailable"
    assert str(folder) not in caught.value.message
    assert (await setup.unload("three", "changing")).status_code == 200
    assert (await setup.load("three", "changing", "changing")).status_code == 201
    assert await setup.ask("three", model="changing")
