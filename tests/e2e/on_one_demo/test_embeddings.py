"""The bundled embedding model beside the chat model, through OpenAI's package."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import numpy as np
import pytest
from openai import OpenAI

pytestmark = [pytest.mark.pg, pytest.mark.nightly]

MODEL = "demo-embedding"
QUESTION = "What is the capital of Peru?"
SENTENCES = ["Rome is in Italy.", "The capital of Peru is Lima.", "Lemons are sour."]


def test_vectors_and_scores(demo: dict[str, Any]) -> None:
    with OpenAI(base_url=f"{demo['url']}/v1", api_key=demo["api_key"]) as client:
        assert [one.id for one in client.models.list().data] == ["demo", MODEL]
        packed = client.embeddings.create(model=MODEL, input=[QUESTION, *SENTENCES])
        plain = client.embeddings.create(model=MODEL, input=QUESTION, encoding_format="float")
        short = client.embeddings.create(model=MODEL, input=QUESTION, dimensions=32)
    query, *others = (np.array(one.embedding) for one in packed.data)
    assert np.allclose(plain.data[0].embedding, query, atol=1e-6)
    assert len(short.data[0].embedding) == 32
    scores = [float(query @ other) for other in others]
    assert int(np.argmax(scores)) == 1
    body = {"model": MODEL, "query": QUESTION, "documents": SENTENCES, "top_n": 1}
    request = urllib.request.Request(
        f"{demo['url']}/v1/rerank",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {demo['api_key']}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        (best,) = json.load(response)["results"]
    assert best["index"] == 1
    assert best["relevance_score"] == pytest.approx(scores[1], abs=1e-5)
