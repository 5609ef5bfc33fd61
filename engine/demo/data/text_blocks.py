"""How this package writes its tables down: as blocks of plain text, not as quoted lists."""

from __future__ import annotations

import re


def word_list(text: str) -> list[str]:
    """The words of a block, parted by white space."""
    return text.split()


def phrase_list(text: str) -> tuple[str, ...]:
    """The phrases of a block, parted by `|` or by the ends of lines."""
    return tuple(phrase for row in rows(text) for phrase in row)


def rows(text: str) -> list[tuple[str, ...]]:
    """The lines of a block, each cut at `|` into its columns.

    A line that starts with `|` goes on with the row above it.
    """
    lines = re.sub(r"\n\s*\|", "|", text.strip()).splitlines()
    return [tuple(cell.strip() for cell in line.split("|")) for line in lines]
