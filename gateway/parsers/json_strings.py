"""Where the strings of a JSON text begin and end."""

from __future__ import annotations


class JsonStrings:
    """Follows a JSON text character by character, as far as its strings go."""

    def __init__(self) -> None:
        self.inside = False
        """Whether the next character is one of a string, or the quote that closes it."""
        self.escaped = False
        """Whether a backslash stands before it."""

    def read(self, char: str) -> bool:
        """Read the next character; returns whether it was ``inside``."""
        if not self.inside:
            self.inside = char == '"'
            return False
        if self.escaped:
            self.escaped = False
        elif char == "\\":
            self.escaped = True
        elif char == '"':
            self.inside = False
        return True
