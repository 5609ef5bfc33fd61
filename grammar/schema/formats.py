"""The formats of draft 2020-12, as patterns. Sources: RFC 3339 (dates, times, durations), RFC 5321
and RFC 6531 (e-mail), RFC 1123, RFC 1035 and RFC 5891 (host names), RFC 2673 and RFC 4291
(addresses), RFC 3986 and RFC 3987 (URIs, IRIs), RFC 6570 (templates), RFC 6901 (JSON pointers),
RFC 9562 (UUIDs).

Some of them cannot be written as a pattern. Theirs admits a subset, of which every string is valid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from grammar.schema.languages import Language, all_but
from grammar.schema.patterns import Pattern


@dataclass(frozen=True, slots=True)
class Format:
    pattern: Pattern
    max_length: int | None = None
    """Maximal length of the whole string in characters, if the pattern does not imply it."""
    left_out: str = ""
    """What is valid and is not in the pattern; empty if it is exact."""

    @property
    def is_exact(self) -> bool:
        return not self.left_out

    @property
    def language(self) -> Language:
        if self.max_length is None:
            return self.pattern.language
        return self.pattern.language & Language.of_chars(all_but(())).repeated(0, self.max_length)


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
_FRACTION = r"(?:\.\d+)?"


def _leap_seconds() -> str:
    """23:59:60 in UTC as local time, at offsets of whole and half hours."""
    hours: list[str] = []
    for hour in range(24):
        ahead, behind = (hour + 1) % 24, (23 - hour) % 24
        whole_hours = rf"59:60{_FRACTION}(?:\+{ahead:02}:00|-{behind:02}:00)"
        hours.append(rf"{hour:02}:(?:{whole_hours}|29:60(?:\+{hour:02}:30|-{behind:02}:30))")
    return rf"(?:23:59:60{_FRACTION}[Zz]|{'|'.join(hours)})"


_TIME = rf"(?:{_HOUR_MINUTE}:[0-5]\d{_FRACTION}(?:[Zz]|[+-]{_HOUR_MINUTE})|{_leap_seconds()})"

_DURATION_TIME = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION_DATE = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"
_DURATION = f"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|\\d+W)"

# Two hyphens in the third and fourth place are of A-labels, and whether Punycode decodes to a valid
# name cannot be told by a pattern.
_END = "[0-9A-Za-z]"
_INNER = "[0-9A-Za-z-]"
_LABEL = (
    f"{_END}(?:{_INNER}{{0,2}}{_END}|{_INNER}(?:{_END}{_INNER}|-{_END}){_INNER}{{0,58}}{_END})?"
)
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
# Letters that are valid in every place, and whose A-labels are at most six times as long.
_LETTERS = (
    "\u00df-\u00f6\u00f8-\u00ff\u03ac-\u03ce\u0430-\u044f\u3041-\u3094\u30a1-\u30fa"
    "\u4e00-\u9fa5\uac00-\ud7a3"
)
_IDN_LABEL = f"(?:[0-9a-z{_LETTERS}]{{1,10}}|[0-9A-Za-z]{{1,20}})"
_IDN_HOSTNAME = f"(?:{_HOSTNAME}|{_IDN_LABEL}(?:[.\u3002\uff0e\uff61]{_IDN_LABEL}){{0,2}})"

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

_UTF8 = "\u0080-\ud7ff\ue000-\U0010ffff"
# Without controls, surrogates, private use and what is no character.
BEYOND_ASCII = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    f"{chr(start)}-{chr((start | 0xFFFF) - 2)}"
    for start in (*range(0x10000, 0xE0000, 0x10000), 0xE1000)
)


def _email(more: str, most: int, host: str) -> str:
    """An address whose name has at most ``4 * most`` characters, of which some may be of
    ``more``."""
    char = rf"[0-9A-Za-z!#$%&'*+/=?^_`{{|}}~{more}-]"
    long = rf"{char}{{1,{4 * most}}}"
    words = rf"{char}{{1,{most}}}(?:\.{char}{{1,{most}}}){{1,2}}"
    dots = rf"{char}(?:\.?{char}){{0,{2 * most - 1}}}"
    quoted = rf'"(?:[ !#-\[\]-~{more}]|\\[ -~]){{0,{2 * most - 1}}}"'
    literal = rf"\[(?:{_IPV4}|IPv6:{_IPV6})\]"
    return rf"(?:{long}|{words}|{dots}|{quoted})@(?:{host}|{literal})"


_ESCAPED_BYTE = "%[0-9A-Fa-f]{2}"


def _uri(more: str) -> tuple[str, str]:
    """A URI and a relative reference, which may hold the characters ``more`` as well."""
    path_char = rf"(?:[0-9A-Za-z_.~!$&'()*+,;=:@{more}-]|{_ESCAPED_BYTE})"
    first_char = rf"(?:[0-9A-Za-z_.~!$&'()*+,;=@{more}-]|{_ESCAPED_BYTE})"
    user_char = rf"(?:[0-9A-Za-z_.~!$&'()*+,;=:{more}-]|{_ESCAPED_BYTE})"
    name_char = rf"(?:[0-9A-Za-z_.~!$&'()*+,;={more}-]|{_ESCAPED_BYTE})"
    future = r"[Vv][0-9A-Fa-f]+\.[0-9A-Za-z_.~!$&'()*+,;=:-]+"
    authority = rf"(?:{user_char}*@)?(?:\[(?:{_IPV6}|{future})\]|{name_char}*)(?::\d*)?"
    private = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd" if more else ""
    tail = rf"(?:\?(?:{path_char}|[/?{private}])*)?(?:#(?:{path_char}|[/?])*)?"
    segments = f"(?:/{path_char}*)*"
    rooted = f"//{authority}{segments}|/(?:{path_char}+{segments})?"
    uri = rf"[A-Za-z][0-9A-Za-z+.-]*:(?:{rooted}|{path_char}+{segments})?{tail}"
    return uri, f"(?:{rooted}|{first_char}+{segments})?{tail}"


_URI, _RELATIVE = _uri("")
_IRI, _RELATIVE_IRI = _uri(BEYOND_ASCII)

_NAME_CHAR = rf"(?:[0-9A-Za-z_]|{_ESCAPED_BYTE})"
_VARIABLE = rf"{_NAME_CHAR}(?:\.?{_NAME_CHAR})*(?::[1-9]\d{{0,3}}|\*)?"
_TEMPLATE = (
    rf"(?:[!#$&'(-;=?-\[\]_a-z~{BEYOND_ASCII}]|{_ESCAPED_BYTE}"
    rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)
_POINTER = "(?:/(?:[^/~]|~[01])*)*"


def _expression() -> str:
    """Regular expressions without assertions, and with groups three deep."""
    plain = r"[ !#%&',/0-9:;<=>@A-Z_`a-z~]|\\[dDwWsS.*+?^$\\/|()\[\]{}nrt]"
    char = r"[!-,./0-9:-@A-Z_`a-z{-~ ]|\\[dwsDWS\[\]\\^.*+?$()/-]"
    set_ = rf"\[\^?(?:{char}|[A-Z]-Z|[a-z]-z|[0-9]-9)+-?\]"
    body = ""
    for _ in range(3):
        group = rf"|\((?:\?:)?{body}\)" if body else ""
        item = rf"(?:{plain}|\.|{set_}{group})[*+?]?"
        body = rf"(?:{item})*(?:\|(?:{item})*)*"
    return rf"\^?{body}\$?"


_NO_LEAP = "leap seconds at offsets of a quarter of an hour, and their fractions at half an hour"
_NO_A_LABELS = "A-labels (`xn--`)"
_SOURCES: dict[str, tuple[str, int | None, str]] = {
    "date": (_DATE, None, ""),
    "time": (_TIME, None, _NO_LEAP),
    "date-time": (f"{_DATE}[Tt]{_TIME}", None, _NO_LEAP),
    "duration": (_DURATION, None, ""),
    "email": (_email("", 16, _HOSTNAME), 254, f"{_NO_A_LABELS}, long names with dots"),
    "idn-email": (
        f"(?:{_email('', 16, _HOSTNAME)}|{_email(_UTF8, 4, _IDN_HOSTNAME)})",
        254,
        "long names beyond ASCII, and what `idn-hostname` leaves out",
    ),
    "hostname": (_HOSTNAME, 253, _NO_A_LABELS),
    "idn-hostname": (_IDN_HOSTNAME, 253, "A-labels, long labels, and rarer scripts"),
    "ipv4": (_IPV4, None, ""),
    "ipv6": (_IPV6, None, ""),
    "uuid": (_UUID, None, ""),
    "uri": (_URI, None, ""),
    "uri-reference": (f"(?:{_URI}|{_RELATIVE})", None, ""),
    "iri": (_IRI, None, ""),
    "iri-reference": (f"(?:{_IRI}|{_RELATIVE_IRI})", None, ""),
    "uri-template": (_TEMPLATE, None, ""),
    "json-pointer": (_POINTER, None, ""),
    "relative-json-pointer": (rf"(?:0|[1-9]\d*)(?:#|{_POINTER})", None, ""),
    "regex": (_expression(), None, "assertions, counts, and groups more than two deep"),
}

ENFORCED = frozenset(_SOURCES)
"""All formats of the standard. Others are annotations."""


@cache
def lookup(name: str) -> Format | None:
    """The format of that name, or None if the standard has none."""
    if name not in _SOURCES:
        return None
    source, max_length, left_out = _SOURCES[name]
    return Format(Pattern.parse(f"^{source}$"), max_length, left_out)


def matches(name: str, text: str) -> bool:
    """Whether ``text`` could be generated in the format, one of ``ENFORCED``."""
    source, max_length, _ = _SOURCES[name]
    fits = max_length is None or len(text) <= max_length
    return fits and _compiled(source).fullmatch(text) is not None


@cache
def _compiled(source: str) -> re.Pattern[str]:
    return re.compile(source, re.ASCII)
