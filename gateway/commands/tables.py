"""Tables on a terminal; tab-separated lines in a pipe, for other programs."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table


def show(table: Table) -> None:
    """Print a table whose cells are all text."""
    console = Console()
    if console.is_terminal:
        console.print(table)
        return
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    for row in zip(*columns, strict=True):
        sys.stdout.write("\t".join(row) + "\n")
