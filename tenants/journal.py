"""A file that holds settlements while the database is away, so that they outlive the process.

One JSON document per line, in the system's hands before the settlement counts as kept: so the death
of the process loses nothing. It is not synced to the disk, which would stop the event loop: a power
cut in the middle of an outage of the database may lose its last seconds. A line that was cut short
is dropped. What is in the file may be in the ledger too; writing it again is harmless, the ledger
knows its request.

Each process has a file of its own and holds a lock on it; ``adopt`` finds those of dead ones, and
those in which they counted what ran when they died (``tenants.progress``).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO
from uuid import uuid4

import msgspec

from tenants import progress
from tenants.limits import Price
from tenants.progress import Progress, Running
from tenants.types import UsageEvent

logger = logging.getLogger(__name__)

SUFFIX = ".usage"


class Journal:
    """This process's file in a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises ``OSError`` when the folder cannot be used."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # end users are named in it
        self._folder = folder
        self._size = 0
        self._file: IO[bytes] | None = None
        while self._file is None:  # somebody may adopt it between its birth and its lock
            self._path = folder / f"{uuid4().hex}{SUFFIX}"
            self._file = _locked(self._path)
        self._progress: Progress | None = None
        while self._progress is None:
            counted = Progress(folder)
            if _lock(counted.file, counted.path):
                self._progress = counted
            else:
                counted.close()

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be replayed."""
        return self._size == 0

    def begin(self, event: UsageEvent, price: Price) -> Running | None:
        """Count a request from now on: if this process dies, it is settled with what was
        counted."""
        assert self._progress is not None, "the journal is closed"
        return self._progress.begin(event, price)

    def append(self, events: Sequence[UsageEvent]) -> None:
        """Return when the events outlive the process. Raises ``OSError``: none of them does."""
        assert self._file is not None, "the journal is closed"
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        # Past the file's buffer, which would hold on to what a full disk did not take.
        fd, num_written = self._file.fileno(), 0
        try:
            while num_written < len(lines):
                num_written += os.write(fd, lines[num_written:])
        except OSError:
            os.ftruncate(fd, self._size)
            raise
        self._size += len(lines)

    def clear(self) -> None:
        """Empty the file: everything in it is in the ledger."""
        assert self._file is not None, "the journal is closed"
        if self._size > 0:
            self._file.truncate(0)
            self._file.seek(0)
            self._size = 0

    def adopt(self) -> Iterator[UsageEvent]:
        """Take over the settlements that dead processes left in the folder: each is in this file
        once it is yielded. Raises ``OSError``; what was not yielded is still where it was."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            file = None if path == self._path else _locked(path)
            if file is None:
                continue
            with file:
                file.seek(0)
                events = list(_events(file, path))
                self.append(events)
                path.unlink(missing_ok=True)
            yield from events
        yield from self._adopt_running()

    def _adopt_running(self) -> Iterator[UsageEvent]:
        assert self._progress is not None, "the journal is closed"
        for path in sorted(self._folder.glob(f"*{progress.SUFFIX}")):
            file = None if path == self._progress.path else _locked(path)
            if file is None:
                continue
            with file:
                events = progress.read(file)
                self.append(events)
                path.unlink(missing_ok=True)
            yield from events

    def close(self) -> None:
        """Close the file; an empty one is deleted. Idempotent."""
        if self._file is not None:
            if self.is_empty:
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None
        if self._progress is not None:
            self._progress.close()
            self._progress = None


def _locked(path: Path) -> IO[bytes] | None:
    """The file, locked for as long as it is open; None when another process holds it, or it is
    gone."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("a+b"))
        if not _lock(file, path):
            return None
        stack.pop_all()
        return file


def _lock(file: IO[bytes], path: Path) -> bool:
    """Lock an open file; False when another process holds it, or it is gone."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _events(file: IO[bytes], path: Path) -> Iterator[UsageEvent]:
    for number, line in enumerate(file, start=1):
        try:
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line, type=UsageEvent)
                continue
        except (msgspec.DecodeError, ValueError) as error:
            logger.error("%s, line %d is no settlement (%s): %r", path, number, error, line)
            continue
        logger.warning("%s, line %d was cut short and is dropped: %r", path, number, line)
