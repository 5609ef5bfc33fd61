"""Holds back writes to many connections for a moment, to do them one after the other.

Making a chunk works on this process's objects, sending it on the kernel's network structures. If
the two alternate, each evicts the other's data from the CPU's caches. So the chunks that one step
of the engine makes for many streams are first made, then written. That also halves the context
switches between this process and those that read (``docs/experiments.md``).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Cork:
    """Holds what is written within its ``with`` block until the end of the block.

    The block must not ``await``, so that nobody else writes to the same connections meanwhile. Code
    in the block that writes to a connection directly must call ``release`` first.
    """

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[bytes], None], bytes]] | None = None
        """The transports' ``write`` methods with what to write, for writers to append to; None
        outside a block."""

    def __enter__(self) -> None:
        assert self.held is None
        self.held = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        self.held = None

    def release(self) -> None:
        """Write what is held so far, in order."""
        if not self.held:
            return
        held, self.held = self.held, []
        for write, data in held:
            try:
                write(data)
            except RuntimeError:
                # An earlier write failed and has closed the transport. Its protocol learns of the
                # lost connection from asyncio.
                continue
