"""Bounds on how many cached blocks a group of requests leaves behind.

A group is whatever the client calls by one name. A block counts for the groups of the request that
published it, from its last release until somebody holds it again; beyond a group's bound its blocks
that were released longest ago are given up.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Ceiling:
    """One group: its bound, and its blocks that nobody holds, the first released first."""

    __slots__ = ("__weakref__", "idle", "max_blocks")

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.idle: OrderedDict[int, None] = OrderedDict()

    def excess(self) -> Iterator[int]:
        """The blocks to give up; the caller takes each out of ``idle``."""
        while len(self.idle) > self.max_blocks:
            yield next(iter(self.idle))


class Ceilings:
    """All groups that a request or a block still belongs to; no others are remembered."""

    def __init__(self) -> None:
        self._by_name: WeakValueDictionary[str, Ceiling] = WeakValueDictionary()

    def of(self, max_blocks: Mapping[str, int]) -> tuple[Ceiling, ...]:
        """The groups of these names; from now on their bounds are those given."""
        found = []
        for name, bound in max_blocks.items():
            ceiling = self._by_name.get(name)
            if ceiling is None:
                ceiling = self._by_name[name] = Ceiling(bound)
            ceiling.max_blocks = bound
            found.append(ceiling)
        return tuple(found)

    def __len__(self) -> int:
        return len(self._by_name)
