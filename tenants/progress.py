"""Counts the tokens of running requests in a file, so that they are charged if the process dies.

The file is mapped into memory and has a slot for each request. To count is to store a number, which
the kernel keeps even if the process is killed. Another process that finds the file unlocked settles
the requests in it (``Journal.adopt``).

    slot    u32 length | u32 generated | u32 cached | JSON of the request, ``length`` bytes

A slot's length is written last, which makes the slot valid; 0 frees it. Numbers are in the byte
order of the machine, on which the adopting process runs, too.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from uuid import uuid4

import msgspec

from tenants.limits import Price
from tenants.types import UsageEvent

logger = logging.getLogger(__name__)

SUFFIX = ".running"
SLOT_BYTES = 2048
_SLOTS_AT_ONCE = 512
_HEAD = struct.Struct("=III")
_LENGTH = struct.Struct("=I")
_COUNTS = struct.Struct("=II")


class _Left(msgspec.Struct, frozen=True):
    event: UsageEvent
    price: Price


class Running:
    """One request's slot. Call ``end`` when its settlement is in the ledger or in the journal."""

    __slots__ = ("_number", "_owner", "counts")

    def __init__(self, owner: Progress, number: int) -> None:
        self._owner = owner
        self._number = number
        start = number * SLOT_BYTES + _LENGTH.size
        with memoryview(owner.memory) as memory:
            self.counts = memory[start : start + _COUNTS.size].cast("I")
        """The generated tokens and the cached prompt tokens so far, to be written to.

        After ``end`` writing raises ``ValueError``, because the slot may be another request's."""

    def end(self) -> None:
        """Free the slot. Idempotent."""
        if self._number >= 0:
            self.counts.release()
            self._owner.free(self._number)
            self._number = -1


class Progress:
    """This process's file in a folder. The caller locks it through ``file``."""

    def __init__(self, folder: Path) -> None:
        """Create a file in ``folder``. Raises ``OSError``."""
        self.path = folder / f"{uuid4().hex}{SUFFIX}"
        self.file: IO[bytes] = self.path.open("x+b")
        self._free: list[int] = []
        self._num_slots = 0
        self._is_full = False
        """Whether the disk was, when a slot was sought last."""
        try:
            self.memory = self._grow()
        except OSError:
            self.file.close()
            self.path.unlink()
            raise

    def begin(self, event: UsageEvent, price: Price) -> Running | None:
        """A slot for a request; ``event`` is its settlement except for the token counts.

        None when the request's names do not fit, or the disk is full: then only its lease settles
        it.
        """
        body = msgspec.json.encode(_Left(event, price))
        if len(body) > SLOT_BYTES - _HEAD.size:
            return None
        if not self._free:
            try:
                self.memory = self._grow()
            except OSError as error:
                if not self._is_full:
                    logger.warning("Requests run that a crash would not settle: %s", error)
                self._is_full = True
                return None
            self._is_full = False
        number = self._free.pop()
        offset = number * SLOT_BYTES
        self.memory[offset + _HEAD.size : offset + _HEAD.size + len(body)] = body
        _COUNTS.pack_into(self.memory, offset + _LENGTH.size, 0, 0)
        _LENGTH.pack_into(self.memory, offset, len(body))
        return Running(self, number)

    def free(self, number: int) -> None:
        """Free a slot; called by ``Running.end``."""
        if self.file.closed:
            return  # Another process may settle the request again, which changes nothing.
        _LENGTH.pack_into(self.memory, number * SLOT_BYTES, 0)
        self._free.append(number)

    def close(self) -> None:
        """Close the file. It is removed unless a request in it has not ended. Idempotent."""
        if not self.file.closed:
            if len(self._free) == self._num_slots:
                self.path.unlink(missing_ok=True)
            # The mapping lasts as long as a request counts in it, and keeps the file open.
            fcntl.flock(self.file, fcntl.LOCK_UN)
            self.file.close()

    def _grow(self) -> mmap.mmap:
        """Map more slots. Raises ``OSError`` if the disk is full.

        They are written before they are mapped: a store into a hole of a file on a full disk would
        kill the process (SIGBUS).
        """
        first, num_slots = self._num_slots, self._num_slots + _SLOTS_AT_ONCE
        offset, size = first * SLOT_BYTES, num_slots * SLOT_BYTES
        while offset < size:
            offset += os.pwrite(self.file.fileno(), bytes(size - offset), offset)
        memory = mmap.mmap(self.file.fileno(), size)
        self._num_slots = num_slots
        self._free += reversed(range(first, num_slots))
        return memory


def read(file: IO[bytes]) -> Sequence[UsageEvent]:
    """The settlements of requests that ran when a process died: errors, with the counted tokens.

    A request that had generated nothing costs nothing, as any request that fails so early.
    """
    events = []
    file.seek(0)
    while len(slot := file.read(SLOT_BYTES)) == SLOT_BYTES:
        length, generated, cached = _HEAD.unpack_from(slot)
        if length == 0:
            continue
        left = msgspec.json.decode(slot[_HEAD.size : _HEAD.size + length], type=_Left)
        prompt = left.event.prompt_tokens if generated else 0
        cached = min(cached, prompt)
        events.append(
            msgspec.structs.replace(
                left.event,
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=generated,
                cost_micro=left.price.cost(prompt, cached, generated),
            )
        )
    return events
