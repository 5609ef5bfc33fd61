"""Whether strings are of a format, in documents that are checked.

``jsonschema`` checks a format only where a library for it happens to be installed, and lets all
else pass. Here the patterns of ``formats`` decide where they are exact, and rules elsewhere.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import jsonschema

from grammar.schema import ecma, formats, hostnames

_Check = Callable[[str], bool]


def _by_pattern(name: str) -> _Check:
    def check(text: str) -> bool:
        return formats.matches(name, text)

    return check


_LEAP = re.compile(r"([0-9]{2}):([0-9]{2}):60(.*?)(?:Z|([+-])([0-9]{2}):([0-9]{2}))")


def _time(text: str) -> bool:
    text = text.upper()
    leap = _LEAP.fullmatch(text)
    if leap is None:
        return formats.matches("time", text)
    hour, minute, _, sign, hours, minutes = leap.groups(default="0")
    offset = int(hours) * 60 + int(minutes)
    utc = int(hour) * 60 + int(minute) + (offset if sign == "-" else -offset)
    return utc % 1440 == 1439 and formats.matches("time", text.replace(":60", ":59", 1))


def _date_time(text: str) -> bool:
    return formats.matches("date", text[:10]) and text[10:11] in ("T", "t") and _time(text[11:])


_MAX_EMAIL, _MAX_NAME = 254, 64  # octets
_NAME = re.compile(
    r"[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+(?:\.[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+)*"
    r'|"(?:[ !#-\[\]-~]|\\[ -~])*"'
)


def _email(text: str) -> bool:
    name, host = _parts(text)
    return _NAME.fullmatch(name) is not None and _is_host(host, hostnames.is_hostname)


def _idn_email(text: str) -> bool:
    name, host = _parts(text)
    host = unicodedata.normalize("NFC", host)
    in_ascii = _BEYOND_ASCII.sub("a", name)
    return _NAME.fullmatch(in_ascii) is not None and _is_host(host, hostnames.is_idn_hostname)


def _parts(text: str) -> tuple[str, str]:
    """The name and the host; empty if one is too long."""
    name, _, host = text.rpartition("@")
    fits = len(text.encode(errors="replace")) <= _MAX_EMAIL and len(name.encode()) <= _MAX_NAME
    return (name, host) if fits else ("", "")


def _is_host(text: str, is_name: _Check) -> bool:
    if not (text.startswith("[") and text.endswith("]")):
        return is_name(text)
    address = text[1:-1]
    if address.startswith("IPv6:"):
        return formats.matches("ipv6", address.removeprefix("IPv6:"))
    return formats.matches("ipv4", address)


_BEYOND_ASCII = re.compile("[\x80-\U0010ffff]")


_UP = re.compile(r"(?:0|[1-9][0-9]*)(#?)", re.ASCII)


def _relative_pointer(text: str) -> bool:
    up = _UP.match(text)
    if up is None:
        return False
    rest = text[up.end() :]
    return not rest if up[1] else formats.matches("json-pointer", rest)


# What Python has and ECMA-262 has not.
_OF_PYTHON = re.compile(r"\(\?(?:P|#|[aiLmsux]+\))|\\[aAZ]")


def _regex(text: str) -> bool:
    if _OF_PYTHON.search(text.replace("\\\\", "")) is not None:
        return False
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
    "idn-email": _idn_email,
    "hostname": hostnames.is_hostname,
    "idn-hostname": hostnames.is_idn_hostname,
    "relative-json-pointer": _relative_pointer,
    "regex": _regex,
}


def _of_strings(check: _Check) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or check(value)


CHECKER = jsonschema.FormatChecker(formats=())
"""A format that it does not know is an annotation."""
for _name, _check in _CHECKS.items():
    CHECKER.checks(_name)(_of_strings(_check))
