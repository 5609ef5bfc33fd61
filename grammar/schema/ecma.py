"""Searches for patterns of JSON Schema, where keywords are checked and not enforced.

Where Python means another set of characters than ECMA-262 (``\\s``, ``\\w``, ``\\d``, ``.`` and
``$``), it is told ECMA's. Patterns that its ``re`` can then read are run by it. ECMA-262 allows
more, such as Unicode properties and named groups: those patterns are run by ``regex``. It writes
out repetitions of groups, which can take all memory, so a client's pattern is compiled only where
memory is limited; ``check`` does not compile.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

import regex

from grammar.schema.languages import Ranges, all_but, union

_SPACES = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"
_SPACE = union([*((ord(char), ord(char)) for char in _SPACES), (0x2000, 0x200A)])
_DIGIT: Ranges = ((0x30, 0x39),)
_WORD = union([*_DIGIT, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
CLASSES: dict[str, Ranges] = {
    **{"d": _DIGIT, "w": _WORD, "s": _SPACE},
    **{"D": all_but(_DIGIT), "W": all_but(_WORD), "S": all_but(_SPACE)},
}
DOT = all_but(((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)))


class Searches(Protocol):
    """A compiled pattern."""

    def search(self, string: str, /) -> object | None: ...


class Unreadable(ValueError):
    """The pattern cannot be read."""


def check(source: str) -> None:
    """Raise ``Unreadable`` if the pattern is not valid, with the time and memory that ``re`` takes.

    A pattern that passes may still name a property that ``compiled`` does not know.
    """
    try:
        _compiled_by_python(source)
    except (re.error, OverflowError, RecursionError) as error:
        try:
            _compiled_by_python(_respelt(source, _STAND_INS))
        except (re.error, OverflowError, RecursionError):
            raise Unreadable(str(error)) from None


@lru_cache(maxsize=512)
def compiled(source: str) -> Searches:
    """Compile a pattern; only in a worker. Raises ``Unreadable``."""
    try:
        return _compiled_by_python(_respelt(source, {}))
    except (re.error, OverflowError, RecursionError) as error:
        try:
            found: Searches = regex.compile(_respelt(source, {}))
            return found
        except (regex.error, ValueError, OverflowError, RecursionError):
            raise Unreadable(str(error)) from None


def matches(source: str, text: str) -> bool:
    """Whether ``text`` contains a match of the pattern. Only in a worker. Raises ``Unreadable``."""
    return compiled(source).search(text) is not None


def _compiled_by_python(source: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # doubtful, yet valid
        return re.compile(source, re.ASCII)  # for word boundaries


# A class first and as a whole: what stands in it is no class of its own.
_SPELT_OTHERWISE = re.compile(
    r"""
      (?P<none> \[\] ) | (?P<any> \[\^\] ) | (?P<class> \[ (?: \\. | [^\\\]] )+ \] )
    | \\ (?: u\{ 0* (?P<point> [0-9A-Fa-f]{1,6} ) \} | c (?P<control> [A-Za-z] )
           | k< (?P<name> \w+ ) > | (?P<property> [pP] \{ [\w=]+ \} ) | (?P<set> [dDwWsS] ) | . )
    | (?P<dot> \. ) | (?P<end> \$ )
    | \(\?< (?: (?P<behind> = ) | (?P<not_behind> ! ) | (?P<named> (?=\w) ) )
    """,
    re.VERBOSE | re.DOTALL,
)
_STAND_INS = {"property": r"\w", "behind": "(?=", "not_behind": "(?!", "named": "(?P<"}
"""What has the same form, and is known to ``re``."""


def _respelt(source: str, stand_ins: Mapping[str, str], *, in_class: bool = False) -> str:
    def respelt(found: re.Match[str]) -> str:
        kind = found.lastgroup or ""
        if kind in stand_ins:
            return stand_ins[kind]
        match kind:
            case "none":
                return "(?!)"
            case "any":
                return r"[\s\S]"
            case "class":
                return f"[{_respelt(found[0][1:-1], stand_ins, in_class=True)}]"
            case "point":
                return rf"\U{int(found['point'], 16):08x}"
            case "control":
                return rf"\x{ord(found['control']) % 32:02x}"
            case "name":
                return f"(?P={found['name']})"
            case "set":
                inside = _in_python(CLASSES[found["set"]])
                return inside if in_class else f"[{inside}]"
            case "dot" if not in_class:
                return f"[{_in_python(DOT)}]"
            case "end" if not in_class:
                return r"\Z"
        return found[0]

    return _SPELT_OTHERWISE.sub(respelt, source)


def _in_python(ranges: Ranges) -> str:
    return "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in ranges)
