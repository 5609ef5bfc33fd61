from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.errors import InvalidRequest
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from gateway import config as configuration
from gateway.config import PublicPrefix
from gateway.errors import ConfigError
from gateway.prompts.public_prefixes import PublicPrefixes
from tests.gateway.engine_double import EngineDouble
from tests.gateway.raw_http import chat
from tests.gateway.serving import MODEL, chat_body, double_client, make_config, served

HELPER = "You are a helpful assistant."


def prefixes(model_dir: Path, **named: PublicPrefix) -> PublicPrefixes:
    return PublicPrefixes(
        named, template=ChatTemplate.load(model_dir), tokenizer=Tokenizer.load(model_dir)
    )


def tokens(model_dir: Path, *messages: tuple[str, str]) -> list[int]:
    text = ChatTemplate.load(model_dir).render(
        [{"role": role, "content": content} for role, content in messages]
    )
    return Tokenizer.load(model_dir).encode(text, add_special_tokens=False)


def test_the_system_prompt_and_nothing_after_it(model_dir: Path) -> None:
    known = prefixes(model_dir, helper=PublicPrefix(system=HELPER, tenants=("acme",)))
    prompt = tokens(model_dir, ("system", HELPER), ("user", "my secret"))
    public = known.num_public_tokens("acme", prompt)
    text = Tokenizer.load(model_dir).decode(prompt[:public], skip_special_tokens=False)
    assert text == f"<|im_start|>system\n{HELPER}<|im_end|><|im_start|>user\n"


def test_a_tenant_that_did_not_choose_it_shares_nothing(model_dir: Path) -> None:
    known = prefixes(model_dir, helper=PublicPrefix(system=HELPER, tenants=("acme",)))
    prompt = tokens(model_dir, ("system", HELPER), ("user", "hi"))
    assert known.num_public_tokens("globex", prompt) == 0


def test_what_differs_is_the_tenants_own_from_there_on(model_dir: Path) -> None:
    known = prefixes(model_dir, helper=PublicPrefix(system=HELPER, tenants=("acme",)))
    longer = HELPER + " The password is 1234."
    prompt = tokens(model_dir, ("system", longer), ("user", "hi"))
    public = known.num_public_tokens("acme", prompt)
    text = Tokenizer.load(model_dir).decode(prompt[:public], skip_special_tokens=False)
    assert text == f"<|im_start|>system\n{HELPER}"


def test_the_longest_of_several_counts(model_dir: Path) -> None:
    longer = HELPER + " Answer in one word."
    known = prefixes(
        model_dir,
        helper=PublicPrefix(system=HELPER, tenants=("acme",)),
        terse=PublicPrefix(system=longer, tenants=("acme", "globex")),
    )
    prompt = tokens(model_dir, ("system", longer), ("user", "hi"))
    after = ["<|im_end|>", "<|im_start|>", *"assistant\n"]  # A byte is a token here.
    expected = len(tokens(model_dir, ("system", longer), ("user", ""))) - len(after)
    assert known.num_public_tokens("acme", prompt) == expected
    assert known.num_public_tokens("globex", prompt) == expected


def test_a_template_without_system_prompts_is_found_at_the_start(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> str:
        raise InvalidRequest("System role not supported")

    monkeypatch.setattr(ChatTemplate, "render", refuse)
    with pytest.raises(ConfigError, match=r"models.public_prefixes.helper: System role"):
        prefixes(model_dir, helper=PublicPrefix(system=HELPER, tenants=("acme",)))


def test_the_setting_is_checked() -> None:
    with pytest.raises(
        ConfigError, match=r"models.public_prefixes.*tenant is unknown; did you mean tenants"
    ):
        configuration.parse(
            {
                "engine": {"model": "any"},
                "models": {"public_prefixes": {"a": {"system": "b", "tenant": "c"}}},
            }
        )


@pytest.mark.asyncio
async def test_the_engine_is_told(model_dir: Path) -> None:
    double = EngineDouble(Tokenizer.load(model_dir))
    config = make_config(model_dir)
    shared = {"helper": PublicPrefix(system=HELPER, tenants=("acme",))}
    config = msgspec.structs.replace(
        config,
        models=configuration.ModelsConfig(served_model_name=MODEL, public_prefixes=shared),
    )
    async with served(config, double_client(config, double)) as gateway:
        await chat(gateway, chat_body() | {"messages": [{"role": "user", "content": "hi"}]})
        messages = [{"role": "system", "content": HELPER}, {"role": "user", "content": "hi"}]
        await chat(gateway, chat_body() | {"messages": messages})
        assert gateway.tenant.name == "acme"
    first, second = double.requests
    assert first.num_public_tokens < 3, "no more than the template's own beginning"
    assert second.num_public_tokens > len(HELPER)
    assert second.cache_salt == first.cache_salt != ""
