"""A process that decodes pictures: ``python -m gateway.images.worker``, reached over its stdin and
stdout, at whose end it ends.

Whatever a picture does to it, the gateway loses no more than that picture: a job has so much
processor time (SIGPROF ends the process), memory and nothing else of the gateway's.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import resource
import signal
import sys
from functools import cache
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from engine.errors import ImageTooLarge, InvalidImage, UnsupportedImage
from engine.images.decode import Limits, measure
from engine.images.load import load_processor
from engine.images.prepare import prepare
from engine.images.processor import ImageProcessor
from gateway.images.jobs import (
    LENGTH,
    Answer,
    Job,
    Look,
    Pixels,
    Prepare,
    Refused,
    Setup,
    Size,
    framed,
    job_decoder,
    setup_decoder,
)
from grammar.confinement import address_space, give_way, set_limit

_TOO_MUCH = Refused("image_too_large", "the image takes too much memory to be decoded")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The gateway decides when it ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    give_way()
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # What libraries print is no answer.
    setup = setup_decoder.decode(_read(source) or b"")
    Image.init()  # It takes a tenth of a second, which would be the first picture's.
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_AS, address_space() + setup.memory_bytes)
    while (data := _read(source)) is not None:
        job = job_decoder.decode(data)
        del data
        signal.setitimer(signal.ITIMER_PROF, setup.timeout_s)
        answer = _answer(job, setup)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        del job
        for part in framed(answer):
            _write(answers, part)


def _answer(job: Job, setup: Setup) -> Answer:
    limits = Limits(max_bytes=setup.max_bytes, max_pixels=setup.max_pixels)
    try:
        data = binascii.a2b_base64(job.data, strict_mode=True) if job.is_base64 else job.data
        if isinstance(job, Look):
            return Size(*measure(data, limits))
        return _prepared(job, data, limits)
    except binascii.Error as error:
        return Refused("invalid_base64_image", f"this is not base64: {error}")
    except UnsupportedImage as error:
        return Refused("unsupported_image_media_type", str(error))
    except ImageTooLarge as error:
        return Refused("image_too_large", str(error))
    except InvalidImage as error:
        if isinstance(error.__cause__, MemoryError):
            return _TOO_MUCH
        return Refused("image_parse_error", str(error))
    except MemoryError:
        return _TOO_MUCH


def _prepared(job: Prepare, data: bytes, limits: Limits) -> Pixels:
    found = prepare(_processor(job.model), data, limits, job.detail)
    pixels = found.pixels
    if job.file and _saved(Path(job.file), pixels):
        pixels = b""
    return Pixels(found.fit.height, found.fit.width, found.digest, pixels)


@cache
def _processor(model: str) -> ImageProcessor:
    found = load_processor(Path(model))
    assert found is not None, "only models that see are asked for"
    return found


def _saved(path: Path, pixels: bytes) -> bool:
    """Write pixels to a new file that only this user may read; False if there is no room."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        # A page that a full file system does not have would end whoever touches it later.
        os.posix_fallocate(descriptor, 0, len(pixels))
        with memoryview(pixels) as rest:
            written = 0
            while written < len(pixels):
                written += os.write(descriptor, rest[written:])
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        return False
    finally:
        os.close(descriptor)
    return True


def _read(source: BinaryIO) -> bytes | None:
    """A message; None at the end."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = source.read(length)
    return data if len(data) == length else None


def _write(answers: BinaryIO, data: bytes) -> None:
    with memoryview(data) as rest:
        written = 0
        while written < len(data):
            written += answers.write(rest[written:]) or 0


if __name__ == "__main__":
    main()
