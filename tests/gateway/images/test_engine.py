"""Pictures through a gateway and a real engine, beside the same chat without either."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.llm import LLM
from engine.sampling_params import SamplingParams
from tests.engine import seeing
from tests.gateway.images.drawing import data_url, image_part, picture, question
from tests.gateway.serving import MODEL, make_config, served, until

pytestmark = [pytest.mark.asyncio, pytest.mark.nightly]
LENGTH = 200
SERVED = [family for family in seeing.FAMILIES if family.module != "gemma3"]
ENGINE = {
    "kv_cache_memory_bytes": 16 * 2**20,
    "num_threads": 1,
    "dtype": "float32",
    "block_size": 16,
}


@pytest.mark.parametrize("family", SERVED, ids=lambda family: family.name)
async def test_the_answer_is_that_of_the_model_also_after_a_move(
    family: seeing.Seeing, tmp_path: Path
) -> None:
    folder = seeing.write(family, tmp_path)
    files = [picture(64, 48), picture(90, 33, "JPEG")]
    images = [Image.open(io.BytesIO(file)) for file in files]
    parts: list[Any] = ["a", {"type": "image", "image": images[0]}, "b"]
    parts.append({"type": "image", "image": images[1]})
    params = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
    llm = LLM(model=str(folder), **ENGINE)  # type: ignore[arg-type]
    (wanted,) = llm.chat(question(*parts), params)

    config = make_config(folder, engine=ENGINE)
    fleet = Fleet([EngineClient(config.engine)], failover_wait_s=60.0)
    async with served(config, fleet) as gateway, gateway.openai() as client:
        shown: Any = ["a", image_part(data_url(files[0])), "b", image_part(data_url(files[1]))]
        for is_killed in (False, True):
            messages: Any = question(*shown)
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=messages,
                max_completion_tokens=LENGTH,
                temperature=0,
                extra_body={"ignore_eos": True},
                stream=True,
                stream_options={"include_usage": True},
            )
            said, usage = "", None
            async for chunk in stream:
                said += chunk.choices[0].delta.content or "" if chunk.choices else ""
                usage = chunk.usage or usage
                if is_killed and said:
                    is_killed = False
                    os.kill(fleet.info.pid, signal.SIGKILL)
            assert said == wanted.outputs[0].text
            assert usage is not None
            assert usage.prompt_tokens == len(wanted.prompt_token_ids or ())
        assert fleet.moves.num_moved == 1
        # The same picture is another tenant's for the first time, however often it was seen.
        gateway.tenant = await gateway.store.create_tenant("globex")
        async with gateway.openai(api_key=await gateway.key("chat")) as other:
            cached: list[int] = []
            for one in (client, other, other):
                answer = await one.chat.completions.create(
                    model=MODEL, messages=messages, max_completion_tokens=1
                )
                assert answer.usage is not None
                details = answer.usage.prompt_tokens_details
                assert details is not None
                cached.append(details.cached_tokens or 0)
        assert cached[1] == 0
        assert cached[0] == cached[2] > 0
        room = gateway.app.state.services.images.room
        await until(lambda: room.num_bytes == 0)
