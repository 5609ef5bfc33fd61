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
    """One group: its bound, and its idle blocks, the one released first in front."""

    __slots__ = ("__weakref__", "idle", "max_blocks")

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.idle: OrderedDict[int, None] = OrderedDict()

    def excess(self) -> Iterator[int]:
        """The blocks beyond the bound, to be given up; the caller removes each from ``idle``."""
        while len(self.idle) > self.max_blocks:
            yield next(iter(self.idle))


class Ceilings:
    """All groups that some request or block belongs to; others are forgotten."""

    def __init__(self) -> None:
        self._by_name: WeakValueDictionary[str, Ceiling] = WeakValueDictionary()

    def of(self, max_blocks: Mapping[str, int]) -> tuple[Ceiling, ...]:
        """The groups with these names, whose bounds are those given from now on."""
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
