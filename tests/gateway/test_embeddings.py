"""Vectors and scores over HTTP: notations, shapes, refusals, limits and the ledger."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError
from openai.types import CreateEmbeddingResponse

from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from engine.pooling import cosine, unit
from engine.text.tokenizer import Tokenizer
from gateway import config as configuration
from gateway.generation import pooled
from tenants.limits import Limits
from tests.engine import toys
from tests.gateway.engine_double import EngineDouble, Play, says, vector_of
from tests.gateway.serving import MODEL, Gateway, chat_body, double_client, served, until

pytestmark = pytest.mark.asyncio

ANY_SIZE = {"is_matryoshka": True}


def write_embedder(folder: Path, **stated: Any) -> Path:
    """An embedding model without weights."""
    folder.mkdir()
    config = {"architectures": ["BertModel"], "hidden_size": 4, **stated}
    return toys.write_model_folder(folder, tokenizer=toys.word_pieces(), config=config)


def write_cross_encoder(folder: Path) -> Path:
    stated = {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    return write_embedder(folder, **stated)


@asynccontextmanager
async def served_by(
    folder: Path, chat_model: Path | None = None
) -> AsyncIterator[tuple[Gateway, EngineDouble, Tokenizer]]:
    """A gateway whose default model is the one in ``folder``; beside it a chat model, if given."""
    entries = [{"served_model_name": MODEL, "engine": {"model": str(folder)}}]
    if chat_model is not None:
        entries.append({"served_model_name": "chat", "engine": {"model": str(chat_model)}})
    config = configuration.parse({"server": {"port": 0}, "models": entries})
    fleets, doubles = {}, []
    for one in config.each:
        tokenizer = Tokenizer.load(one.engine.model_dir)
        doubles.append(EngineDouble(tokenizer, script=says(""), max_model_len=64))
        fleets[one.model_name] = double_client(one, doubles[-1])
    async with served(config, Fleets(fleets)) as gateway:
        yield gateway, doubles[0], doubles[0].tokenizer


async def post(gateway: Gateway, path: str, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        headers = {"authorization": f"Bearer {gateway.api_key}"}
        return await client.post(path, json=body, headers=headers)


async def create(gateway: Gateway, **fields: Any) -> CreateEmbeddingResponse:
    async with gateway.openai() as client:
        return await client.embeddings.create(model=MODEL, **fields)


class TestEmbeddings:
    async def test_all_notations_in_both_formats(self, tmp_path: Path) -> None:
        async with served_by(write_embedder(tmp_path / "m")) as (gateway, _, tokenizer):
            texts = ["the cat", "the cat sat on the mat", "a"]
            ids = tokenizer.encode_batch(texts)
            inputs: list[Any] = [texts[0], texts, ids[0], ids]
            for asked, count in zip(inputs, (1, 3, 1, 3), strict=True):
                num_tokens = sum(map(len, ids[:count]))
                packed = await create(gateway, input=asked)
                plain = await create(gateway, input=asked, encoding_format="float")
                assert [one.index for one in packed.data] == list(range(count))
                for answer in (packed, plain):
                    assert answer.usage.prompt_tokens == answer.usage.total_tokens == num_tokens
                    for one, prompt in zip(answer.data, ids, strict=False):
                        assert one.embedding == pytest.approx(vector_of(prompt).tolist())
            raw = await post(
                gateway,
                "/v1/embeddings",
                {"model": MODEL, "input": "the cat", "encoding_format": "base64"},
            )
            data = base64.b64decode(raw.json()["data"][0]["embedding"])
            assert np.array_equal(np.frombuffer(data, "<f4"), vector_of(ids[0]))

    async def test_dimensions(self, tmp_path: Path) -> None:
        async with served_by(write_embedder(tmp_path / "m")) as (gateway, *_):
            with pytest.raises(BadRequestError, match="was not trained for fewer"):
                await create(gateway, input="a", dimensions=2)
        async with served_by(write_embedder(tmp_path / "n", **ANY_SIZE)) as (gateway, _, tokenizer):
            found = await create(gateway, input="a", dimensions=2)
            assert found.data[0].embedding == vector_of(tokenizer.encode("a"))[:2].tolist()
            for wrong in (0, 5):
                with pytest.raises(BadRequestError, match=r"in \[1, 4\]") as caught:
                    await create(gateway, input="a", dimensions=wrong)
                assert caught.value.param == "dimensions"

    async def test_a_long_list_is_in_the_engine_a_part_at_a_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pooled, "AT_ONCE", 3)
        async with served_by(write_embedder(tmp_path / "m")) as (gateway, double, tokenizer):
            gate = asyncio.Event()
            double.script = lambda prompt: Play(gate=gate)
            texts = ["the cat " * n for n in range(1, 9)]
            asking = asyncio.create_task(create(gateway, input=texts))
            await until(lambda: len(double.requests) == 3)
            gate.set()
            found = await asking
        vectors = [vector_of(ids).tolist() for ids in tokenizer.encode_batch(texts)]
        assert [one.embedding for one in found.data] == vectors

    async def test_what_was_computed_is_paid_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pooled, "AT_ONCE", 1)
        async with served_by(write_embedder(tmp_path / "m")) as (gateway, double, tokenizer):
            short, long = "the cat", "the cat sat on the mat"
            never = asyncio.Event()
            double.script = lambda prompt: Play(gate=never if "mat" in prompt else None)
            asking = asyncio.create_task(create(gateway, input=[long, short]))
            await until(lambda: len(double.requests) == 2)
            asking.cancel()
            await asyncio.wait([asking])
            usage = await gateway.usage()
            assert usage.prompt_tokens == len(tokenizer.encode(short))
            assert usage.completion_tokens == 0
            assert not double.running
            double.script = lambda prompt: Play(error="no", error_code="invalid_request")
            with pytest.raises(BadRequestError, match="no"):
                await create(gateway, input=short)
            assert (await gateway.usage(2)).prompt_tokens == usage.prompt_tokens

    async def test_a_budget_of_so_many_tokens_is_enough_once(self, tmp_path: Path) -> None:
        async with served_by(write_embedder(tmp_path / "m")) as (gateway, _, tokenizer):
            num_tokens = len(tokenizer.encode("the cat"))
            limits, tenant = Limits(monthly_tokens=num_tokens), gateway.tenant.id
            await gateway.store.put_limits(tenant, "tenant", tenant, limits)
            gateway.authenticator.forget()
            body = {"model": MODEL, "input": "the cat"}
            assert (await post(gateway, "/v1/embeddings", body)).status_code == 200
            await gateway.usage()
            refused = await post(gateway, "/v1/embeddings", body)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "insufficient_quota"

    async def test_tasks_are_the_models_prompts(self, tmp_path: Path) -> None:
        folder = write_embedder(tmp_path / "m")
        stated = {"prompts": {"query": "on "}}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(stated))
        async with served_by(folder) as (gateway, _, tokenizer):
            for task, text, ignored in (
                ("retrieval.query", "on the cat", None),
                ("retrieval.passage", "the cat", "task"),
                ("text-matching", "the cat", "task"),
            ):
                body = {"model": MODEL, "input": "the cat", "task": task, "late_chunking": False}
                answer = await post(gateway, "/v1/embeddings", body)
                expected = vector_of(tokenizer.encode(text)).tolist()
                assert answer.json()["data"][0]["embedding"] == pytest.approx(expected)
                assert answer.headers.get("x-sluice-ignored") == ignored


class TestScores:
    async def test_of_embeddings(self, tmp_path: Path) -> None:
        folder = write_embedder(tmp_path / "m")
        stated = {"prompts": {"query": "on ", "document": "the "}}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(stated))
        documents = ["cat", "mat mat mat", "sat on the mat"]
        async with served_by(folder) as (gateway, _, tokenizer):
            query = vector_of(tokenizer.encode("on the cat"))
            vectors = [vector_of(tokenizer.encode(f"the {text}")) for text in documents]
            scores = [cosine(query, vector) for vector in vectors]
            body: dict[str, Any] = {"model": MODEL, "query": "the cat", "documents": documents}
            answer = (await post(gateway, "/v1/rerank", body)).json()
            order = sorted(range(3), key=lambda index: -scores[index])
            assert [one["index"] for one in answer["results"]] == order
            assert [one["relevance_score"] for one in answer["results"]] == pytest.approx(
                [scores[index] for index in order]
            )
            assert "document" not in answer["results"][0]
            shown = [{"text": text} for text in documents]
            body |= {"documents": shown, "top_n": 1, "return_documents": True}
            (best,) = (await post(gateway, "/v2/rerank", body)).json()["results"]
            assert best["document"] == {"text": documents[order[0]]}
            body |= {"documents": ["mat cat cat cat"], "max_tokens_per_doc": 2, "priority": 3}
            cut = await post(gateway, "/v2/rerank", body)
            assert cut.headers["x-sluice-ignored"] == "priority"
            (one,) = cut.json()["results"]
            expected = cosine(query, vector_of(tokenizer.encode("the mat")))
            assert one["relevance_score"] == pytest.approx(expected)
            body = {"model": MODEL, "text_1": "the cat", "text_2": documents}
            answer = (await post(gateway, "/v1/score", body)).json()
            assert [one["score"] for one in answer["data"]] == pytest.approx(scores)
            body["text_1"] = ["the cat", "a", "the cat"]
            answer = (await post(gateway, "/v1/score", body)).json()
            found = [one["score"] for one in answer["data"]]
            assert found[::2] == pytest.approx(scores[::2])
            assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0

    async def test_of_a_cross_encoder(self, tmp_path: Path) -> None:
        async with served_by(write_cross_encoder(tmp_path / "m")) as (gateway, double, tokenizer):
            body = {"model": MODEL, "query": "the cat", "documents": ["mat", "sat on"]}
            answer = (await post(gateway, "/v1/rerank", body)).json()
            pairs = tokenizer.encode_pairs([("the cat", "mat"), ("the cat", "sat on")])
            assert [request.prompt_token_ids for request in double.requests] == [
                ids for ids, _ in pairs
            ]
            scores = {i: float(vector_of(*pair)[0]) for i, pair in enumerate(pairs)}
            assert {one["index"]: one["relevance_score"] for one in answer["results"]} == scores
            assert (await gateway.usage()).prompt_tokens == sum(len(ids) for ids, _ in pairs)
            await post(gateway, "/v1/rerank", body | {"max_tokens_per_doc": 1})
            ((cut, _),) = tokenizer.encode_pairs([("the cat", "sat")])
            assert double.requests[-1].prompt_token_ids == cut
            body = {"model": MODEL, "input": "a"}
            refused = (await post(gateway, "/v1/embeddings", body)).json()["error"]
            assert (refused["param"], "/v1/rerank" in refused["message"]) == ("model", True)


async def test_an_engine_that_nobody_needs_starts_with_the_first_request(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "m")
    entry = {"served_model_name": MODEL, "engine": {"model": str(folder)}, "min_replicas": 0}
    config = configuration.parse({"server": {"port": 0}, "models": [entry]})
    double = EngineDouble(Tokenizer.load(folder), script=says(""))
    engine = EngineClient(config.engine, transport=double)
    async with served(config, Fleet([engine], may_sleep=True)) as gateway:
        assert not double.lives
        found = await asyncio.gather(*(create(gateway, input="the cat") for _ in range(2)))
        assert len(double.lives) == 1
        assert found[0].data == found[1].data


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/embeddings", {"input": []}, "input"),
    ("/v1/embeddings", {"input": ["a", ""]}, "input[1]"),
    ("/v1/embeddings", {"input": ["a"] * 2049}, "input"),
    ("/v1/embeddings", {"input": ["a", 1]}, "input"),
    ("/v1/embeddings", {"input": [[10**6]]}, "input[0][0]"),
    ("/v1/embeddings", {"input": "the cat " * 40}, "input"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ("/v1/embeddings", {"input": "a", "input_type": "query"}, "input_type"),
    ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
    ("/v1/rerank", {"query": "a", "documents": ["a", "cat " * 99]}, "documents[1]"),
    ("/v1/embeddings", {"input": "a", "late_chunking": True}, "late_chunking"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
    (
        "/v1/rerank",
        {"query": "a", "documents": ["a"], "max_tokens_per_doc": 0},
        "max_tokens_per_doc",
    ),
    ("/v1/score", {"text_1": ["a", "a"], "text_2": ["a", "a", "a"]}, "text_1"),
    ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
    ("/v1/embeddings", {"model": "chat", "input": "a"}, "model"),
    ("/v1/chat/completions", chat_body(), "model"),
    ("/v1/completions", {"prompt": "a"}, "model"),
]


async def test_refusals_name_the_field(tmp_path: Path, model_dir: Path) -> None:
    async with served_by(write_embedder(tmp_path / "m"), model_dir) as (gateway, *_):
        for path, fields, param in REFUSED:
            answer = await post(gateway, path, {"model": MODEL, **fields})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param), error
        assert (await gateway.usage(0)).prompt_tokens == 0
    assert unit(np.zeros(2, np.float32)).tolist() == [0, 0]
