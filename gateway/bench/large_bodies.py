"""Sends requests with bodies of the largest size, beside the streams that are measured."""

from __future__ import annotations

import asyncio
import http.client
import itertools
from urllib.parse import urlsplit

import msgspec

from gateway.commands.database import Address
from gateway.errors import ClientError
from gateway.transport.body_shape import MAX_CONTAINERS

BODY_BYTES = 4_000_000
TIMEOUT_S = 60.0
_MESSAGE = '{"role":"user","content":"hello"},'


def largest(model: str) -> bytes:
    """A chat with nearly as many messages as are allowed, and a last message that fills the body.
    Most models refuse it as too long, but only after it was decoded."""
    messages = _MESSAGE * (MAX_CONTAINERS - 8)
    text = "word " * ((BODY_BYTES - len(messages)) // 5)
    name = msgspec.json.encode(model).decode()
    last = f'{{"role":"user","content":"{text}"}}'
    return f'{{"model":{name},"max_tokens":1,"messages":[{messages}{last}]}}'.encode()


class LargeBodies:
    """Sends ``per_s`` such requests a second to an address, until cancelled."""

    def __init__(self, address: Address, model: str, per_s: float) -> None:
        self._address = address
        self._body = largest(model)
        self._period_s = 1 / per_s
        self.num_answered = 0

    async def run(self) -> None:
        """Send requests forever. Raises ``ClientError`` if the server does not answer one."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in itertools.count(1):
            # In a thread, because sending so much here would look like a pause of the server.
            await asyncio.to_thread(self._send)
            self.num_answered += 1
            await asyncio.sleep(began + number * self._period_s - loop.time())

    def _send(self) -> None:
        parts = urlsplit(self._address.url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(parts.netloc, timeout=TIMEOUT_S)
        headers = {
            "authorization": f"Bearer {self._address.key}",
            "content-type": "application/json",
        }
        try:
            connection.request("POST", "/v1/chat/completions", self._body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as exc:
            raise ClientError(f"A large body was not answered: {exc}") from exc
        finally:
            connection.close()
        if status >= 500:
            raise ClientError(f"A large body was answered with {status}")
