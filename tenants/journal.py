"""A file of settlements that wait while the database is away, so that they outlive the process.

It has one JSON document in each line, which the kernel has before the settlement counts as kept. So
nothing is lost when the process dies. The file is not synced to the disk, because that would block
the event loop: a power failure during an outage of the database may lose the last seconds. A line
that is cut short is dropped. An event in the file may also be in the ledger; writing it again
changes nothing.

Each process has its own file, and holds a lock on it. ``adopt`` finds the files of dead processes,
and those in which they counted the requests that ran when they died (``tenants.progress``).
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
        """Create this process's file in ``folder``. Raises ``OSError`` if that cannot be used."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # end users are named in it
        self._folder = folder
        self._size = 0
        self._file: IO[bytes] | None = None
        # Another process may adopt the file after it was created and before it is locked.
        while self._file is None:
            self._path = folder / f"{uuid4().hex}{SUFFIX}"
            self._file = _locked(self._path)
        self._progress: Progress | None = None
        while self._progress is None:
            try:
                counted = Progress(folder)
            except OSError:
                self.close()
                raise
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
        """Write events, so that they outlive the process. Raises ``OSError``, with none written."""
        assert self._file is not None, "the journal is closed"
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        # Not through Python's buffer, which would keep the bytes that a full disk did not take.
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
            self._size = 0

    def adopt(self) -> Iterator[UsageEvent]:
        """Take over the settlements that dead processes left in the folder. Each is in this file
        when it is yielded. Raises ``OSError``; those not yielded are still in their files."""
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
    """The file, opened and locked; None if another process has locked it, or it does not exist."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("a+b"))
        if not _lock(file, path):
            return None
        stack.pop_all()
        return file


def _lock(file: IO[bytes], path: Path) -> bool:
    """Lock an open file; False if another process has locked or removed it."""
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
