"""Pictures in the lines of a batch, over PostgreSQL."""

from __future__ import annotations

import msgspec
import pytest
from openai import AsyncOpenAI

from tests.gateway.batches.test_batches import begin, client, double, ended, here, quick, read
from tests.gateway.engine_double import EngineDouble
from tests.gateway.images.drawing import data_url, image_part, picture, question
from tests.gateway.serving import MODEL

__all__ = ["client", "double", "here", "quick"]

pytestmark = [pytest.mark.asyncio, pytest.mark.pg, pytest.mark.nightly]


async def test_lines_may_carry_pictures(client: AsyncOpenAI, double: EngineDouble) -> None:
    lines = []
    for name, data in (("good", picture()), ("bad", b"%PDF-1.7")):
        body = {"model": MODEL, "messages": question("x", image_part(data_url(data)))}
        document = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions"}
        lines.append(msgspec.json.encode(document | {"body": body}))
    batch = await ended(client, await begin(client, *lines))
    assert batch.request_counts.model_dump() == {"total": 2, "completed": 1, "failed": 1}
    answers = await read(client, batch.output_file_id)
    usage = answers["good"]["response"]["body"]["usage"]
    (image,) = double.requests[-1].images
    assert usage["prompt_tokens_details"]["image_tokens"] == image.num_tokens
    failed = await read(client, batch.error_file_id)
    error = failed["bad"]["response"]["body"]["error"]
    assert error["param"] == "messages[0].content[1].image_url"
