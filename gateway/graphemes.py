"""Keeps what a reader sees as one character in one piece, though it be several code points.

A family, a flag, a letter with its vowel signs: their parts are tokens of their own, and shown by
themselves they flicker, or are drawn as something else. Only the last cluster can be unfinished,
and only where its kind grows: most text passes at once.
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
"""Of what is held back; some text is nothing but marks."""


class GraphemeGate:
    """Incremental, one per answer."""

    def __init__(self) -> None:
        self._held = ""

    @property
    def is_holding(self) -> bool:
        """Something is held back."""
        return bool(self._held)

    def push(self, text: str) -> str:
        """All but a last cluster that may grow."""
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
        """What was held back: nothing follows."""
        held, self._held = self._held, ""
        return held
