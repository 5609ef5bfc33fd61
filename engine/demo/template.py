"""Renders chats with the demo model's chat template, the way `transformers` renders them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE_FILE = Path(__file__).parent / "chat_template.jinja"


@cache
def _template() -> Template:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env.from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def render(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
    *,
    add_generation_prompt: bool = False,
) -> str:
    """The chat as the model reads it; with `add_generation_prompt` up to where it answers."""
    return _template().render(
        messages=messages, tools=list(tools), add_generation_prompt=add_generation_prompt
    )
