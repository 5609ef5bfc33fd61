"""Paths into a JSON document, for error messages and audits: ``$.allOf[0]['a b']``."""

from __future__ import annotations

import re
from functools import lru_cache

ROOT = "$"
_NAME = re.compile(r"[$A-Za-z_][$\w-]*", re.ASCII)


def child(path: str, key: str | int) -> str:
    """The path of a member or an element of the value at ``path``."""
    return f"{path}[{key}]" if isinstance(key, int) else path + _member(key)


@lru_cache(maxsize=4096)
def _member(key: str) -> str:
    if _NAME.fullmatch(key):
        return f".{key}"
    escaped = key.replace("\\", "\\\\").replace("'", "\\'")
    return f"['{escaped}']"


_STEP = re.compile(r"\.([$\w-]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]", re.ASCII)


def pointer(path: str) -> str:
    """The path as a JSON pointer (RFC 6901)."""
    steps = (
        name or index or re.sub(r"\\(.)", r"\1", quoted)
        for name, index, quoted in _STEP.findall(path.removeprefix(ROOT))
    )
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)
