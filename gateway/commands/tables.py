"""Tables on a terminal; tab-separated lines in a pipe, for other programs."""

from __future__ import annotations

import sys
from datetime import datetime


def time_of(moment: datetime | None) -> str:
    """The text of a cell; empty for None."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


class Table:
    """Rows of text under titles. ``numbers``: further titles, of columns that are flush right."""

    def __init__(self, *titles: str, numbers: tuple[str, ...] = (), caption: str = "") -> None:
        self._titles = titles
        self._numbers = numbers
        self._caption = caption
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        self._rows.append(cells)

    def show(self) -> None:
        from rich.console import Console  # Help is shown without it.
        from rich.table import Table as RichTable

        console = Console()
        if not console.is_terminal:
            sys.stdout.writelines("\t".join(row) + "\n" for row in self._rows)
            return
        table = RichTable(caption=self._caption or None)
        for title in (*self._titles, *self._numbers):
            # Half an id is of no use to anybody.
            table.add_column(
                title, justify="right" if title in self._numbers else "left", overflow="fold"
            )
        for row in self._rows:
            table.add_row(*row)
        console.print(table)
