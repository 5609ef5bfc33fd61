"""The ``curl`` of the machine."""

import json
import subprocess
from typing import Any

from report import HELLO, KEY, MODEL, PERSON, URL, feature, run


def ask(body: dict[str, Any], *options: str, key: str = KEY) -> str:
    command = ["curl", "-sS", f"{URL}/v1/chat/completions", *options, "-d", json.dumps(body)]
    for header in (f"Authorization: Bearer {key}", "Content-Type: application/json"):
        command += ["-H", header]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def asking(text: str) -> dict[str, Any]:
    return {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": text}]}


@feature
def chat() -> None:
    assert json.loads(ask(asking(HELLO)))["choices"][0]["message"]["content"]


@feature
def stream() -> None:
    *events, done = ask(asking(HELLO) | {"stream": True}, "-N").strip().split("\n\n")
    assert done == "data: [DONE]"
    assert all("choices" in json.loads(event.removeprefix("data: ")) for event in events)


@feature
def structured() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
    answer = json.loads(ask(asking(PERSON) | {"response_format": wanted}))
    assert "age" in json.loads(answer["choices"][0]["message"]["content"])


@feature
def errors() -> None:
    assert "401" in ask(asking(HELLO), "-i", key="sk-wrong").partition("\n")[0]
    assert "404" in ask(asking(HELLO) | {"model": "gpt-9"}, "-i").partition("\n")[0]


run()
