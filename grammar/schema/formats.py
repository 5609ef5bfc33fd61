"""The formats that can be enforced, as patterns.

Engines differ in what they take for a date. With these patterns all agree, and no string that they
accept fails the checks of ``jsonschema``. Sources: RFC 3339 (dates, times, durations), RFC 5321
without quoted local parts, RFC 1123 and RFC 1035 (host names), RFC 2673 and RFC 4291 (addresses),
RFC 3986 (URIs), RFC 6901 (JSON pointers), RFC 9562 (UUIDs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from grammar.schema.patterns import Pattern


@dataclass(frozen=True, slots=True)
class Format:
    pattern: Pattern
    max_length: int | None = None
    """Maximal length of the whole string in characters, if the pattern does not imply it."""


# Years 0001 to 9999; 29 February in leap years only.
_YEAR = r"(?:\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})"
_LEAP_YEAR = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = r"(?:[01]\d|2[0-3]):[0-5]\d"
# Without leap seconds, because a pattern cannot tell when there is one.
_TIME = rf"{_HOUR_MINUTE}:[0-5]\d(?:\.\d{{1,9}})?(?:Z|[+-]{_HOUR_MINUTE})"

_DURATION_TIME = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION_DATE = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"
_DURATION = f"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|\\d+W)"

_LABEL = r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = r"[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM})*@{_HOSTNAME}"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d{2}|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = r"[0-9A-Fa-f]{1,4}"
_IPV6 = "(?:{})".format(
    "|".join(
        [
            f"(?:{_HEX}:){{7}}{_HEX}",
            f"(?:{_HEX}:){{1,7}}:",
            *(f"(?:{_HEX}:){{1,{7 - n}}}(?::{_HEX}){{1,{n}}}" for n in range(1, 7)),
            f":(?::{_HEX}){{1,7}}",
            "::",
            # The last two groups as an IPv4 address.
            f"(?:{_HEX}:){{6}}{_IPV4}",
            f"(?:{_HEX}:){{1,5}}:{_IPV4}",
            *(f"(?:{_HEX}:){{1,{5 - n}}}(?::{_HEX}){{1,{n}}}:{_IPV4}" for n in range(1, 5)),
            f"::(?:{_HEX}:){{0,5}}{_IPV4}",
        ]
    )
)
_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"

_ESCAPED_BYTE = "%[0-9A-Fa-f]{2}"
_REG_NAME_CHAR = rf"(?:[0-9A-Za-z_.~!$&'()*+,;=-]|{_ESCAPED_BYTE})"
_PATH_CHAR = rf"(?:[0-9A-Za-z_.~!$&'()*+,;=:@-]|{_ESCAPED_BYTE})"
_FIRST_CHAR = rf"(?:[0-9A-Za-z_.~!$&'()*+,;=@-]|{_ESCAPED_BYTE})"
_USER_CHAR = rf"(?:[0-9A-Za-z_.~!$&'()*+,;=:-]|{_ESCAPED_BYTE})"
_AUTHORITY = rf"(?:{_USER_CHAR}*@)?(?:\[{_IPV6}\]|{_REG_NAME_CHAR}*)(?::\d*)?"
_TAIL = rf"(?:\?(?:{_PATH_CHAR}|[/?])*)?(?:#(?:{_PATH_CHAR}|[/?])*)?"
_SEGMENTS = f"(?:/{_PATH_CHAR}*)*"
_ROOTED = f"//{_AUTHORITY}{_SEGMENTS}|/(?:{_PATH_CHAR}+{_SEGMENTS})?"
_URI = rf"[A-Za-z][0-9A-Za-z+.-]*:(?:{_ROOTED}|{_PATH_CHAR}+{_SEGMENTS})?{_TAIL}"
_RELATIVE = f"(?:{_ROOTED}|{_FIRST_CHAR}+{_SEGMENTS})?{_TAIL}"


_SOURCES: dict[str, tuple[str, int | None]] = {
    "date": (_DATE, None),
    "time": (_TIME, None),
    "date-time": (f"{_DATE}T{_TIME}", None),
    "duration": (_DURATION, None),
    "email": (_EMAIL, 254),
    "hostname": (_HOSTNAME, 253),
    "ipv4": (_IPV4, None),
    "ipv6": (_IPV6, None),
    "uuid": (_UUID, None),
    "uri": (_URI, None),
    "uri-reference": (f"(?:{_URI}|{_RELATIVE})", None),
    "json-pointer": ("(?:/(?:[^/~]|~[01])*)*", None),
}

ENFORCED = frozenset(_SOURCES)


@cache
def lookup(name: str) -> Format | None:
    """The format of that name, or None if it cannot be enforced."""
    if name not in _SOURCES:
        return None
    source, max_length = _SOURCES[name]
    return Format(Pattern.parse(f"^{source}$"), max_length)


def matches(name: str, text: str) -> bool:
    """Whether ``text`` could be generated in the format, one of ``ENFORCED``."""
    source, max_length = _SOURCES[name]
    fits = max_length is None or len(text) <= max_length
    return fits and _compiled(source).fullmatch(text) is not None


@cache
def _compiled(source: str) -> re.Pattern[str]:
    return re.compile(source, re.ASCII)
