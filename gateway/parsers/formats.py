"""Which format a model writes its calls in, and whether it reasons first."""

from __future__ import annotations

from engine.chat_template import ChatTemplate
from gateway.parsers import reasoning
from gateway.parsers.base import ToolFormat
from gateway.parsers.deepseek import DEEPSEEK
from gateway.parsers.hermes import HERMES
from gateway.parsers.llama import LLAMA
from gateway.parsers.mistral import MISTRAL
from gateway.parsers.qwen import QWEN

# The first whose sign is found counts: Qwen3-Coder's template holds the sign of Hermes too.
_FORMATS = (QWEN, HERMES, MISTRAL, DEEPSEEK, LLAMA)


def tool_format(name: str, template: ChatTemplate) -> ToolFormat | None:
    """The one called ``name``; with ``auto`` the one that the chat template is written for.

    None for ``none``, and with ``auto`` for a template that has no tools.
    """
    if name == "auto":
        if "tools" not in template.variables:
            return None
        return next((f for f in _FORMATS if any(map(template.mentions, f.signs))), HERMES)
    return next((f for f in _FORMATS if f.name == name), None)


def has_reasoning(name: str, template: ChatTemplate) -> bool:
    """Whether ``<think>`` is looked for; with ``auto`` where the chat template knows its end."""
    return template.mentions(reasoning.CLOSE) if name == "auto" else name == "think"
