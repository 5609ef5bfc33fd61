"""Logs a training run to the terminal and to a file, and measures its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Log:
    """Prints lines with the seconds since the start; `stage` measures the time of a block."""

    def __init__(self, path: Path | None = None) -> None:
        self.stages: dict[str, float] = {}
        self._path = path
        self._start = time.monotonic()
        if path is not None:
            path.write_text("", encoding="utf-8")

    @property
    def seconds(self) -> float:
        """The seconds since the log was opened."""
        return time.monotonic() - self._start

    def __call__(self, text: str) -> None:
        line = f"[{self.seconds:6.1f} s] {text}"
        print(line, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds until the block ends, for whatever reason, to `stages[name]`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.monotonic() - start

    def summary(self) -> str:
        """A line for each stage, in the order of their beginnings, with its seconds and its
        share."""
        total = self.seconds
        rest = {"everything else": total - sum(self.stages.values())}
        return "\n".join(
            f"{name:<20}{seconds:8.1f} s {seconds / total:6.1%}"
            for name, seconds in {**self.stages, **rest, "in all": total}.items()
        )
