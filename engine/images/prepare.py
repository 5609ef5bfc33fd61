"""From a picture as it comes to what travels to the engine."""

from __future__ import annotations

import struct

import msgspec
from blake3 import blake3
from PIL import Image

from engine.images.decode import Limits, decode, upright
from engine.images.processor import Detail, Fit, ImageProcessor

NO_LIMITS = Limits(max_bytes=2**62, max_pixels=2**62)


class Prepared(msgspec.Struct, frozen=True):
    """A picture, resized for the model."""

    fit: Fit
    pixels: bytes
    """``height * width * 3``: RGB, a byte each, row by row."""
    digest: bytes
    """32 bytes: BLAKE3 of the pixels and of all else that its embeddings depend on."""


def prepare(
    processor: ImageProcessor,
    data: bytes | Image.Image,
    limits: Limits = NO_LIMITS,
    detail: Detail = "auto",
) -> Prepared:
    """data: a file's content, or a picture of Pillow's. Raises as ``decode`` and
    ``ImageProcessor.fit`` do."""
    picture = decode(data, limits) if isinstance(data, bytes) else upright(data, limits)
    fit = processor.fit(*picture.size, detail)
    pixels = picture.resize((fit.width, fit.height), processor.resample).tobytes()
    return Prepared(fit, pixels, _digest(processor.parameters, fit, pixels))


def _digest(parameters: bytes, fit: Fit, pixels: bytes) -> bytes:
    head = struct.pack("<3sIIQ", b"RGB", fit.height, fit.width, len(parameters))
    return blake3(head + parameters).update(pixels).digest()
