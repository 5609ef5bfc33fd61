"""Open WebUI's requests as they were recorded, to this server's model; run from the project."""

import json
import urllib.request
from typing import Any

from report import KEY, MODEL, URL, feature, run

from tests.e2e import recorded_clients as recorded


def ask(path: str, body: Any = None) -> bytes:
    headers = recorded.OPEN_WEBUI_HEADERS | {"authorization": f"Bearer {KEY}"}
    data = None if body is None else json.dumps(body | {"model": MODEL}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"{URL}/v1{path}", data, headers), timeout=60
    ) as answer:
        told: bytes = answer.read()
        return told


@feature
def chat() -> None:
    assert MODEL in [model["id"] for model in json.loads(ask("/models"))["data"]]
    for task in recorded.OPEN_WEBUI_TASKS:
        answer = json.loads(ask("/chat/completions", task))
        assert isinstance(answer["choices"][0]["message"]["content"], str)


@feature
def stream() -> None:
    events = ask("/chat/completions", recorded.OPEN_WEBUI_CHAT).decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] > 0


run()
