"""The pictures of requests, from their bytes to what the engine gets.

    look: bytes, header ──► tokens ──► limits reserved ──► prepare: decoded, resized ──► engine

So the tokens of a picture are known before anything is decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from engine.errors import ImageTooLarge
from engine.images.load import load_processor
from engine.images.processor import Detail, Fit, ImageProcessor
from engine.messages import Image
from gateway.config import Config
from gateway.errors import RateLimited, Unavailable
from gateway.images.jobs import Look, Pixels, Prepare, Refused, Setup, Size
from gateway.images.memory import Held, Room, SharedFolder
from gateway.images.sources import Given, Sources, place_of, refusal
from gateway.images.workers import Workers
from gateway.schemas.chat import Picture
from tenants.files import Files
from tenants.lanes import Lanes, Turn

T = TypeVar("T")

MOST_AT_ONCE = 4
"""Requests of one tenant whose pictures are in memory before they are decoded."""
MAX_WAITING = 256
"""Requests with pictures of one tenant that have not been admitted, beyond which more are
refused."""
_BYTES_PER_PIXEL = 12
_BASE_BYTES = 256 * 2**20
"""What decoding takes at most, beside what grows with the picture."""
_DETAILS: dict[str | None, Detail] = {"low": "low", "high": "high", "original": "high"}


class Looked(NamedTuple):
    """A picture of which the header is read."""

    picture: Picture
    given: Given
    fit: Fit
    detail: Detail
    token_ids: list[int]
    """What its placeholder becomes."""


class Images:
    """What all requests of this gateway process share."""

    def __init__(self, config: Config, files: Files) -> None:
        settings = config.images
        self.settings = settings
        self.sources = Sources(settings, files, config.server.outbound_networks)
        setup = Setup(
            max_bytes=settings.max_bytes,
            max_pixels=settings.max_pixels,
            timeout_s=settings.timeout_s,
            memory_bytes=_BYTES_PER_PIXEL * settings.max_pixels
            + 4 * settings.max_bytes
            + _BASE_BYTES,
        )
        self.workers = Workers(settings.workers, setup)
        self.folder = SharedFolder()
        self.room = Room(settings.max_memory_bytes)
        self._lanes = Lanes(MOST_AT_ONCE)

    async def start(self) -> None:
        """Start a process, and remove what dead gateways have left. To be called if a model
        sees."""
        await asyncio.to_thread(self.folder.remove_leftovers)
        with contextlib.suppress(Unavailable):  # The log says why.
            await self.workers.start()

    async def turn(self, tenant: UUID) -> Turn:
        """For a request to have its pictures in memory. Raises ``RateLimited``."""
        if self._lanes.num_users(tenant) >= MAX_WAITING:
            raise RateLimited(
                f"{MAX_WAITING} requests of your tenant with images wait already.", retry_after_s=1
            )
        return await self._lanes.turn(tenant)

    async def close(self) -> None:
        """Idempotent."""
        await self.workers.close()
        self.folder.close()


class ModelVision:
    """How one model sees."""

    def __init__(self, processor: ImageProcessor, model: Path, images: Images) -> None:
        self.processor = processor
        self._model = str(model)
        self.images = images

    @classmethod
    def of(cls, model: Path, images: Images | None) -> ModelVision | None:
        """None if the model does not see. Raises ``ModelLoadError``."""
        processor = None if images is None else load_processor(model)
        return None if processor is None or images is None else cls(processor, model, images)

    async def look(self, pictures: Sequence[Picture], tenant: UUID) -> list[Looked]:
        """Read the pictures and their headers. Raises ``InvalidRequestError`` naming the field of
        the first that is refused, and as ``Workers.do`` does."""
        most = self.images.settings.max_images
        if len(pictures) > most:
            raise refusal(
                pictures[most], f"A request has at most {most} images.", "too_many_images"
            )
        return await _all([self._looked(picture, tenant) for picture in pictures])

    async def _looked(self, picture: Picture, tenant: UUID) -> Looked:
        given = await self.images.sources.read(picture, tenant)
        answer = await self.images.workers.do(Look(given.data, given.is_base64), tenant)
        if isinstance(answer, Refused):
            raise _refused(picture, answer)
        assert isinstance(answer, Size)
        detail = _DETAILS.get(picture.image_url.detail, "auto")
        try:
            fit = self.processor.fit(answer.width, answer.height, detail)
        except ImageTooLarge as error:
            raise refusal(picture, _sentence(str(error)), "image_too_large") from None
        return Looked(picture, given, fit, detail, self.processor.tokens(fit))

    async def prepare(self, looked: Sequence[Looked], offsets: Sequence[int], tenant: UUID) -> Held:
        """Decode and resize the pictures, whose tokens begin at ``offsets``. Raises as ``look``
        does, and as ``Room.take``."""
        held = Held(self.images.room, tenant, sum(3 * o.fit.height * o.fit.width for o in looked))
        held.places = [place_of(one.picture) for one in looked]
        try:
            held.images = await _all(
                [
                    self._prepared(one, offset, tenant, held)
                    for one, offset in zip(looked, offsets, strict=True)
                ]
            )
        except BaseException:
            held.close()
            raise
        return held

    async def _prepared(self, one: Looked, offset: int, tenant: UUID, held: Held) -> Image:
        file = self.images.folder.new_file()
        job = Prepare(one.given.data, one.given.is_base64, self._model, one.detail, file)
        if file:
            held.keep(file)
        answer = await self.images.workers.do(job, tenant)
        if isinstance(answer, Refused):
            raise _refused(one.picture, answer)
        assert isinstance(answer, Pixels)
        return Image(
            offset=offset,
            num_tokens=len(one.token_ids),
            height=answer.height,
            width=answer.width,
            digest=answer.digest,
            pixels=answer.pixels,
            segment="" if answer.pixels else file,
        )


async def _all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What all return, or what the first one that fails raises; then no other goes on."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _refused(picture: Picture, answer: Refused) -> Exception:
    return refusal(picture, _sentence(answer.message), answer.code)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
