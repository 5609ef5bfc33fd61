"""The demo model's chat template, rendered by the code that also renders it for requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from engine.text.chat_template import ChatTemplate

TEMPLATE_FILE = Path(__file__).parent / "chat_template.jinja"


@cache
def _template() -> ChatTemplate:
    return ChatTemplate({"default": TEMPLATE_FILE.read_text(encoding="utf-8")})


def render(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
    *,
    add_generation_prompt: bool = False,
) -> str:
    """The chat as the model reads it; with `add_generation_prompt` up to where it answers."""
    return _template().render(
        list(messages), tools=list(tools) or None, add_generation_prompt=add_generation_prompt
    )
