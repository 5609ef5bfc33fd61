"""A provider of OpenID Connect that does as it is told, over HTTP; a test is its login page."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, quote_plus, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT, SECRET = "sluice-pages", "the client's secret"


class Provider:
    def __init__(self) -> None:
        self.issuer = ""
        self.keys = [RSAKey.generate_key(2048, {"kid": "one"})]
        self.codes: dict[str, tuple[str, dict[str, Any]]] = {}
        """The challenge and the claims that each code stands for."""
        self.num_fetched = 0
        """How often its keys were."""
        self.is_away = False
        self.ahead_s: float | None = None
        """By how much its clock is ahead, if it tells the time."""
        self.signs_by: list[str] | None = None
        """What it says of that."""

    def token(self, *, key: Any = None, **claims: Any) -> str:
        """Signed with the first key; a claim of None is left out."""
        key = key or self.keys[0]
        now = int(time.time())
        whole = {"iss": self.issuer, "aud": CLIENT, "sub": "jane", "iat": now, "exp": now + 300}
        whole = {name: value for name, value in (whole | claims).items() if value is not None}
        return jwt.encode({"alg": "RS256", "kid": key.kid}, whole, key)

    def consent(self, url: str, code: str, **claims: Any) -> dict[str, str]:
        """As somebody who signs in at ``url``: what the browser brings back."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{self.issuer}/authorize?")
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT)
        assert query["code_challenge_method"] == "S256"
        self.codes[code] = query["code_challenge"], {"nonce": query["nonce"], **claims}
        return {"code": code, "state": query["state"], "iss": self.issuer}

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                **(
                    {"id_token_signing_alg_values_supported": self.signs_by}
                    if self.signs_by
                    else {}
                ),
            }
        if path == "/keys":
            self.num_fetched += 1
            return 200, KeySet([*self.keys]).as_dict(private=False)
        assert path == "/token"
        basic = base64.b64encode(f"{CLIENT}:{quote_plus(SECRET)}".encode()).decode()
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge, claims = self.codes.pop(form["code"], ("", {}))
        if (
            headers.get("authorization") != f"Basic {basic}"
            or base64.urlsafe_b64encode(digest).decode().rstrip("=") != challenge
        ):
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "-", "token_type": "Bearer", "id_token": self.token(**claims)}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not self.is_away:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.split(": ", 1) for line in lines if line)
                headers = {name.lower(): value for name, value in headers.items()}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if self.is_away:
                    break
                status, document = self.answer(first.split()[1], headers, body)
                data = json.dumps(document).encode()
                head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n"
                if self.ahead_s is not None:
                    head += f"date: {formatdate(time.time() + self.ahead_s, usegmt=True)}\r\n"
                writer.write(f"{head}\r\n".encode() + data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await made.handle(reader, writer)

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        made.issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made
        for writer in writers:
            writer.transport.abort()
    await asyncio.sleep(0.01)
