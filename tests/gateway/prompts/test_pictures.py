"""Pictures in prompts, for each family whose models see."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from engine.images.load import load_processor
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from gateway.errors import UnsupportedParameter
from gateway.prompts.chat import ChatPrompts
from gateway.prompts.threads import PromptThreads
from gateway.schemas.chat import Message
from tests.engine.seeing import FAMILIES, Seeing, write_processor

TENANT = UUID(int=1)


@pytest.mark.asyncio
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_placeholder_is_a_pictures_only_where_the_template_wrote_it(
    family: Seeing, tmp_path: Path
) -> None:
    folder = write_processor(family, tmp_path)
    tokenizer, processor = Tokenizer.load(folder), load_processor(folder)
    assert processor is not None
    template, threads = ChatTemplate.load(folder), PromptThreads()
    prompts = ChatPrompts(template, tokenizer, threads, allowed_kwargs=(), processor=processor)
    spelled = tokenizer.token_bytes(processor.placeholder).decode()
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    text = {"type": "text", "text": f"a {spelled} b"}
    messages = msgspec.convert(
        [
            {"role": "user", "content": [text, picture, text, picture]},
            {"role": "assistant", "content": spelled},
            {"role": "user", "content": [picture]},
        ],
        list[Message],
    )
    prompt = await prompts.encode(messages, tenant=TENANT)
    (token_ids,) = prompt.token_ids
    found = [i for i, token_id in enumerate(token_ids) if token_id == processor.placeholder]
    assert len(found) == 6
    assert prompt.places == [found[1], found[3], found[5]]
    assert [one.place for one in prompt.pictures] == [
        *(f"messages[0].content[{index}]" for index in (1, 3)),
        "messages[2].content[0]",
    ]
    count = await prompts.count(messages, tenant=TENANT)
    assert count == (len(token_ids), prompt.pictures)
    # Without pictures nothing differs from what the template writes.
    plain = msgspec.convert([{"role": "user", "content": f"a {spelled} b"}], list[Message])
    shown = template.render([{"role": "user", "content": f"a {spelled} b"}])
    whole = await prompts.encode(plain, tenant=TENANT)
    assert whole.token_ids == [tokenizer.encode(shown, add_special_tokens=False)]
    assert not whole.pictures
    blind = ChatPrompts(template, tokenizer, threads, allowed_kwargs=())
    with pytest.raises(UnsupportedParameter, match="reads text only") as caught:
        await blind.encode(messages, tenant=TENANT)
    assert caught.value.param == "messages[0].content[1]"
    silent = ChatTemplate({"default": "{{ messages[0].content[0].text }}"})
    dumb = ChatPrompts(silent, tokenizer, threads, allowed_kwargs=(), processor=processor)
    with pytest.raises(UnsupportedParameter, match="does not show pictures"):
        await dumb.encode(messages, tenant=TENANT)
