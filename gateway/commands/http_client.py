"""Sends a request to a running server, for commands."""

from __future__ import annotations

from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec

from gateway.commands.database import Address
from gateway.errors import ClientError


def ask(
    address: Address, method: str, path: str, body: object = None, *, timeout_s: float = 10
) -> Any:
    """The decoded answer to a request. Raises ``ClientError``, with the server's message if there
    is one."""
    request = Request(
        address.url + path,
        method=method,
        data=None if body is None else msgspec.json.encode(body),
        headers={"Authorization": f"Bearer {address.key}", "Content-Type": "application/json"},
    )
    try:
        with urlopen(request, timeout=timeout_s) as response:
            return msgspec.json.decode(response.read())
    except HTTPError as exc:
        try:
            message = msgspec.json.decode(exc.read())["error"]["message"]
        except (msgspec.DecodeError, KeyError, TypeError):
            message = f"HTTP {exc.code}; is this a Sluice server?"
        raise ClientError(f"{address.url}: {message}") from None
    except OSError as exc:
        reason = getattr(exc, "reason", exc)
        raise ClientError(f"{address.url} does not answer ({reason}); is it running?") from None
    except msgspec.DecodeError:
        raise ClientError(f"{address.url} is not a Sluice server") from None
