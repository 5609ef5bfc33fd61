"""Bases of what is shown: something that the store has, and a list."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

import msgspec

T = TypeVar("T")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of something that the store has."""

    @classmethod
    def of(cls, row: Any, **given: Any) -> Self:
        """The fields that ``row`` has by the same names, ids as text and times in Unix seconds, and
        those that are given."""
        own = (name for name in cls.__struct_fields__ if name not in given and hasattr(row, name))
        return cls(**{name: _plain(getattr(row, name)) for name in own}, **given)


class IdList(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of one of OpenAI's lists."""

    object: str = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def seconds(moment: datetime | None) -> int | None:
    """Unix time; None stays None."""
    return None if moment is None else int(moment.timestamp())


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return seconds(value)
    return str(value) if isinstance(value, UUID) else value
