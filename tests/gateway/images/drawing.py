"""Pictures as clients send them, and a model folder whose model sees."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from tests.engine import seeing
from tests.gateway import tiny_model


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


TEMPLATE = tiny_model.TEMPLATE.replace(
    "{{ message.content or '' }}",
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{%- for part in message.content or [] -%}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}"
    "{%- endfor %}{% endif %}",
)


def write_model(folder: Path) -> Path:
    """A model that sees, without weights, which is shown tools as the usual one is."""
    return seeing.write_processor(replace(seeing.QWEN3_VL, template=TEMPLATE), folder)
