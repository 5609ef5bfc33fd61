"""HTTP to addresses that tenants name: receivers of webhooks, tools' servers, images.

A tenant could name an address inside the deployment's network, or a name that leads there. So each
connection resolves its host once, refuses addresses that are not public, and goes to an address
that was looked at, not to the name again, whose owner may answer otherwise the next time. Redirects
are not followed here, proxies of the environment are not asked, and answers have a largest size.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpcore2
import httpx2

MAX_URL = 2048
"""Characters of an address that a tenant names."""

_Address = IPv4Address | IPv6Address
_IpNetwork = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")
_UNICAST = IPv6Network("2000::/3")
"""What is given to hosts of the Internet, of all that Python calls global."""
_OF_BODY = (b"content-length", b"transfer-encoding")
EVERYWHERE = ("0.0.0.0/0", "::/0")
"""For addresses that the operator names."""


class AnswerTooLarge(httpx2.RequestError):
    """A server's answer has more bytes than its caller reads."""


def client(
    allowed_networks: Sequence[str] = (),
    *,
    timeout_s: float = 10.0,
    max_connections: int = 100,
) -> httpx2.AsyncClient:
    """A client that connects to public addresses and to those in ``allowed_networks``, such as
    ``server.outbound_networks``.

    It raises ``httpx2.ConnectError`` for others. ``timeout_s`` is for connecting and for each wait
    for bytes; a limit for a whole exchange is its caller's (``asyncio.timeout``).
    """
    return httpx2.AsyncClient(
        transport=_Transport([ip_network(one) for one in allowed_networks], max_connections),
        headers={"accept-encoding": "identity"},
        timeout=timeout_s,
        follow_redirects=False,
        trust_env=False,
    )


def check_url(url: str) -> str:
    """The URL, if it is one that ``client`` may be asked for. Raises ``ValueError``, which says
    what is wrong. Where its host leads is looked at when it is connected to."""
    if len(url) > MAX_URL:
        raise ValueError(f"has {len(url)} characters; at most {MAX_URL} are possible")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"is no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("must begin with https:// or http:// and a host")
    if parsed.userinfo:
        raise ValueError("must hold no user name or password")
    if parsed.fragment:
        raise ValueError("must hold no fragment (#)")
    return url


async def fetch(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 15.0,
    max_bytes: int = 1024 * 1024,
) -> httpx2.Response:
    """The whole answer to a request, within ``timeout_s`` however slowly it comes.

    Raises ``httpx2.HTTPError``, ``AnswerTooLarge`` among them, and ``TimeoutError``.
    """
    async with (
        asyncio.timeout(timeout_s),
        client.stream(method, url, content=content, headers=headers) as response,
    ):
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                raise AnswerTooLarge(f"The answer has more than {max_bytes} bytes.")
        return httpx2.Response(
            response.status_code,
            headers=[(k, v) for k, v in response.headers.raw if k.lower() not in _OF_BODY],
            content=bytes(body),
            request=response.request,
        )


def is_allowed(address: _Address, networks: Iterable[_IpNetwork]) -> bool:
    """Whether it is public, or in one of these networks."""
    inner = _embedded(address)
    if any(inner.version == one.version and inner in one for one in networks):
        return True
    return (
        inner.is_global
        and not inner.is_multicast
        and (isinstance(inner, IPv4Address) or inner in _UNICAST)
    )


def _embedded(address: _Address) -> _Address:
    """The IPv4 address that an IPv6 address leads to, where it is one of those."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


class _Network(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were looked at."""

    def __init__(self, allowed: Sequence[_IpNetwork]) -> None:
        self._allowed = allowed
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        found = await self._resolve(host, port, timeout)
        allowed = [one for one in found if is_allowed(one, self._allowed)]
        if not allowed:
            raise httpcore2.ConnectError(
                f"{host} leads to {found[0]}, which is not a public address; "
                "server.outbound_networks names others that are allowed."
            )
        failure: Exception | None = None
        for address in allowed[:2]:
            try:
                return await self._backend.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def _resolve(self, host: str, port: int, timeout: float | None) -> list[_Address]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"{host}: no answer from DNS") from None
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"{host}: {error}") from None
        # A scope (fe80::1%eth0) names an interface of this host.
        return [ip_address(str(one[4][0]).partition("%")[0]) for one in found]

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@cache
def _ssl_context() -> ssl.SSLContext:
    """Made once: it reads hundreds of certificates."""
    return httpx2.create_ssl_context(trust_env=False)


class _Transport(httpx2.AsyncHTTPTransport):
    """httpx2's own, whose pool connects by ``_Network``: httpx2 has no parameter for that.

    An answer that is compressed, though that was not asked for, is refused: a few of its bytes
    could be many.
    """

    def __init__(self, allowed: Sequence[_IpNetwork], max_connections: int) -> None:
        context = _ssl_context()
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=max_connections,
            keepalive_expiry=5.0,
            network_backend=_Network(allowed),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.DecodingError("The answer is compressed.", request=request)
        return response
