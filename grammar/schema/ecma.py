"""Patterns of JSON Schema as a search runs them: where keywords are checked, not generated.

Python's ``re`` runs what it can read. ECMA-262 allows more, Unicode properties and named groups
first of all: that is run by ``regex``, which reads the most of it, and is told the rest in its own
spelling.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Protocol

import regex


class Searches(Protocol):
    """A compiled pattern."""

    def search(self, string: str, /) -> object | None: ...


class Unreadable(ValueError):
    """Neither library can read the pattern."""


@lru_cache(maxsize=512)
def compiled(source: str) -> Searches:
    """Raises ``Unreadable``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # doubtful, yet valid
        try:
            return re.compile(source)
        except (re.error, OverflowError, RecursionError) as error:
            try:
                found: Searches = regex.compile(_SPELT_OTHERWISE.sub(_respelt, source))
                return found
            except (regex.error, ValueError, OverflowError, RecursionError):
                raise Unreadable(str(error)) from None


def matches(source: str, text: str) -> bool:
    """Whether the pattern is found in ``text``. Raises ``Unreadable``."""
    return compiled(source).search(text) is not None


# A class first and as a whole: what stands in it is no class of its own.
_SPELT_OTHERWISE = re.compile(
    r"""
      (?P<none> \[\] ) | (?P<any> \[\^\] ) | (?P<class> \[ (?: \\. | [^\\\]] )+ \] )
    | \\ (?: u\{ 0* (?P<point> [0-9A-Fa-f]{1,6} ) \} | c (?P<control> [A-Za-z] )
           | k< (?P<name> \w+ ) > | . )
    """,
    re.VERBOSE | re.DOTALL,
)


def _respelt(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "none":
            return "(?!)"
        case "any":
            return r"[\s\S]"
        case "class":
            return f"[{_SPELT_OTHERWISE.sub(_respelt, found[0][1:-1])}]"
        case "point":
            return rf"\U{int(found['point'], 16):08x}"
        case "control":
            return rf"\x{ord(found['control']) % 32:02x}"
        case "name":
            return f"(?P={found['name']})"
    return found[0]
