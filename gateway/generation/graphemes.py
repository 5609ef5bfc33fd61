"""Keeps grapheme clusters (UAX #29) in one piece: what a reader sees as one character.

The code points of an emoji of a family, of a flag, or of a letter with its vowel signs come as
separate tokens, and alone they would flicker or be drawn as something else. Only the last cluster
of a text can be incomplete, and only in some scripts and symbols, so most text passes at once.
"""

from __future__ import annotations

import regex

_CLUSTER = regex.compile(r"\X")
_MAY_GROW = regex.compile(
    r"[\p{Extended_Pictographic}\p{Regional_Indicator}\p{Emoji_Modifier}\p{M}\u200d"
    r"\p{Devanagari}\p{Bengali}\p{Gurmukhi}\p{Gujarati}\p{Oriya}\p{Tamil}\p{Telugu}\p{Kannada}"
    r"\p{Malayalam}\p{Sinhala}\p{Thai}\p{Lao}\p{Tibetan}\p{Myanmar}\p{Khmer}]"
)
_FIRST_TO_GROW = "\u0300"
_LONGEST = 64
"""Code points that are held back at most: a text may consist of nothing but combining marks."""


class GraphemeGate:
    """Holds back the last cluster of one answer while it may still grow."""

    def __init__(self) -> None:
        self._held = ""

    @property
    def is_holding(self) -> bool:
        """Whether something is held back."""
        return bool(self._held)

    def push(self, text: str) -> str:
        """Take the next text, and return all but a last cluster that may grow."""
        if not self._held and text[-1:] < _FIRST_TO_GROW:
            return text
        text = self._held + text
        self._held = ""
        if _MAY_GROW.match(text[-1:]) is None:
            return text
        size = len(_CLUSTER.findall(text[-_LONGEST:])[-1])
        if size < _LONGEST:
            text, self._held = text[:-size], text[-size:]
        return text

    def finish(self) -> str:
        """Return what was held back, at the end of the answer."""
        held, self._held = self._held, ""
        return held
