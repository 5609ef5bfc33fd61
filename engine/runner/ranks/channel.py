"""Bytes from rank 0 to all other ranks through shared memory: one write, however many readers.

The memory is a ring without a name, so that nothing is left over however the processes end. It
begins with the number of bytes that were ever written, and those that each reader has read. A
reader with nothing to read sleeps on an eventfd of its own.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

CAPACITY = 1 << 24
_DATA = 4096
"""Where the ring begins."""
_COUNT = struct.Struct("=Q")
_LENGTH = struct.Struct("=I")
_MORE = 1 << 31
"""Of a length: the record goes on in the next fragment."""
_FULL_S = 50e-6
"""Between two looks at a full ring, which a reader has left behind by megabytes."""


class Ring:
    def __init__(self, descriptor: int, capacity: int = CAPACITY) -> None:
        """descriptor: of the memory, from ``create``."""
        self.capacity = capacity
        self._memory = mmap.mmap(descriptor, _DATA + capacity)

    @staticmethod
    def create(capacity: int = CAPACITY) -> int:
        """A descriptor for the memory of a new ring, which children may inherit."""
        descriptor = os.memfd_create("sluice-steps", 0)
        os.ftruncate(descriptor, _DATA + capacity)
        return descriptor

    def count(self, index: int) -> int:
        """Bytes that passed: index 0 for those written, 1 + i for those that reader i has read."""
        found: int = _COUNT.unpack_from(self._memory, index * _COUNT.size)[0]
        return found

    def set_count(self, index: int, count: int) -> None:
        _COUNT.pack_into(self._memory, index * _COUNT.size, count)

    def put(self, at: int, data: bytes | memoryview) -> None:
        """at: a count of bytes, as the place in the ring."""
        start = at % self.capacity
        first = min(len(data), self.capacity - start)
        self._memory[_DATA + start : _DATA + start + first] = data[:first]
        if first < len(data):
            self._memory[_DATA : _DATA + len(data) - first] = data[first:]

    def get(self, at: int, size: int) -> bytes:
        start = at % self.capacity
        first = min(size, self.capacity - start)
        found = self._memory[_DATA + start : _DATA + start + first]
        return found if first == size else found + self._memory[_DATA : _DATA + size - first]


class Writer:
    def __init__(self, ring: Ring, events: list[int]) -> None:
        """events: the readers' eventfds."""
        self._ring, self._events = ring, events
        self._written = 0

    def send(self, record: bytes, *, wake: bool = True) -> None:
        """wake: False for what may wait until the next record that wakes the readers."""
        most = self._ring.capacity // 4
        view, sent = memoryview(record), 0
        while True:
            part = view[sent : sent + most]
            sent += len(part)
            more = sent < len(view)
            self._wait_for_room(len(part) + _LENGTH.size)
            self._ring.put(self._written, _LENGTH.pack(len(part) | (_MORE if more else 0)))
            self._ring.put(self._written + _LENGTH.size, part)
            self._written += _LENGTH.size + len(part)
            self._ring.set_count(0, self._written)  # last: readers read up to it
            if wake or more:
                for event in self._events:
                    os.eventfd_write(event, 1)
            if not more:
                return

    def _wait_for_room(self, size: int) -> None:
        readers = range(1, 1 + len(self._events))
        while self._written + size - min(map(self._ring.count, readers)) > self._ring.capacity:
            for event in self._events:
                os.eventfd_write(event, 1)
            time.sleep(_FULL_S)


class Reader:
    def __init__(self, ring: Ring, index: int, event: int) -> None:
        """index: of this reader, from 0."""
        self._ring, self._index, self._event = ring, 1 + index, event
        self._read = 0

    def receive(self) -> bytes:
        """The next record; waits for it."""
        fragments = []
        while True:
            while self._ring.count(0) == self._read:
                os.eventfd_read(self._event)
            (length,) = _LENGTH.unpack(self._ring.get(self._read, _LENGTH.size))
            size = length & ~_MORE
            fragments.append(self._ring.get(self._read + _LENGTH.size, size))
            self._read += _LENGTH.size + size
            self._ring.set_count(self._index, self._read)
            if not length & _MORE:
                return fragments[0] if len(fragments) == 1 else b"".join(fragments)
