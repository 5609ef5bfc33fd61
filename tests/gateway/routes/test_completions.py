"""Driven by the real ``openai`` package, as existing clients would."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from gateway.admission import unsupported
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.serving import MODEL, Gateway, served_double, until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def client(gateway: Gateway, double: EngineDouble) -> AsyncIterator[AsyncOpenAI]:
    double.script = lambda prompt: Play(text=f"<{prompt}>")
    async with gateway.openai() as client:
        yield client


async def test_a_text(client: AsyncOpenAI, gateway: Gateway, double: EngineDouble) -> None:
    answer = await client.completions.create(model=MODEL, prompt="ab", max_tokens=50)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == MODEL
    (choice,) = answer.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, "<ab>", "stop")
    assert choice.logprobs is None
    assert answer.usage is not None
    prompt_tokens = len(double.requests[0].prompt_token_ids)
    assert answer.usage.prompt_tokens == prompt_tokens
    totals = await gateway.usage()
    assert (totals.prompt_tokens, totals.completion_tokens) == (prompt_tokens, 4)


async def test_token_ids_are_taken_as_they_are(client: AsyncOpenAI, double: EngineDouble) -> None:
    ids = double.tokenizer.encode("xyz")
    answer = await client.completions.create(model=MODEL, prompt=ids, echo=True, max_tokens=50)
    assert double.requests[0].prompt_token_ids == ids
    assert answer.choices[0].text == "xyz<xyz>"


async def test_several_prompts_with_several_answers(
    client: AsyncOpenAI, gateway: Gateway, double: EngineDouble
) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt=["a", "bc"], n=2, echo=True, max_tokens=50, seed=5
    )
    texts = ["a<a>", "a<a>", "bc<bc>", "bc<bc>"]
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    # A prompt in a list is answered as it would be alone.
    assert [request.params.seed for request in double.requests] == [5, 6, 5, 6]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert (await gateway.usage()).requests == 1


async def test_the_longest_of_several_prompts_says_what_fits(
    client: AsyncOpenAI, gateway: Gateway, double: EngineDouble
) -> None:
    most = gateway.engine.info.max_model_len
    prompts = [double.tokenizer.encode("a" * length) for length in (3, most)]
    prompts = [prompts[0], prompts[1][: most - 5], prompts[0]]
    double.script = lambda prompt: Play(text="x")
    await client.completions.create(model=MODEL, prompt=prompts)
    assert [request.params.max_tokens for request in double.requests] == [5, 5, 5]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt=prompts, max_tokens=6)
    assert caught.value.param == "max_tokens"


async def test_cached_tokens_are_counted_once_for_each_prompt(
    client: AsyncOpenAI, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x", num_cached_tokens=2)
    answer = await client.completions.create(model=MODEL, prompt=["abc", "d"], n=2)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_streaming(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model=MODEL,
        prompt=["ab", "c"],
        echo=True,
        max_tokens=50,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    texts = {0: "", 1: ""}
    for chunk in chunks:
        assert chunk.object == "text_completion"
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {0: "ab<ab>", 1: "c<c>"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 3 + 7
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_stop_and_length(client: AsyncOpenAI, double: EngineDouble) -> None:
    answer = await client.completions.create(model=MODEL, prompt="abc", stop="c", max_tokens=50)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("<ab", "stop")
    double.script = lambda prompt: Play(text="x" * 40)
    answer = await client.completions.create(model=MODEL, prompt="abc")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("x" * 16, "length")


async def test_sampling_fields_reach_the_engine(client: AsyncOpenAI, double: EngineDouble) -> None:
    await client.completions.create(
        model=MODEL,
        prompt="a",
        temperature=0.5,
        top_p=0.25,
        seed=-1,
        max_tokens=9,
        user="u",
        extra_body={"top_k": 3, "min_p": 0.125, "ignore_eos": True},
    )
    params = double.requests[0].params
    assert (params.temperature, params.top_p, params.seed) == (0.5, 0.25, 2**64 - 1)
    assert (params.top_k, params.min_p, params.ignore_eos) == (3, 0.125, True)
    assert params.max_tokens == 9


REFUSED: dict[str, Any] = {"suffix": "x"}


@pytest.mark.parametrize("name", sorted(unsupported.COMPLETIONS))
async def test_what_cannot_be_done_is_refused_by_name(
    client: AsyncOpenAI, double: EngineDouble, name: str
) -> None:
    fields = {"model": MODEL, "prompt": "a", name: REFUSED[name]}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(**fields)
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    assert double.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"n": 9}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"priority": -1}, "priority"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3000}, "max_tokens"),
        ({"prompt": "x" * 2048}, "prompt"),
        ({"temperature": -1}, "temperature"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"messages": []}, "messages"),
    ],
)
async def test_what_is_wrong_is_named(
    client: AsyncOpenAI, double: EngineDouble, fields: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "prompt": "a"} | fields
    with pytest.raises(openai.BadRequestError) as caught:
        await client.post("/completions", body=body, cast_to=object)
    assert caught.value.param == param
    assert double.requests == []


async def test_another_model_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="other", prompt="a")


async def test_leaving_a_stream_stops_all_its_choices(
    client: AsyncOpenAI, gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 500, interval_s=0.01)
    stream = await client.completions.create(
        model=MODEL, prompt=["a", "b"], max_tokens=500, stream=True
    )
    await anext(aiter(stream))
    await stream.close()
    await until(lambda: len(double.aborted) == 2)
    assert (await gateway.usage()).requests == 1


async def test_the_models_own_sampling_is_the_default(model_dir: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model_dir, tmp_path / "model")
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.5}')
    async with served_double(folder) as (gateway, double), gateway.openai() as client:
        double.script = lambda prompt: Play(text="x")
        await client.completions.create(model=MODEL, prompt="a")
        await client.completions.create(model=MODEL, prompt="a", temperature=0.25)
    assert [request.params.temperature for request in double.requests] == [0.5, 0.25]
