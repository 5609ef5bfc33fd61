"""How this package writes its tables down: as blocks of plain text, not as quoted lists.

Long tables are in the files of `tables/`, short ones beside the code that uses them.
"""

from __future__ import annotations

import re
from pathlib import Path

_TABLES = Path(__file__).parent / "tables"


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


def tables(name: str) -> dict[str, str]:
    """The blocks of `tables/NAME.txt` by their titles.

    A block begins with `=== title`, after which a colon and the names of its columns may follow.
    """
    blocks = {}
    for block in (_TABLES / f"{name}.txt").read_text(encoding="utf-8").split("=== ")[1:]:
        title, text = block.split("\n", 1)
        blocks[title.split(":")[0]] = text
    return blocks
