"""The pictures of offline prompts: from Pillow's images, paths and data URLs to what a request
carries. Never imports torch."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from PIL import Image as Pillow

from engine.errors import InvalidImage, InvalidRequest
from engine.images.prepare import Prepared, prepare
from engine.images.processor import ImageProcessor
from engine.messages import Image

_IMAGE_TYPES = "image", "image_pil", "image_url"
_OTHER_TYPES = "video", "video_url", "audio", "audio_url", "input_audio"


def of_prompt(prompt: object) -> list[object]:
    """The pictures in a prompt's ``multi_modal_data``, in order. Raises ``InvalidRequest``."""
    data = prompt.get("multi_modal_data") if isinstance(prompt, Mapping) else None
    if data is None:
        return []
    if not isinstance(data, Mapping) or not data.keys() <= {"image"}:
        raise InvalidRequest(
            'multi_modal_data must be {"image": one or a list of Pillow images or paths}; there is'
            " nothing else that models see or hear here"
        )
    images = data.get("image", [])
    return list(images) if isinstance(images, list | tuple) else [images]


def of_chat(
    messages: Iterable[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[object]]:
    """The messages as a template reads them, whose pictures are parts ``{"type": "image"}``, and
    the pictures. Raises ``InvalidRequest``."""
    found: list[object] = []

    def read(part: object) -> object:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _OTHER_TYPES:
            raise InvalidRequest(f"parts of type {kind!r} are not supported: only text and images")
        if not isinstance(part, dict) or kind not in _IMAGE_TYPES:
            return part
        given = part.get(kind)
        if isinstance(given, Mapping):
            given = given.get("url")
        if given is None:
            raise InvalidRequest(f"a part of type {kind!r} must have the picture as {kind!r}")
        found.append(given)
        return {"type": "image"}

    read_messages = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            message = {**message, "content": [read(part) for part in content]}
        read_messages.append(message)
    return read_messages, found


def placed(
    processor: ImageProcessor | None, token_ids: list[int], pictures: Sequence[object]
) -> tuple[list[int], list[Image]]:
    """The prompt's tokens, each placeholder replaced by those of its picture, and the pictures.
    Raises ``InvalidRequest``."""
    if processor is None:
        raise InvalidRequest("images: the model does not see; leave them out")
    num_places = token_ids.count(processor.placeholder)
    if num_places != len(pictures):
        raise InvalidRequest(
            f"the prompt has {num_places} placeholders (token {processor.placeholder}) for"
            f" {len(pictures)} images: it needs one for each"
        )
    expanded: list[int] = []
    images: list[Image] = []
    for token_id in token_ids:
        if token_id != processor.placeholder:
            expanded.append(token_id)
            continue
        index = len(images)
        one = _prepared(processor, pictures[index], index)
        tokens = processor.tokens(one.fit)
        images.append(
            Image(
                offset=len(expanded),
                num_tokens=len(tokens),
                height=one.fit.height,
                width=one.fit.width,
                digest=one.digest,
                pixels=one.pixels,
            )
        )
        expanded += tokens
    return expanded, images


def _prepared(processor: ImageProcessor, picture: object, index: int) -> Prepared:
    try:
        return prepare(processor, _data(picture))
    except (InvalidImage, InvalidRequest, OSError) as error:
        raise InvalidRequest(f"image {index}: {error}") from error


def _data(picture: object) -> bytes | Pillow.Image:
    if isinstance(picture, bytes | Pillow.Image):
        return picture
    if isinstance(picture, Path):
        return picture.read_bytes()
    if not isinstance(picture, str):
        raise InvalidRequest(
            f"must be one of Pillow's images, a path, a data: URL or bytes, got {type(picture)}"
        )
    if picture.startswith("data:"):
        try:
            return base64.b64decode(picture.partition(",")[2], validate=True)
        except binascii.Error as error:
            raise InvalidRequest(f"the data: URL is no base64: {error}") from error
    if picture.startswith(("http:", "https:")):
        raise InvalidRequest("nothing is fetched here: download it, and give its path")
    return Path(unquote(picture.removeprefix("file://"))).read_bytes()
