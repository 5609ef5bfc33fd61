"""The actor of a change, for the audit log: set where a request is authenticated, read by
stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

NOBODY = "sluice"
"""The actor of changes that the server makes by itself."""

_actor: ContextVar[str] = ContextVar("actor", default=NOBODY)


def actor() -> str:
    """The actor of this task."""
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
