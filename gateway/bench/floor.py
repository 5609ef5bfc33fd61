"""A minimal server, to measure what streaming costs at least: the same chunks at the same rate.

No keys, no limits, no engine, no log: an ASGI application of a page on the same server. What a
gateway adds to it is the gateway's own. Started by ``bench.target`` as ``python -m
gateway.bench.floor TOKENS_PER_S``; says its port on stdout, and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
import threading

import orjson
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.answers.chat import ChatEncoder
from gateway.answers.chunks import Head
from gateway.generation.delta import Delta
from gateway.generation.events import as_sse
from gateway.generation.generation import usage_of

MODEL = "floor"
WORDS = [
    "A",
    "chunk",
    "for",
    "each",
    "of",
    "these",
    "words,",
    "one",
    "after",
    "the",
    "other,",
    "and",
    "then",
    "again.",
]


class Floor:
    """An ASGI app that sends the parts of a chat completion that the benchmark's clients read."""

    def __init__(self, tokens_per_s: float) -> None:
        self._interval_s = 1 / tokens_per_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        if scope["method"] == "GET":
            length = [(b"content-length", str(len(_MODELS)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": length})
            await send({"type": "http.response.body", "body": _MODELS, "more_body": False})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        await self._stream(orjson.loads(body)["max_tokens"], send)

    async def _stream(self, num_tokens: int, send: Send) -> None:
        chunks = ChatEncoder(Head("chatcmpl-" + "0" * 32, 0, MODEL, has_usage=True))
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        for word in itertools.islice(itertools.cycle(WORDS), num_tokens):
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            due_s += self._interval_s
            chunk = b"".join(map(as_sse, chunks.delta(Delta(0, word))))
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        usage = usage_of(prompt_tokens=0, cached_tokens=0, completion_tokens=num_tokens)
        last = b"".join(map(as_sse, chunks.closing(usage)))
        await send({"type": "http.response.body", "body": last, "more_body": False})


_MODELS = json.dumps({"data": [{"id": MODEL}]}).encode()


def _stop_with_the_owner() -> None:
    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    _stop_with_the_owner()
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        Floor(float(sys.argv[1])),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
