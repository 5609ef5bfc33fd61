"""Whether strings are of a format, in documents that are checked.

``jsonschema`` checks a format only where a library for it happens to be installed, and lets all
else pass. Here the patterns of ``formats`` decide, and what those leave out for generation is
added: leap seconds and lower case (RFC 3339), quoted names and addresses (RFC 5321), characters
beyond ASCII (RFC 3987, RFC 6531), templates (RFC 6570).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import jsonschema

from grammar.schema import ecma, formats

_Check = Callable[[str], bool]


def _by_pattern(name: str) -> _Check:
    def check(text: str) -> bool:
        return formats.matches(name, text)

    return check


_LONG_FRACTION = re.compile(r"(\.[0-9]{9})[0-9]+")
_LEAP = re.compile(r"([0-9]{2}):([0-9]{2}):60(.*?)(?:Z|([+-])([0-9]{2}):([0-9]{2}))")


def _time(text: str) -> bool:
    text = _LONG_FRACTION.sub(r"\1", text.upper())
    leap = _LEAP.fullmatch(text)
    if leap is None:
        return formats.matches("time", text)
    hour, minute, _, sign, hours, minutes = leap.groups(default="0")
    offset = int(hours) * 60 + int(minutes)
    utc = int(hour) * 60 + int(minute) + (offset if sign == "-" else -offset)
    return utc % 1440 == 1439 and formats.matches("time", text.replace(":60", ":59", 1))


def _date_time(text: str) -> bool:
    return formats.matches("date", text[:10]) and text[10:11] in ("T", "t") and _time(text[11:])


_QUOTED = re.compile(r'"(?:[ !#-\[\]-~]|\\[ -~])*"')


def _email(text: str) -> bool:
    name, _, host = text.rpartition("@")
    if not formats.matches("email", f"{name}@a") and _QUOTED.fullmatch(name) is None:
        return False
    if not (host.startswith("[") and host.endswith("]")):
        return formats.matches("hostname", host)
    address = host[1:-1]
    if address.startswith("IPv6:"):
        return formats.matches("ipv6", address.removeprefix("IPv6:"))
    return formats.matches("ipv4", address)


# Without controls, surrogates, private use and what is no character.
_BEYOND_ASCII = re.compile(
    "[\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
    + "".join(f"{chr(plane << 16)}-{chr((plane << 16) + 0xFFFD)}" for plane in range(1, 15))
    + "]"
)


def _beyond_ascii(check: _Check, stand_in: str) -> _Check:
    """The check for a format that has characters beyond ASCII wherever another has ``stand_in``."""
    return lambda text: check(_BEYOND_ASCII.sub(stand_in, text))


_VARIABLE = r"(?:\w|%[0-9A-Fa-f]{2})(?:\.?(?:\w|%[0-9A-Fa-f]{2}))*(?::[1-9]\d{0,3}|\*)?"
_TEMPLATE = re.compile(
    rf"(?:[!#$&-;=?-\[\]_a-z~]|%[0-9A-Fa-f]{{2}}"
    rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*",
    re.ASCII,
)
_UP = re.compile(r"(?:0|[1-9][0-9]*)(#?)", re.ASCII)


def _template(text: str) -> bool:
    return _TEMPLATE.fullmatch(text) is not None


def _relative_pointer(text: str) -> bool:
    up = _UP.match(text)
    if up is None:
        return False
    rest = text[up.end() :]
    return not rest if up[1] else formats.matches("json-pointer", rest)


def _regex(text: str) -> bool:
    try:
        ecma.check(text)
    except ecma.Unreadable:
        return False
    return True


_CHECKS: dict[str, _Check] = {
    **{name: _by_pattern(name) for name in formats.ENFORCED},
    "time": _time,
    "date-time": _date_time,
    "email": _email,
    "idn-email": _beyond_ascii(_email, "a"),
    "iri": _beyond_ascii(_by_pattern("uri"), "~"),
    "iri-reference": _beyond_ascii(_by_pattern("uri-reference"), "~"),
    "uri-template": _beyond_ascii(_template, "~"),
    "relative-json-pointer": _relative_pointer,
    "regex": _regex,
}


def _of_strings(check: _Check) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or check(value)


CHECKER = jsonschema.FormatChecker(
    # By Unicode's tables, which come with HTTP clients.
    formats=[name for name in ("idn-hostname",) if name in jsonschema.FormatChecker.checkers]
)
"""A format that it does not know is an annotation."""
for _name, _check in _CHECKS.items():
    CHECKER.checks(_name)(_of_strings(_check))
