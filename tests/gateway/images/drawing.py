"""Pictures as clients send them, and a model folder whose model sees."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image


def picture(width: int = 64, height: int = 48, format: str = "PNG", **options: Any) -> bytes:
    """A file with a gradient, so that no two sizes have the same pixels."""
    image = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_part(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def question(*parts: dict[str, Any] | str) -> list[dict[str, Any]]:
    """Messages with one question."""
    whole = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": whole}]
