"""Fields of OpenAI's API that this server cannot act on: it refuses them by name, or takes them
where that changes no answer and says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from gateway.errors import UnsupportedParameter

CHAT: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "function_call": (),
    "functions": (),
    "modalities": (["text"],),
    "moderation": (),
    "web_search_options": (),
}
"""Fields of Chat Completions that are refused unless null or one of these values, at which they
change nothing."""

HINTS = ("prompt_cache_options", "prompt_cache_retention")
"""Fields that change nothing in an answer: they are taken, and listed as ignored."""

COMPLETIONS: Mapping[str, tuple[object, ...]] = {"suffix": ()}
"""The same for Completions."""

_INSTEAD = {
    "functions": "send tools",
    "function_call": "send tool_choice",
}


def refuse(request: msgspec.Struct, unsupported: Mapping[str, tuple[object, ...]]) -> None:
    """Raise ``UnsupportedParameter`` for the first field that is set to more than a neutral
    value."""
    for name, neutral in unsupported.items():
        value = getattr(request, name)
        if value is None or any(_same(value, harmless) for harmless in neutral):
            continue
        mend = _INSTEAD.get(name, "leave it out")
        raise UnsupportedParameter(
            f"The parameter {name} is not supported by this server; {mend}.", param=name
        )


def ignored(request: msgspec.Struct) -> Iterator[str]:
    """The hints that a request sets."""
    return (name for name in HINTS if getattr(request, name, None) not in (None, False))


def _same(value: object, other: object) -> bool:
    """Whether two values are equal in JSON, where false is not 0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
