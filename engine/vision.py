"""How a model sees, as far as those who never import torch must know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from engine.errors import InvalidRequest

if TYPE_CHECKING:
    from engine.messages import GenerateRequest, Image

SHARED_MEMORY = Path("/dev/shm")
BLOCK_ROWS = 64
"""Embeddings in a block of the encoder's cache."""
_DIGEST_BYTES = 32


class Vision(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint's config says of its pictures, with the same names for all families."""

    image_token_id: int
    side: int
    """An image token stands for a square of so many pixels a side."""
    max_size: int | None = None
    """Most pixels of a picture's height or width; None: any number."""

    num_deepstack: int = 0
    """The first layers behind which something is added to the states of image tokens."""
    rotates_by_grid: bool = False
    """An image token's rotary position is its row and column; text goes on behind the larger of
    them, so that it has other rotary positions than places in the cache."""
    refusal: str = ""
    """Why pictures are refused all the same, for whoever sends one; empty: they are not."""
    num_blocks: int = 0
    """Of the encoder's cache, see ``BLOCK_ROWS``; set by the runner."""
    largest: int | None = None
    """Most image tokens of a picture: for so many the runner has memory. None: any number."""

    @property
    def most_tokens(self) -> int:
        """Of a picture that is served."""
        room = self.num_blocks * BLOCK_ROWS
        return room if self.largest is None else min(room, self.largest)

    def num_tokens(self, image: Image) -> int:
        """Its image tokens."""
        rows, columns = self.grid(image)
        return rows * columns

    def grid(self, image: Image) -> tuple[int, int]:
        """Rows and columns of its image tokens."""
        return image.height // self.side, image.width // self.side

    def check(self, image: Image, prompt: list[int], start: int) -> int:
        """The end of the picture's span, which must not begin before ``start``. Raises
        ``InvalidRequest``, whose message begins with a field of ``Image``."""
        if image.offset < start:
            raise InvalidRequest(
                f"offset must be at least {start}, where the picture before it ends, got"
                f" {image.offset}"
            )
        end = image.offset + image.num_tokens
        if image.num_tokens < 1 or end > len(prompt):
            raise InvalidRequest(
                f"num_tokens must be in [1, {len(prompt) - image.offset}] after offset"
                f" {image.offset} of {len(prompt)} prompt tokens, got {image.num_tokens}"
            )
        for field, pixels in (("height", image.height), ("width", image.width)):
            if pixels < 1 or pixels % self.side:
                raise InvalidRequest(f"{field} must be a multiple of {self.side}, got {pixels}")
            if self.max_size is not None and pixels > self.max_size:
                raise InvalidRequest(f"{field} must be at most {self.max_size}, got {pixels}")
        num_tokens, most = self.num_tokens(image), self.most_tokens
        if num_tokens > most:
            what = "the model's files allow" if most == self.largest else "image_cache_bytes holds"
            raise InvalidRequest(
                f"height: {image.height} x {image.width} pixels make {num_tokens} image tokens,"
                f" but {what} {most} at most"
            )
        num_found = prompt[image.offset : end].count(self.image_token_id)
        if num_found != num_tokens:
            raise InvalidRequest(
                f"num_tokens: the span of {image.num_tokens} tokens from {image.offset} on has"
                f" {num_found} image tokens, but {image.height} x {image.width} pixels make"
                f" {num_tokens}"
            )
        if len(image.digest) != _DIGEST_BYTES:
            raise InvalidRequest(f"digest must have {_DIGEST_BYTES} bytes, got {len(image.digest)}")
        num_bytes = 3 * image.height * image.width
        if bool(image.pixels) == bool(image.segment):
            raise InvalidRequest("pixels or segment must be given, and not both")
        if image.pixels and len(image.pixels) != num_bytes:
            raise InvalidRequest(
                f"pixels must have {num_bytes} bytes for {image.height} x {image.width} in RGB,"
                f" got {len(image.pixels)}"
            )
        return end


def with_pixels(message: GenerateRequest) -> GenerateRequest:
    """The request with the pixels that its pictures' files hold. Raises ``InvalidRequest``."""
    if not any(image.segment for image in message.images):
        return message
    images = [
        replace(image, pixels=_read(image, index), segment="") if image.segment else image
        for index, image in enumerate(message.images)
    ]
    return replace(message, images=images)


def _read(image: Image, index: int) -> bytes:
    path = Path(image.segment)
    if not path.is_relative_to(SHARED_MEMORY) or ".." in path.parts:
        raise InvalidRequest(f"images[{index}].segment must be in {SHARED_MEMORY}, got {path}")
    try:
        size, wanted = path.stat().st_size, 3 * image.height * image.width
        if size == wanted:
            return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"images[{index}].segment cannot be read: {error}") from error
    raise InvalidRequest(f"images[{index}].segment must have {wanted} bytes, got {size}")
