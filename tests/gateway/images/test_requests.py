"""Pictures from a request to the engine, over HTTP, with real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio

from engine.images.load import load_processor
from engine.images.prepare import prepare
from engine.messages import GenerateRequest
from gateway.errors import RateLimited
from gateway.images import images, memory
from gateway.services import Services
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.images.drawing import data_url, image_part, picture, question
from tests.gateway.serving import MODEL, Gateway, served_double, until

pytestmark = pytest.mark.asyncio
PAD = "<|image_pad|>"


@pytest_asyncio.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {gateway.api_key}"}
    async with httpx2.AsyncClient(base_url=gateway.url, headers=headers, timeout=20) as client:
        yield client


async def ask(client: httpx2.AsyncClient, messages: list[Any], **fields: Any) -> httpx2.Response:
    body = {"model": MODEL, "messages": messages, **fields}
    return await client.post("/v1/chat/completions", json=body)


def services(gateway: Gateway) -> Services:
    found: Services = gateway.app.state.services
    return found


def pixels(request: GenerateRequest, number: int = 0) -> bytes:
    image = request.images[number]
    return image.pixels or Path(image.segment).read_bytes()


def check(
    request: GenerateRequest, double: EngineDouble, files: Sequence[bytes], dir: Path
) -> None:
    """Each picture has its span, where the prompt shows it, and what ``prepare`` makes of it."""
    processor = load_processor(dir)
    assert processor is not None
    assert len(request.images) == len(files)
    for image, file in zip(request.images, files, strict=True):
        wanted = prepare(processor, file)
        assert (image.height, image.width) == (wanted.fit.height, wanted.fit.width)
        assert (image.num_tokens, image.digest) == (wanted.fit.num_tokens, wanted.digest)
        span = request.prompt_token_ids[image.offset : image.offset + image.num_tokens]
        assert span == processor.tokens(wanted.fit)
        before = request.prompt_token_ids[image.offset - 1]
        assert double.tokenizer.token_bytes(before) == b"<|vision_start|>"


async def test_a_picture_reaches_the_engine(
    client: httpx2.AsyncClient, gateway: Gateway, double: EngineDouble, model_dir: Path
) -> None:
    first, second = picture(), picture(200, 80, "JPEG")
    seen: list[bytes] = []
    modes: list[int] = []

    def look(prompt: str) -> Play:
        request = double.requests[-1]
        check(request, double, [first, second], model_dir)
        seen.extend(pixels(request, number) for number in range(2))
        modes.extend(os.stat(image.segment).st_mode & 0o777 for image in request.images)
        return Play(text="two")

    double.script = look
    parts: list[Any] = [
        "what",
        image_part(data_url(first)),
        "and",
        image_part(data_url(second, "image/gif")),
    ]
    answer = await ask(client, question(*parts, "is it?"))
    assert answer.status_code == 200, answer.text
    processor = load_processor(model_dir)
    assert processor is not None
    assert seen == [prepare(processor, first).pixels, prepare(processor, second).pixels]
    assert modes == [0o600, 0o600]
    prompt = double.prompt()
    num_tokens = [image.num_tokens for image in double.requests[-1].images]
    spans = [f"<|vision_start|>{PAD * number}<|vision_end|>" for number in num_tokens]
    assert f"user\nwhat{spans[0]}and{spans[1]}is it?<|im_end|>" in prompt
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] == len(double.requests[-1].prompt_token_ids)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "image_tokens": sum(num_tokens)}
    total = await gateway.usage()
    assert total.prompt_tokens == usage["prompt_tokens"]
    await until(lambda: not any(Path(i.segment).exists() for i in double.requests[-1].images))
    assert services(gateway).images.room.num_bytes == 0


async def test_text_that_spells_a_placeholder_is_no_picture(
    client: httpx2.AsyncClient, double: EngineDouble, model_dir: Path
) -> None:
    file = picture()
    before = {"role": "user", "content": f"{PAD}, {PAD}"}
    said = {"role": "assistant", "content": f"no <|vision_start|>{PAD}<|vision_end|>"}
    answer = await ask(
        client, [before, said, *question(f"<|vision_start|>{PAD}", image_part(data_url(file)), PAD)]
    )
    assert answer.status_code == 200, answer.text
    check(double.requests[-1], double, [file], model_dir)
    number = double.requests[-1].images[0].num_tokens
    assert double.prompt().count(PAD) == 5 + number
    answer = await ask(client, [before])
    assert answer.status_code == 200
    assert double.requests[-1].images == []


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (image_part("data:image/png,abc"), "invalid_image_url", "base64"),
    (image_part("ftp://a/b"), "unsupported_parameter", "fetches no images"),
    (image_part("https://example.com/a.png"), "unsupported_parameter", "fetches no images"),
    (image_part("data:image/png;base64,%%%%"), "invalid_base64_image", "base64"),
    (image_part(data_url(b"")), "unsupported_image_media_type", "no data"),
    (image_part(data_url(b"<svg xmlns='x'/>")), "unsupported_image_media_type", "SVG"),
    (image_part(data_url(b"%PDF-1.7")), "unsupported_image_media_type", "PDF"),
    (image_part(data_url(picture()[:90])), "image_parse_error", "cut short"),
    (image_part(data_url(picture(2000, 5))), "image_too_large", "no such shape"),
    (image_part(data_url(picture(1, 1)), detail="huge"), "invalid_value", "detail"),
]


async def test_what_is_wrong_is_named(client: httpx2.AsyncClient, gateway: Gateway) -> None:
    for part, code, says in WRONG:
        answer = await ask(client, [{"role": "system", "content": "s"}, *question("look", part)])
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, code), error
        assert says in error["message"]
        assert error["param"].startswith("messages[1].content[1].image_url")
    assert services(gateway).images.room.num_bytes == 0
    assert not [*memory.SHARED_MEMORY.glob(f"{memory.PREFIX}*/*")]


def _refusing(said: str, prompt: str) -> Play:
    return Play(error=said, error_code="invalid_request")


async def test_what_the_engine_says_of_a_picture_names_it(
    client: httpx2.AsyncClient, double: EngineDouble
) -> None:
    part = image_part(data_url(picture()))
    for said, place in (("images[1].num_tokens: too many", 2), ("images: not served", 0)):
        double.script = partial(_refusing, said)
        answer = await ask(client, question(part, "and", part))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_image")
        assert error["param"] == f"messages[0].content[{place}].image_url"
        assert said.rpartition(":")[2] in error["message"]


async def test_pictures_stand_where_the_api_has_them(client: httpx2.AsyncClient) -> None:
    part = image_part(data_url(picture()))
    for role, more in (("system", {}), ("assistant", {}), ("tool", {"tool_call_id": "c"})):
        messages = [{"role": role, "content": [part], **more}, *question("x")]
        answer = await ask(client, messages)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "messages[0].content[0]"), role
        assert role in error["message"]


async def test_a_killed_worker_loses_nothing(
    client: httpx2.AsyncClient, gateway: Gateway, double: EngineDouble
) -> None:
    messages = question("x", image_part(data_url(picture())))
    assert (await ask(client, messages)).status_code == 200
    workers = services(gateway).images.workers
    (pid,) = workers.pids
    os.kill(pid, signal.SIGKILL)
    assert (await ask(client, messages)).status_code == 200
    assert pid not in workers.pids


async def test_a_request_that_is_left_leaves_no_picture(
    client: httpx2.AsyncClient, gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.05)
    asking = asyncio.create_task(ask(client, question("x", image_part(data_url(picture())))))
    await until(lambda: double.requests)
    assert os.path.exists(double.requests[0].images[0].segment)  # noqa: ASYNC240 (in memory)
    assert services(gateway).images.room.num_bytes > 0
    asking.cancel()
    await until(lambda: not Path(double.requests[0].images[0].segment).exists())
    assert services(gateway).images.room.num_bytes == 0


async def test_few_requests_of_a_tenant_have_their_pictures_in_memory(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, tenant = services(gateway).images, gateway.tenant.id
    turns = [await found.turn(tenant) for _ in range(images.MOST_AT_ONCE)]
    monkeypatch.setattr(images, "MAX_WAITING", images.MOST_AT_ONCE + 1)
    waiting = asyncio.create_task(found.turn(tenant))
    await asyncio.sleep(0)
    assert not waiting.done()
    with pytest.raises(RateLimited):
        await found.turn(tenant)
    (await found.turn(uuid4())).leave()
    for turn in turns:
        turn.leave()
    (await waiting).leave()


async def test_limits_of_a_request(model_dir: Path) -> None:
    limits = {"max_images": 2, "max_bytes": 3000, "max_pixels": 10_000, "max_memory_bytes": 40_000}
    async with served_double(model_dir, images=limits) as (gateway, _):
        headers = {"authorization": f"Bearer {gateway.api_key}"}
        async with httpx2.AsyncClient(base_url=gateway.url, headers=headers) as client:
            small = image_part(data_url(picture(32, 32)))
            answer = await ask(client, question(small, small))
            assert answer.status_code == 200, answer.text
            answer = await ask(client, question(small, "x", small, small))
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "too_many_images")
            assert error["param"] == "messages[0].content[3].image_url"
            wide = image_part(data_url(picture(200, 60)))
            assert "pixels" in (await ask(client, question(wide))).json()["error"]["message"]
            long = image_part(data_url(picture(32, 32) + bytes(4000)))
            answer = await ask(client, question(long))
            assert answer.json()["error"]["code"] == "image_too_large"
            medium = image_part(data_url(picture(90, 100)))
            answer = await ask(client, question(medium))
            assert answer.json()["error"]["code"] == "image_too_large", answer.text
            assert (await gateway.usage(1)).requests >= 1
            assert services(gateway).images.room.num_bytes == 0
