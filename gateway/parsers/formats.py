"""Chooses the format in which a model writes calls, and whether it reasons first."""

from __future__ import annotations

from engine.text.chat_template import ChatTemplate
from gateway.parsers.base import ToolFormat
from gateway.parsers.deepseek import CALLS, DEEPSEEK, DEEPSEEK_V31
from gateway.parsers.harmony import HARMONY, HARMONY_REASONING
from gateway.parsers.hermes import HERMES
from gateway.parsers.llama import LLAMA
from gateway.parsers.mistral import MISTRAL, MISTRAL_V11
from gateway.parsers.qwen import QWEN
from gateway.parsers.reasoning import THINK, ReasoningFormat

# The first format whose sign is found counts: Qwen3-Coder's template also contains the sign of
# Hermes.
_FORMATS = (QWEN, HERMES, MISTRAL, DEEPSEEK, LLAMA, HARMONY)
_REASONING = (THINK, HARMONY_REASONING)


def tool_format(name: str, template: ChatTemplate) -> ToolFormat | None:
    """The one called ``name``; with ``auto`` the one that the chat template is written for.

    None for ``none``, and with ``auto`` for a template that has no tools.
    """
    if name == "auto":
        if "tools" not in template.variables:
            return None
        found = next((f for f in _FORMATS if any(map(template.mentions, f.signs))), HERMES)
        return _dialect(found, template)
    return next((_dialect(f, template) for f in _FORMATS if f.name == name), None)


def _dialect(format: ToolFormat, template: ChatTemplate) -> ToolFormat:
    """The variant that the template asks for: the parser reads all of them, but a grammar needs
    one."""
    if format is MISTRAL and template.mentions("[ARGS]"):
        return MISTRAL_V11
    if format is DEEPSEEK and template.mentions(CALLS) and not template.mentions("```"):
        return DEEPSEEK_V31
    return format


def reasoning_format(name: str, template: ChatTemplate) -> ReasoningFormat | None:
    """The one called ``name``; with ``auto`` the one whose sign the chat template contains."""
    if name == "auto":
        return next((f for f in _REASONING if template.mentions(f.sign)), None)
    return next((f for f in _REASONING if f.name == name), None)
