"""The bytes that clients read, over all formats and channels of answers, from a scripted engine.

``wire_cases.txt`` holds them as they were recorded; ``test_wire_cases`` compares. A change that is
meant to change them records them anew: ``python -m tests.gateway.wire_cases``.

Ids, times and padding differ from run to run, so a record has placeholders in their place. Each
chunk of a body and each frame is a line, in which a line break is written as ``␊``.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from engine.text.tokenizer import Tokenizer
from tests.gateway import tiny_model
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import RawClient, bodiless, post
from tests.gateway.serving import (
    MODEL,
    Gateway,
    chat_body,
    double_client,
    make_config,
    served,
    until,
)

RECORD = Path(__file__).with_name("wire_cases.txt")
_TITLE = "### "
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"
TURNS = 40
"""Turns of the event loop between tokens: enough for each to reach its client by itself."""

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
SCHEMA = {
    "type": "object",
    "allOf": [{"properties": {"b": {"type": "string"}}}],
    "unevaluatedProperties": False,
}
"""Not all of it can be enforced."""

_IDS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<![0-9a-f])"
    r"(?:[0-9a-f]{52}|[0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{24})(?![0-9a-f])"
)
_TIMES = re.compile(r'("(?:created|created_at|completed_at)":)\d{10}')
_PADDING = re.compile(r'("obfuscation":")([^"]*)"')


class Case:
    """The record of one case, which grows line by line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lines: list[str] = []
        self._ids: dict[str, str] = {}

    def add(self, mark: str, text: str | bytes) -> None:
        line = text.decode() if isinstance(text, bytes) else text
        line = _IDS.sub(lambda found: self._named(found[0]), line)
        line = _TIMES.sub(r"\g<1>0", line)
        line = _PADDING.sub(lambda found: f'{found[1]}<{len(found[2])} characters>"', line)
        self._lines.append(f"{mark} {line}".replace("\n", "␊"))

    def _named(self, identifier: str) -> str:
        return self._ids.setdefault(identifier.replace("-", ""), f"<id {len(self._ids)}>")

    def __str__(self) -> str:
        return "\n".join(self._lines)


class Recorder:
    """Plays cases to a gateway, and keeps what comes back."""

    def __init__(self, gateway: Gateway, double: EngineDouble, key: str) -> None:
        self.cases: list[Case] = []
        self._gateway = gateway
        self._double = double
        self._key = key

    def begin(self, name: str, *plays: Play) -> Case:
        """The engine answers requests with ``plays`` in turn."""
        case = Case(name)
        self.cases.append(case)
        left = list(plays)
        turns = TURNS

        def script(prompt: str) -> Play:
            play = left.pop(0) if len(left) > 1 else left[0]
            return play if play.interval_s else _with_turns(play, turns)

        self._double.script = script
        return case

    async def post(
        self,
        case: Case,
        path: str,
        body: dict[str, Any],
        on_piece: Callable[[bytes], Any] | None = None,
        **headers: str,
    ) -> tuple[dict[str, str], list[bytes]]:
        request = post(
            self._gateway, json.dumps(body).encode(), path=path, key=self._key, **headers
        )
        case.add(">", f"POST {path} {json.dumps(body)}")
        return await self._exchange(case, request, on_piece)

    async def get(
        self, case: Case, path: str, method: str = "GET"
    ) -> tuple[dict[str, str], list[bytes]]:
        case.add(">", f"{method} {path}")
        request = bodiless(method, path, authorization=f"Bearer {self._key}")
        return await self._exchange(case, request, None)

    async def _exchange(
        self, case: Case, request: bytes, on_piece: Callable[[bytes], Any] | None
    ) -> tuple[dict[str, str], list[bytes]]:
        client = await RawClient.connect(self._gateway)
        pieces: list[bytes] = []
        try:
            client.send(request)
            head = await client.head()
            case.add("<", str(head.status))
            for name, value in sorted(head.headers.items()):
                if name not in ("date", "server"):
                    case.add("<", f"{name}: {value}")
            if head.headers.get("transfer-encoding") == "chunked":
                while piece := await client.chunk():
                    case.add("|", piece)
                    pieces.append(piece)
                    if on_piece is not None and on_piece(piece) is not None:
                        break
            elif size := int(head.headers.get("content-length", "0")):
                pieces.append(await client.reader.readexactly(size))
                case.add("|", pieces[-1])
        finally:
            await client.close()
        return head.headers, pieces

    @asynccontextmanager
    async def socket(self, path: str) -> AsyncIterator[Any]:
        url = self._gateway.ws_url.removesuffix("/v1/chat") + path
        headers = {"authorization": f"Bearer {self._key}"}
        async with connect(url, compression=None, additional_headers=headers) as socket:
            yield socket

    async def talk(
        self,
        case: Case,
        socket: Any,
        message: dict[str, Any],
        on_frame: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None,
    ) -> list[dict[str, Any]]:
        """Send a message, and read to the end of its turn. ``on_frame`` may return another message
        to send."""
        frames: list[dict[str, Any]] = []
        case.add(">", json.dumps(message))
        await socket.send(json.dumps(message))
        while not frames or frames[-1]["type"] not in _ENDS:
            text = await socket.recv()
            frames.append(json.loads(text))
            case.add("|", text)
            if on_frame is not None and (answer := on_frame(frames[-1])) is not None:
                case.add(">", json.dumps(answer))
                await socket.send(json.dumps(answer))
        return frames


