from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from engine.text.tokenizer import Tokenizer
from gateway.errors import ContextLengthExceeded, InvalidRequestError
from gateway.prompts import texts
from gateway.prompts.prompt import Echo, Prompt
from gateway.prompts.threads import LONG_CHARS, PromptThreads
from gateway.schemas.completions import CompletionRequest

pytestmark = pytest.mark.asyncio


async def read(
    model_dir: Path, prompt: Any, max_model_len: int = 10**6, *, echo: bool = True
) -> Prompt:
    body = msgspec.json.encode({"model": "m", "prompt": prompt, "echo": echo})
    request = msgspec.json.decode(body, type=CompletionRequest)
    return await texts.read(
        request,
        Tokenizer.load(model_dir),
        PromptThreads(),
        tenant=uuid4(),
        max_model_len=max_model_len,
    )


async def test_the_four_spellings_are_one_prompt(model_dir: Path) -> None:
    ids = Tokenizer.load(model_dir).encode("hello")
    for spelling in ("hello", ["hello"], ids, [ids]):
        found = await read(model_dir, spelling)
        assert (found.token_ids, found.echoes) == ([ids], [Echo("hello")])
    several = await read(model_dir, ["a", "hello"])
    assert [echo.text for echo in several.echoes] == ["a", "hello"]
    assert await read(model_dir, [several.token_ids[0], ids]) == several


async def test_the_text_of_ids_is_made_for_those_who_want_it(model_dir: Path) -> None:
    ids = Tokenizer.load(model_dir).encode("hello")
    found = await read(model_dir, ids, echo=False)
    assert (found.token_ids, found.echoes) == ([ids], [Echo()])


@pytest.mark.parametrize("num_words", [texts.LONG_PROMPT_CHARS, LONG_CHARS])
async def test_long_prompts_are_read_in_a_thread_to_the_same_end(
    model_dir: Path, num_words: int
) -> None:
    text = "hello " * num_words
    found = await read(model_dir, text)
    assert found.token_ids == [Tokenizer.load(model_dir).encode(text)]


async def test_what_is_surely_too_long_is_not_counted(model_dir: Path) -> None:
    fits = "x" * Tokenizer.load(model_dir).max_token_bytes
    assert len((await read(model_dir, ["a", fits], max_model_len=1)).token_ids) == 2
    with pytest.raises(ContextLengthExceeded, match="characters") as caught:
        await read(model_dir, ["a", fits + "x"], max_model_len=1)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        (["a", ""], "prompt[1]"),
        (["a", 1], "prompt"),
        ([1, [1]], "prompt"),
        ([1, -1], "prompt[1]"),
        ([[1], [1, 10**9]], "prompt[1][1]"),
        (["a"] * (texts.MAX_PROMPTS + 1), "prompt"),
    ],
)
async def test_what_is_no_prompt(model_dir: Path, prompt: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await read(model_dir, prompt)
    assert caught.value.param == param


async def test_ids_are_those_of_the_vocabulary(model_dir: Path) -> None:
    size = Tokenizer.load(model_dir).vocab_size
    found = await read(model_dir, [0, size - 1], echo=False)
    assert found.token_ids == [[0, size - 1]]
    with pytest.raises(InvalidRequestError, match=f"0 to {size - 1}, got {size}") as caught:
        await read(model_dir, [0, size, -1])
    assert caught.value.param == "prompt[1]"


@pytest.mark.parametrize("prompt", [None, 1, True, {"a": 1}, [None], [True], [1.5], [["a"]]])
async def test_other_types_are_refused_while_decoding(model_dir: Path, prompt: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        await read(model_dir, prompt)
