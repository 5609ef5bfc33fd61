"""Base of what is shown of something that the store has."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self
from uuid import UUID

import msgspec


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of something that the store has."""

    @classmethod
    def of(cls, row: Any, **given: Any) -> Self:
        """The fields that ``row`` has by the same names, ids as text and times in Unix seconds, and
        those that are given."""
        own = (name for name in cls.__struct_fields__ if name not in given and hasattr(row, name))
        return cls(**{name: _plain(getattr(row, name)) for name in own}, **given)


def seconds(moment: datetime | None) -> int | None:
    """Unix time; None stays None."""
    return None if moment is None else int(moment.timestamp())


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return seconds(value)
    return str(value) if isinstance(value, UUID) else value
