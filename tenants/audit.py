"""Who makes a change: set once where it is known, read where the change is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

NOBODY = "sluice"
"""The server itself, when nobody asked for the change."""

_actor: ContextVar[str] = ContextVar("actor", default=NOBODY)


def actor() -> str:
    """Who acts in this task."""
    return _actor.get()


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Changes made in this block, and in tasks that it starts, are attributed to this actor in the
    audit log."""
    token = _actor.set(name)
    try:
        yield
    finally:
        _actor.reset(token)
