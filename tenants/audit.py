"""Who makes a change: named once where it is known, read where the change is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

NOBODY = "sluice"
"""The server itself: nobody asked it to."""

_actor: ContextVar[str] = ContextVar("actor", default=NOBODY)


def actor() -> str:
    """Who acts in this task."""
    return _actor.get()


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Changes in this block, and in tasks it starts, are this actor's in the audit log."""
    token = _actor.set(name)
    try:
        yield
    finally:
        _actor.reset(token)
