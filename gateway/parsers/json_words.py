"""Words that models write for values that JSON cannot express, as Python would."""

from __future__ import annotations

from gateway.parsers.json_strings import JsonStrings

_LITERALS = {
    "True": "true",
    "False": "false",
    **{
        sign + word: "null"
        for word in ("None", "NaN", "nan", "Infinity", "inf")
        for sign in ("", "-")
    },
}


class JsonWords:
    """Turns ``NaN``, ``None`` and the like into JSON's ``null``, and ``True`` into ``true``, in
    text that comes in pieces.

    ``null`` is what ``JSON.stringify`` writes for numbers that JSON has no notation for. Strings,
    and words that are unknown, stay as they are.
    """

    def __init__(self) -> None:
        self._word = ""  # letters, perhaps after a sign, that may go on
        self._strings = JsonStrings()

    def feed(self, text: str) -> str:
        """Translate a piece. A word at its end is held back until it is known to be whole."""
        strings = self._strings
        if strings.inside and not strings.escaped and '"' not in text and "\\" not in text:
            return text
        said: list[str] = []
        for char in text:
            if not strings.read(char):
                if char.isalpha() or (char == "-" and not self._word):
                    self._word += char
                    continue
                said.append(self.flush())
            said.append(char)
        return "".join(said)

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        word, self._word = self._word, ""
        return _LITERALS.get(word, word)


def translate(text: str) -> str:
    """As ``JsonWords``, for a whole text."""
    words = JsonWords()
    return words.feed(text) + words.flush()
