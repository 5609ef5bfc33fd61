"""Whether names of hosts are valid: RFC 1123 for those in ASCII, RFC 5890 to 5893 (IDNA 2008) for
others and for A-labels, which are names in Punycode.

Python's own codec ``idna`` is of the older IDNA 2003. The tables of RFC 5892 are derived, as it
says, from those of Unicode.
"""

from __future__ import annotations

import re
import unicodedata

_MAX_LENGTH = 253
_MAX_LABEL = 63
_LDH = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]*[0-9A-Za-z])?", re.ASCII)
_DOTS = re.compile("[.\u3002\uff0e\uff61]")
_LETTERS_AND_DIGITS = frozenset({"Ll", "Lu", "Lo", "Nd", "Lm", "Mn", "Mc"})
# Exceptions of RFC 5892, 2.6.
_ALWAYS = frozenset("\u00df\u03c2\u06fd\u06fe\u0f0b\u3007")
_NEVER = frozenset("\u0640\u07fa\u302e\u302f\u3031\u3032\u3033\u3034\u3035\u303b")
_OLD_HANGUL = re.compile("[\u1100-\u11ff\ua960-\ua97c\ud7b0-\ud7fb]")
_JOINERS = "\u200c\u200d"
_JOINS_ZWNJ = 9
"""The combining class of a virama."""
_RTL = frozenset({"R", "AL", "AN"})
_IN_RTL = frozenset({"R", "AL", "AN", "EN", "ES", "CS", "ET", "ON", "BN", "NSM"})
_IN_LTR = frozenset({"L", "EN", "ES", "CS", "ET", "ON", "BN", "NSM"})


def is_hostname(text: str) -> bool:
    """Whether it is the name of a host in ASCII."""
    labels = text.split(".")
    return len(text) <= _MAX_LENGTH and all(map(_is_ascii_label, labels))


def is_idn_hostname(text: str) -> bool:
    """Whether it is the name of a host, which may be in Unicode."""
    labels = _DOTS.split(text)
    written = [_a_label(label) for label in labels]
    if None in written:
        return False
    is_bidi = any(unicodedata.bidirectional(char) in _RTL for label in labels for char in label)
    return sum(len(label or "") + 1 for label in written) - 1 <= _MAX_LENGTH and not (
        is_bidi and not all(map(_is_bidi_label, labels))
    )


def _is_ascii_label(label: str) -> bool:
    if len(label) > _MAX_LABEL or _LDH.fullmatch(label) is None:
        return False
    if label[2:4] != "--":
        return True
    if label[:4].lower() != "xn--":
        return False
    try:
        name = label[4:].lower().encode("ascii").decode("punycode")
        again = name.encode("punycode").decode("ascii")
    except (UnicodeError, OverflowError, ValueError):
        return False
    return again == label[4:].lower() and not name.isascii() and _is_u_label(name)


def _a_label(label: str) -> str | None:
    """The label in ASCII, or None if it is not valid."""
    if label.isascii():
        return label if _is_ascii_label(label) else None
    if not _is_u_label(label):
        return None
    written = "xn--" + label.encode("punycode").decode("ascii")
    return written if len(written) <= _MAX_LABEL else None


def _is_u_label(label: str) -> bool:
    """Whether a label beyond ASCII is valid, by RFC 5891, 4.2.3."""
    return (
        unicodedata.normalize("NFC", label) == label
        and not (label.startswith("-") or label.endswith("-") or label[2:4] == "--")
        and not unicodedata.category(label[0]).startswith("M")
        and all(_is_allowed(label, i) for i in range(len(label)))
        and (
            not any(unicodedata.bidirectional(char) in _RTL for char in label)
            or _is_bidi_label(label)
        )
    )


def _is_allowed(label: str, place: int) -> bool:
    char = label[place]
    by_context = _by_context(label, place)
    if by_context is not None:
        return by_context
    if char in _ALWAYS or char == "-" or (char.isascii() and char.isalnum() and char.islower()):
        return True
    if char in _NEVER or _OLD_HANGUL.match(char) or (char.isascii() and not char.isdigit()):
        return False
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", char).casefold())
    return folded == char and unicodedata.category(char) in _LETTERS_AND_DIGITS


def _by_context(label: str, place: int) -> bool | None:
    """The rules of RFC 5892, appendix A; None for characters that have none."""
    char, before, after = label[place], label[:place], label[place + 1 :]
    if char in _JOINERS:
        virama = bool(before) and unicodedata.combining(before[-1]) == _JOINS_ZWNJ
        return virama or (char == _JOINERS[0] and _joins(before, after))
    match char:
        case "\u00b7":
            return before.endswith("l") and after.startswith("l")
        case "\u0375":
            return bool(after) and _script(after[0]) == "GREEK"
        case "\u05f3" | "\u05f4":
            return bool(before) and _script(before[-1]) == "HEBREW"
        case "\u30fb":
            return any(_script(c) in ("HIRAGANA", "KATAKANA", "CJK") for c in label if c != char)
    if "\u0660" <= char <= "\u0669":
        return not any("\u06f0" <= other <= "\u06f9" for other in label)
    if "\u06f0" <= char <= "\u06f9":
        return not any("\u0660" <= other <= "\u0669" for other in label)
    return None


def _script(char: str) -> str:
    return unicodedata.name(char, "").partition(" ")[0]


def _joins(before: str, after: str) -> bool:
    """Whether letters of a script that joins them stand on both sides."""
    left = next((c for c in reversed(before) if unicodedata.category(c) != "Mn"), "")
    right = next((c for c in after if unicodedata.category(c) != "Mn"), "")
    joining = ("ARABIC", "SYRIAC", "MONGOLIAN", "NKO", "MANDAIC", "ADLAM")
    return bool(left and right) and _script(left) in joining and _script(right) in joining


def _is_bidi_label(label: str) -> bool:
    """RFC 5893, 2."""
    if not label:
        return False
    kinds = [unicodedata.bidirectional(char) for char in label]
    ends = next((kind for kind in reversed(kinds) if kind != "NSM"), "")
    if kinds[0] in ("R", "AL"):
        mixed = "EN" in kinds and "AN" in kinds
        return set(kinds) <= _IN_RTL and ends in ("R", "AL", "EN", "AN") and not mixed
    return kinds[0] == "L" and set(kinds) <= _IN_LTR and ends in ("L", "EN")
