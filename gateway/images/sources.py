"""Where the bytes of a picture come from: the request itself, a file of the tenant, or another
server, if the settings name that.

Fetching connects to addresses that were looked at (``gateway.outbound``), at each redirect anew.
What a picture is, its content tells, whatever type a server says that it has.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import httpx2

from gateway import outbound
from gateway.config import ImagesConfig
from gateway.errors import InvalidRequestError, UnsupportedParameter, quoted
from gateway.schemas.chat import Picture
from tenants.files import Files

_DATA = re.compile(r"data:[^,]{0,256}?;base64,", re.ASCII | re.IGNORECASE)
_REDIRECTS = (301, 302, 303, 307, 308)
_PURPOSES = ("vision", "user_data")
_HTTPS = 443


class Given(NamedTuple):
    """A picture's bytes as they came."""

    data: bytes
    is_base64: bool = False


class Sources:
    """Reads pictures. All that it raises names the picture's field."""

    def __init__(self, config: ImagesConfig, files: Files, networks: Sequence[str]) -> None:
        """``networks``: those that are not public and may be fetched from nevertheless."""
        self._config = config
        self._files = files
        self._networks = networks

    async def read(self, picture: Picture, tenant: UUID) -> Given:
        """Raises ``InvalidRequestError``, ``TenantsError``."""
        if picture.file_id is not None:
            return Given(await self._file(picture, picture.file_id, tenant))
        url = picture.image_url.url
        if (found := _DATA.match(url)) is not None:
            # Four characters stand for three bytes.
            if (len(url) - found.end()) // 4 * 3 > self._config.max_bytes + 2:
                raise self._too_large(picture)
            return Given(url[found.end() :].encode(errors="replace"), is_base64=True)
        if url[:5].lower() == "data:":
            raise refusal(
                picture,
                "A data: URL must be data:image/png;base64, and the picture, or another type.",
                "invalid_image_url",
            )
        return Given(await self._fetched(picture, url))

    async def _file(self, picture: Picture, file_id: str, tenant: UUID) -> bytes:
        found = await self._files.find(tenant, file_id)
        if found is None:
            raise refusal(picture, f"There is no file {quoted(file_id)}.", "image_file_not_found")
        if found.purpose not in _PURPOSES:
            raise refusal(
                picture,
                f"The file's purpose is {found.purpose}; upload it with the purpose vision.",
                "invalid_image",
            )
        if found.size > self._config.max_bytes:
            raise self._too_large(picture)
        return b"".join([piece async for piece in self._files.content(tenant, file_id)])

    async def _fetched(self, picture: Picture, url: str) -> bytes:
        config = self._config
        if not config.fetch_hosts:
            raise UnsupportedParameter(
                "This server fetches no images (its images.fetch_hosts is empty): send a data: "
                "URL, or upload the image as a file.",
                param=place_of(picture),
                is_renamed=True,
            )
        try:
            async with (
                asyncio.timeout(config.fetch_timeout_s),
                outbound.client(self._networks, timeout_s=config.fetch_timeout_s) as client,
            ):
                return await self._followed(picture, url, client)
        except TimeoutError:
            raise self._failed(picture, f"it took more than {config.fetch_timeout_s:g} s") from None
        except outbound.AnswerTooLarge:
            raise self._too_large(picture) from None
        except httpx2.HTTPError as error:
            raise self._failed(picture, _reason(error)) from None

    async def _followed(self, picture: Picture, url: str, client: httpx2.AsyncClient) -> bytes:
        """The picture there, or where it leads. Raises ``httpx2.HTTPError``."""
        config = self._config
        for _ in range(config.fetch_redirects + 1):
            self._check(picture, url)
            answer = await outbound.fetch(
                client,
                "GET",
                url,
                timeout_s=config.fetch_timeout_s,
                max_bytes=config.max_bytes,
            )
            if answer.status_code == httpx2.codes.OK:
                return answer.content
            location = answer.headers.get("location")
            if answer.status_code not in _REDIRECTS or location is None:
                raise self._failed(picture, f"the server answered {answer.status_code}")
            try:
                url = str(httpx2.URL(url).join(location))
            except (httpx2.InvalidURL, ValueError):
                raise self._failed(picture, "it leads to what is no URL") from None
        raise self._failed(picture, f"there are more than {config.fetch_redirects} redirects")

    def _check(self, picture: Picture, url: str) -> None:
        """Raise ``InvalidRequestError`` unless it may be fetched from there."""
        try:
            parsed = httpx2.URL(outbound.check_url(url))
        except ValueError as error:
            raise refusal(picture, f"The URL {error}.", "invalid_image_url") from None
        if parsed.scheme != "https":
            raise refusal(
                picture, "The URL must begin with https:// or data:.", "invalid_image_url"
            )
        host, port = parsed.raw_host.decode("ascii").lower(), parsed.port or _HTTPS
        if not any(_is_of(host, port, entry) for entry in self._config.fetch_hosts):
            raise refusal(
                picture,
                f"This server fetches no images from {quoted(host)} (images.fetch_hosts has the "
                "hosts that it does): send a data: URL, or upload the image as a file.",
                "invalid_image_url",
            )

    def _too_large(self, picture: Picture) -> InvalidRequestError:
        most = self._config.max_bytes
        return refusal(picture, f"An image has at most {most} bytes.", "image_too_large")

    def _failed(self, picture: Picture, why: str) -> InvalidRequestError:
        return refusal(
            picture, f"The image could not be fetched: {why}.", "failed_to_download_image"
        )


def refusal(picture: Picture, message: str, code: str) -> InvalidRequestError:
    """An error about a picture, whose codes are those of OpenAI's API."""
    return InvalidRequestError(message, param=place_of(picture), code=code, is_renamed=True)


def place_of(picture: Picture) -> str:
    """The path of what holds it, as its client calls it."""
    return f"{picture.place}.{picture.field}" if picture.field else picture.place


def _reason(error: httpx2.HTTPError) -> str:
    """What went wrong, without what a name in DNS leads to: that is nobody's to probe."""
    if isinstance(error, httpx2.TimeoutException):
        return "the server did not answer in time"
    if isinstance(error, httpx2.ConnectError):
        return "the server cannot be reached from here"
    if isinstance(error, httpx2.DecodingError):
        return "the answer is compressed"
    return "the server broke off"


def _is_of(host: str, port: int, entry: str) -> bool:
    """Whether an entry of ``images.fetch_hosts`` stands for this host and port."""
    name, colon, number = entry.lower().rpartition(":")
    if not (colon and number.isdecimal()):
        name, number = entry.lower(), str(_HTTPS)
    if str(port) != number:
        return False
    return name == "*" or host == name or (name[:2] == "*." and host.endswith(name[1:]))
