"""Tables on a terminal; tab-separated lines in a pipe, for other programs."""

from __future__ import annotations

import sys
from datetime import datetime

from rich.console import Console
from rich.table import Table


def time_of(moment: datetime | None) -> str:
    """The text of a cell; empty for None."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def show(table: Table) -> None:
    """Print a table whose cells are all text."""
    console = Console()
    if console.is_terminal:
        for column in table.columns:
            column.overflow = "fold"  # half an id is of no use to anybody
        console.print(table)
        return
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    for row in zip(*columns, strict=True):
        sys.stdout.write("\t".join(row) + "\n")
