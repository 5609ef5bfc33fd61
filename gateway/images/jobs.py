"""What a worker process is asked, and what it answers: msgpack behind its length."""

from __future__ import annotations

import struct

import msgspec

from engine.images.processor import Detail

LENGTH = struct.Struct("!I")
"""What goes before each message."""


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """The first message: what holds for all jobs."""

    max_bytes: int
    max_pixels: int
    timeout_s: float
    """Processor time of a job."""
    memory_bytes: int
    """What a job may add to the memory of its process."""


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Read the header of a picture."""

    data: bytes
    is_base64: bool


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Decode a picture, and resize it for the model of this folder."""

    data: bytes
    is_base64: bool
    model: str
    detail: Detail
    file: str
    """Where to put the pixels; empty: into the answer."""


class Size(msgspec.Struct, frozen=True, tag="size"):
    """Of an upright picture, in pixels."""

    width: int
    height: int


class Pixels(msgspec.Struct, frozen=True, tag="pixels"):
    height: int
    width: int
    digest: bytes
    pixels: bytes
    """Empty if they are in the file."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    code: str
    message: str


Job = Look | Prepare
Answer = Size | Pixels | Refused

_encoder = msgspec.msgpack.Encoder()
setup_decoder = msgspec.msgpack.Decoder(Setup)
job_decoder: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def framed(message: Setup | Job | Answer) -> tuple[bytes, bytes]:
    """A message with its length, apart: it may have megabytes."""
    data = _encoder.encode(message)
    return LENGTH.pack(len(data)), data