_ENDS = ("done", "error", "response.completed", "response.incomplete", "response.failed")


def _with_turns(play: Play, turns: int) -> Play:
    return Play(**{**play.__dict__, "num_turns": turns})


def _chat_tools(**more: object) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": TOOL | more}]}


def _json_schema() -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}


HI = Play(text="Hi", num_cached_tokens=3)
SIGNS = Play(text='é\n"👩‍🚀\\<')
FAILS = Play(text="ab", error="it broke", error_code="internal")
REFUSED = Play(error="the queue is full", error_code="queue_full")
THINKS = Play(text="<think>so</think>Hi")
CALLS = Play(text=f"Ok {CALL}{CALL}")
STUCK = Play(text="ab", interval_s=3600)

CHATS: dict[str, tuple[Play, dict[str, Any]]] = {
    "text": (HI, {}),
    "signs": (SIGNS, {}),
    "tools": (CALLS, _chat_tools()),
    "one tool": (CALLS, _chat_tools() | {"parallel_tool_calls": False}),
    "reasoning": (THINKS, {}),
    "logprobs": (HI, {"logprobs": True, "top_logprobs": 2}),
    "two choices": (HI, {"n": 2}),
    "stop string": (Play(text="one.STOP two"), {"stop": ["STOP"], "max_tokens": 12}),
    "length": (HI, {"max_tokens": 1}),
    "at once": (Play(text="all at once", at_once=True), {}),
    "schema": (Play(text='{"a":"b"}'), {"response_format": _json_schema()}),
    "refused": (REFUSED, {}),
    "fails": (FAILS, {}),
    "metadata": (HI, {"metadata": {"a": "b"}, "service_tier": "auto"}),
}
STREAM_USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
STREAM_PADDED: dict[str, Any] = {"stream": True, "stream_options": {"include_obfuscation": True}}
TEXTS: dict[str, tuple[Play, dict[str, Any]]] = {
    "text": (HI, {}),
    "signs": (SIGNS, {}),
    "echo": (HI, {"echo": True}),
    "logprobs": (HI, {"logprobs": 1}),
    "echo and logprobs": (HI, {"echo": True, "logprobs": 1}),
    "two prompts, two choices": (HI, {"prompt": ["a", "b"], "n": 2}),
    "stop string": (Play(text="one.STOP two"), {"stop": "STOP", "max_tokens": 12}),
    "length": (HI, {"max_tokens": 1}),
    "fails": (FAILS, {}),
}
RESPONSE_TOOLS = {"tools": [{"type": "function", "strict": False, **TOOL}]}
ANSWERS: dict[str, tuple[Play, dict[str, Any]]] = {
    "text": (HI, {}),
    "signs": (SIGNS, {}),
    "tools": (CALLS, RESPONSE_TOOLS),
    "reasoning": (THINKS, {}),
    "logprobs": (HI, {"include": ["message.output_text.logprobs"], "top_logprobs": 1}),
    "length": (HI, {"max_output_tokens": 1}),
    "fails": (FAILS, {"store": False}),
}
MESSAGE_TOOLS = {"tools": [{"name": "f", "input_schema": TOOL["parameters"]}]}
TURNS_OF_ANTHROPIC: dict[str, tuple[Play, dict[str, Any]]] = {
    "text": (HI, {}),
    "signs": (SIGNS, {}),
    "tools": (CALLS, MESSAGE_TOOLS),
    "reasoning": (THINKS, {}),
    "stop sequence": (Play(text="one.STOP two"), {"stop_sequences": ["STOP"]}),
    "length": (HI, {"max_tokens": 1}),
    "a full context": (
        Play(text="x" * 99),
        {"messages": [{"role": "user", "content": "a" * 2000}]},
    ),
    "ignored": (HI, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    "refused": (REFUSED, {}),
    "not valid": (HI, {"messages": []}),
    "fails": (FAILS, {}),
}


async def _whole_and_streamed(recorder: Recorder) -> None:
    for name, (play, fields) in CHATS.items():
        case = recorder.begin(f"chat: {name}", play)
        await recorder.post(case, CHAT, chat_body(**fields))
        case = recorder.begin(f"chat stream: {name}", play)
        more = STREAM_USAGE if name in ("text", "fails") else {"stream": True}
        await recorder.post(case, CHAT, chat_body(**fields, **more))
    for name, (play, fields) in TEXTS.items():
        body = {"model": MODEL, "prompt": "yes", "max_tokens": 8, **fields}
        case = recorder.begin(f"completion: {name}", play)
        await recorder.post(case, TEXT, body)
        case = recorder.begin(f"completion stream: {name}", play)
        await recorder.post(case, TEXT, body | (STREAM_USAGE if name == "text" else STREAM_PLAIN))
    for name, (play, fields) in ANSWERS.items():
        body = {"model": MODEL, "input": "hi", **fields}
        case = recorder.begin(f"response: {name}", play)
        await recorder.post(case, RESPONSES, body)
        case = recorder.begin(f"response stream: {name}", play)
        await recorder.post(case, RESPONSES, body | STREAM_PLAIN)
    for name, (play, fields) in TURNS_OF_ANTHROPIC.items():
        body = chat_body(max_tokens=1000) | fields
        case = recorder.begin(f"message: {name}", play)
        await recorder.post(case, MESSAGES, body)
        case = recorder.begin(f"message stream: {name}", play)
        await recorder.post(case, MESSAGES, body | STREAM_PLAIN)
    case = recorder.begin("chat stream: padded", HI)
    await recorder.post(case, CHAT, chat_body(**STREAM_PADDED))
    case = recorder.begin("completion stream: padded", HI)
    await recorder.post(case, TEXT, {"model": MODEL, "prompt": "yes", **STREAM_PADDED})
    case = recorder.begin("response stream: padded", HI)
    await recorder.post(case, RESPONSES, {"model": MODEL, "input": "hi", **STREAM_PADDED})


STREAM_PLAIN: dict[str, Any] = {"stream": True}


async def _resumable(recorder: Recorder) -> None:
    for name, play, more in (
        ("text", SIGNS, {}),
        ("two choices", HI, {"n": 2}),
        ("padded", HI, STREAM_PADDED),
        ("fails", FAILS, {}),
    ):
        case = recorder.begin(f"chat resumable: {name}", play)
        body = chat_body(stream=True, resumable=True) | more
        headers, _ = await recorder.post(case, CHAT, body)
        await recorder.get(case, f"/v1/streams/{headers['x-sluice-stream-id']}?from=2")
    case = recorder.begin("completion resumable: text", SIGNS)
    body = {"model": MODEL, "prompt": "yes", "stream": True, "resumable": True}
    headers, _ = await recorder.post(case, TEXT, body)
    await recorder.get(case, f"/v1/streams/{headers['x-sluice-stream-id']}?from=1")
    case = recorder.begin("chat resumable: left and resumed, then stopped", STUCK)
    headers, _ = await recorder.post(
        case, CHAT, chat_body(stream=True, resumable=True), lambda piece: b'"a"' in piece or None
    )
    stream = f"/v1/streams/{headers['x-sluice-stream-id']}"
    await recorder.get(case, stream, "DELETE")
    await recorder.get(case, f"{stream}?from=0")
    case = recorder.begin("response resumable: text", HI)
    body = {"model": MODEL, "input": "hi", "stream": True, "resumable": True}
    headers, _ = await recorder.post(case, RESPONSES, body)
    response = f"/v1/responses/{headers['x-sluice-stream-id']}"
    await recorder.get(case, f"{response}?stream=true&starting_after=3")
    await recorder.get(case, response)


async def _background(recorder: Recorder) -> None:
    case = recorder.begin("response in the background", HI)
    _, (body,) = await recorder.post(
        case, RESPONSES, {"model": MODEL, "input": "hi", "background": True}
    )
    response = f"/v1/responses/{json.loads(body)['id']}"
    await recorder.get(case, f"{response}?stream=true&starting_after=2")
    await recorder.get(case, response)
    case = recorder.begin("response in the background: streamed", HI)
    body_fields = {"model": MODEL, "input": "hi", "background": True, "stream": True}
    await recorder.post(case, RESPONSES, body_fields)
    recorder._double.generated.clear()
    case = recorder.begin("response in the background: cancelled", STUCK)
    _, (body,) = await recorder.post(
        case, RESPONSES, {"model": MODEL, "input": "hi", "background": True}
    )
    response = f"/v1/responses/{json.loads(body)['id']}"
    await until(lambda: recorder._double.generated)
    await _quiet()
    await recorder.get(case, f"{response}/cancel", "POST")
    await recorder.get(case, f"{response}?stream=true&starting_after=0")


async def _idempotent(recorder: Recorder) -> None:
    for name, path, body in (
        ("chat", CHAT, chat_body()),
        ("chat stream", CHAT, chat_body(stream=True)),
        ("response stream", RESPONSES, {"model": MODEL, "input": "hi", "stream": True}),
    ):
        case = recorder.begin(f"idempotent {name}", HI)
        for _ in range(2):
            await recorder.post(case, path, body, idempotency_key=name)


async def _sockets(recorder: Recorder) -> None:
    async with recorder.socket("/v1/chat") as socket:
        case = recorder.begin("chat socket: ready", HI)
        case.add("|", await socket.recv())
        for name in ("text", "signs", "tools", "reasoning", "logprobs", "length", "fails"):
            play, fields = CHATS[name]
            case = recorder.begin(f"chat socket: {name}", play)
            await recorder.talk(case, socket, _turn(**fields))
        case = recorder.begin("chat socket: schema", CHATS["schema"][0])
        await recorder.talk(case, socket, _turn(**CHATS["schema"][1]))
        case = recorder.begin("chat socket: cancelled", STUCK)
        await recorder.talk(case, socket, _turn(), _cancel_turn)
        case = recorder.begin("chat socket: resumable", SIGNS)
        frames = await recorder.talk(case, socket, _turn(resumable=True))
        stream_id = frames[0]["stream_id"]
        resume = {"type": "resume", "id": "t", "stream_id": stream_id, "last_seq": 1}
        await recorder.talk(case, socket, resume)
        case = recorder.begin("chat socket: not valid", HI)
        await recorder.talk(case, socket, _turn(nonsense=1))
    async with recorder.socket("/v1/responses") as socket:
        for name in ("text", "signs", "tools", "reasoning", "logprobs", "length", "fails"):
            play, fields = ANSWERS[name]
            case = recorder.begin(f"response socket: {name}", play)
            more = {"stream_id": "a-lane"} if name == "tools" else {}
            await recorder.talk(case, socket, _create(**fields, **more))
        case = recorder.begin("response socket: cancelled", STUCK)
        await recorder.talk(case, socket, _create(store=False), _cancel_response)
        case = recorder.begin("response socket: nothing generated", HI)
        await recorder.talk(case, socket, _create(generate=False, stream_id="b"))
        case = recorder.begin("response socket: not valid", HI)
        await recorder.talk(case, socket, _create(nonsense=1))


def _turn(**fields: object) -> dict[str, Any]:
    return {"type": "chat", "id": "t", **chat_body(), **fields}


def _create(**fields: object) -> dict[str, Any]:
    return {"type": "response.create", "model": MODEL, "input": "hi", **fields}


def _cancel_turn(frame: dict[str, Any]) -> dict[str, Any] | None:
    return {"type": "cancel", "id": "t"} if frame.get("content") == "a" else None


def _cancel_response(frame: dict[str, Any]) -> dict[str, Any] | None:
    if frame.get("delta") != "a":
        return None
    item = frame["item_id"].partition("_")[2]
    return {"type": "response.cancel", "response_id": f"resp_{item[:52]}"}


async def _quiet() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def _heartbeats(recorder: Recorder) -> None:
    """One heartbeat before the first token, which then comes at once."""
    for name, path, body in (
        ("chat", CHAT, chat_body(stream=True)),
        ("chat resumable", CHAT, chat_body(stream=True, resumable=True)),
        ("completion", TEXT, {"model": MODEL, "prompt": "yes", "stream": True}),
        ("response", RESPONSES, {"model": MODEL, "input": "hi", "stream": True}),
        ("message", MESSAGES, chat_body(stream=True, max_tokens=9)),
    ):
        gate = asyncio.Event()
        case = recorder.begin(f"heartbeat: {name}", Play(text="Hi", gate=gate))
        num_left = 3 if name in ("response", "message") else 1 if name == "completion" else 2

        def count(piece: bytes) -> None:
            nonlocal num_left
            num_left -= piece.count(b"\n\n")
            if num_left <= 0:
                gate.set()  # noqa: B023

        await recorder.post(case, path, body, count)


async def _crash(recorder: Recorder) -> None:
    case = recorder.begin("chat stream: the engine dies", STUCK)
    crash = recorder._double.crash

    def at_text(piece: bytes) -> None:
        if b'"a"' in piece:
            crash()

    await recorder.post(case, CHAT, chat_body(stream=True), at_text)


async def record(folder: Path) -> dict[str, str]:
    """What the gateway of today answers, by the names of cases."""
    cases: list[Case] = []
    model_dir = tiny_model.build(folder / "tiny")
    for heartbeat_s, plays in (
        (30.0, (_whole_and_streamed, _resumable, _background, _idempotent, _sockets, _crash)),
        (0.5, (_heartbeats,)),
    ):
        config = make_config(
            model_dir,
            models={"reasoning_parser": "think", "tool_parser": "hermes"},
            heartbeat_s=heartbeat_s,
        )
        double = EngineDouble(Tokenizer.load(model_dir))
        async with served(config, double_client(config, double)) as gateway:
            recorder = Recorder(gateway, double, await gateway.key("chat", "responses"))
            for play in plays:
                await play(recorder)
            cases += recorder.cases
    return {case.name: str(case) for case in cases}


def recorded() -> dict[str, str]:
    """What ``RECORD`` holds."""
    parts = RECORD.read_text().split(_TITLE)[1:]
    return {name: text.rstrip("\n") for name, _, text in (part.partition("\n") for part in parts)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(record(Path(folder)))
    RECORD.write_text("\n".join(f"{_TITLE}{name}\n{text}\n" for name, text in found.items()))
