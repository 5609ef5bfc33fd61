"""Models without a chat template complete texts, and say why they take no chats."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelLoadError
from engine.text.tokenizer import Tokenizer
from gateway.services import create_services
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import Answer, exchange, post
from tests.gateway.serving import (
    SECRETS,
    Gateway,
    chat_body,
    double_client,
    encode,
    make_config,
    served,
)
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio


@pytest.fixture
def base_dir(model_dir: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    shutil.copytree(model_dir, folder)
    (folder / "chat_template.jinja").unlink()
    return folder


async def send(gateway: Gateway, path: str, body: dict[str, Any]) -> Answer:
    return await exchange(gateway, post(gateway, encode(body), path=path))


async def test_texts_are_completed_and_chats_refused(
    base_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(base_dir)
    double = EngineDouble(Tokenizer.load(base_dir), script=lambda _: Play(text="ok"))
    async with served(config, double_client(config, double)) as gateway:
        text = await send(gateway, "/v1/completions", {"model": "tiny", "prompt": "hi"})
        assert text.json()["choices"][0]["text"] == "ok"
        for path, body in (
            ("/v1/chat/completions", chat_body()),
            ("/v1/responses", {"model": "tiny", "input": "hi"}),
            ("/v1/tokenize", chat_body()),
        ):
            refused = await send(gateway, path, body)
            assert refused.status == 400
            assert "has no chat template" in refused.error["message"]
    assert "tiny has no chat template" in caplog.text


async def test_the_settings_may_name_one(base_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}?")
    config = make_config(base_dir, models={"chat_template": str(file)})
    double = EngineDouble(Tokenizer.load(base_dir), script=lambda _: Play(text="ok"))
    async with served(config, double_client(config, double)) as gateway:
        assert (await send(gateway, "/v1/chat/completions", chat_body())).status == 200
        assert double.prompt() == "hi?"


async def test_one_that_cannot_be_read_is_named(base_dir: Path) -> None:
    config = make_config(base_dir, models={"chat_template": "/nowhere.jinja"})
    engine = double_client(config, EngineDouble(Tokenizer.load(base_dir)))
    with pytest.raises(ModelLoadError, match=r"/nowhere\.jinja cannot be read"):
        create_services(config, engine=engine, store=MemoryStore(), secrets=SECRETS)


async def test_without_a_token_that_ends_a_text_formats_are_refused(
    model_dir: Path, tmp_path: Path
) -> None:
    """As in random checkpoints, whose EOS is that of the model their config was copied from."""
    folder = shutil.copytree(model_dir, tmp_path / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": 50256}')
    config = make_config(folder)
    double = EngineDouble(Tokenizer.load(folder), script=lambda _: Play(text="ok"))
    async with served(config, double_client(config, double)) as gateway:
        assert (await send(gateway, "/v1/chat/completions", chat_body())).status == 200
        wanted = chat_body(response_format={"type": "json_object"})
        refused = await send(gateway, "/v1/chat/completions", wanted)
        assert refused.status == 400
        assert "no token that ends a text" in refused.error["message"]
        assert refused.error["param"] == "response_format"
