"""What many streams have to say at once, said together.

To make a chunk and to send it are two worlds: the interpreter and this process's objects, the
system's network and its own. Each finds nothing of its own in the nearest caches when the other one
ran in between. So what a step of the engine makes for many streams is written when all of it is
there, with half the switches between this process and those that read (``docs/experiments.md``).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Cork:
    """Holds what is written within its ``with`` block, until the end of it.

    For blocks without an ``await``: nobody else can write to the same connection meanwhile. Who
    does so within the block calls ``release`` before.
    """

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[bytes], None], bytes]] | None = None
        """Writes of transports to come, for writers to add to; None outside a block."""

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
        """Write what is held until now, in its order."""
        if not self.held:
            return
        held, self.held = self.held, []
        for write, data in held:
            try:
                write(data)
            except RuntimeError:
                # The write before failed and has closed the transport. Its protocol is told that
                # the connection is gone in any case.
                continue
