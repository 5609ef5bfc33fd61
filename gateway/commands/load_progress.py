"""Progress of loading a model: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from engine.messages import LoadProgress

_LINE_STEP = 0.25


class LoadLines:
    """A line for each new message, and for each quarter of a long one."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last = LoadProgress("", 0.0)

    def __call__(self, progress: LoadProgress) -> None:
        advanced = progress.fraction - self._last.fraction
        if progress.message == self._last.message and advanced < _LINE_STEP:
            return
        self._last = progress
        self._write(f"{progress.message} ({progress.fraction:.0%})")


class LoadBar:
    """A progress bar that disappears when loading is over."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=1.0)
        atexit.register(self._bar.stop)  # a failed load must not leave the cursor hidden

    def __call__(self, progress: LoadProgress) -> None:
        if progress.fraction == 0:  # a restarted engine loads again
            self._bar.reset(self._task)
        self._bar.start()
        self._bar.update(self._task, description=progress.message, completed=progress.fraction)
        if progress.fraction >= 1:
            self._bar.stop()


def reporter(write: Callable[[str], None]) -> Callable[[LoadProgress], None]:
    """write: prints a line, where stderr is not a terminal."""
    console = Console(stderr=True)
    return LoadBar(console) if sys.stderr.isatty() else LoadLines(write)
