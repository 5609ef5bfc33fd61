"""What one request holds of the cache, and what it finds there when it is admitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.cache.ceilings import Ceiling
    from engine.cache.swap import Swapped

NO_BLOCK = -1
"""Marks a block that was given back before its request ended."""


class BlockTable:
    """The cache side of one request: the blocks it holds, in order, and what they hold.

    ``region`` separates what must never be shared ("salt", ...); ``owner`` is whom cached blocks
    count for. The first ``num_public_tokens`` stand outside the region: their full blocks are
    shared with everybody who declares the same tokens public. Tables of one ``group`` share their
    common prefix even where prefix caching is off.
    """

    __slots__ = (
        "answer_key",
        "ceilings",
        "group",
        "keys",
        "layer_groups",
        "num_held",
        "num_logical_blocks",
        "num_public_tokens",
        "num_published",
        "num_written",
        "owner",
        "pictures",
        "region",
        "root",
        "skip_reading",
        "snapshot_ends",
        "swapped",
    )

    def __init__(
        self,
        region: Mapping[str, str],
        owner: str = "",
        num_public_tokens: int = 0,
        group: str = "",
        pictures: Sequence[tuple[int, int, bytes]] = (),
    ) -> None:
        """pictures: (first token, end, digest) of each, ascending."""
        self.region = region
        self.owner = owner
        self.num_public_tokens = num_public_tokens
        self.group = group
        self.pictures = pictures
        self.root: bytes | None = None
        """The root key of its region; computed once, on demand."""
        self.ceilings: tuple[Ceiling, ...] = ()
        """The ceilings, from ``BlockPool.ceilings_of``, that its cached blocks count for."""
        self.layer_groups: list[GroupTable] = []
        """Its blocks in each layer group; empty while it is not admitted."""
        self.num_logical_blocks = 0
        """Logical blocks, counted from the first token, that have a physical block in every layer
        group: there are slots for ``num_logical_blocks * block_size`` tokens."""
        self.num_held = 0
        """Physical blocks held, summed over all layer groups."""
        self.keys: list[bytes] = []
        """Keys of the leading full blocks, as far as they were computed. They outlive a release:
        a preempted request looks its own prefix up again."""
        self.skip_reading = False
        """Do not look up cached prefixes: prompt log-probabilities need every token computed."""
        self.num_published = 0
        """Leading blocks that are published already."""
        self.num_written = 0
        """Leading slots whose contents are final: the step that wrote them is over, and drafts that
        were rejected are not counted."""
        self.snapshot_ends: list[int] = []
        """After which of its tokens to take a snapshot of its recurrent state."""
        self.answer_key: bytes | None = None
        """The key of the last snapshot in its answer."""
        self.swapped: Swapped | None = None
        """The copy of its blocks in host memory, from ``swap_out`` until ``swap_in``."""


@dataclass(slots=True)
class GroupTable:
    """The blocks that a request holds for one group of layers."""

    block_ids: list[int]
    """``NO_BLOCK`` where the window has left a block behind."""
    first: int = 0
    """Index of the first block that is held, if any is."""


class GroupHit(msgspec.Struct, frozen=True, gc=False):
    """The part of a prefix that one layer group has."""

    first: int = 0
    """The first block index that attention still reads."""
    block_ids: list[int] = []
    """The blocks from ``first`` on, to be shared."""
    source: int = -1
    """A block whose leading slots continue the prefix, to be copied; -1 for none."""


class PrefixHit(msgspec.Struct, frozen=True, gc=False):
    """The leading tokens that need not be computed. Nothing is acquired yet."""

    num_tokens: int = 0
    num_blocks: int = 0
    """Leading full blocks of the hit."""
    groups: tuple[GroupHit, ...] = ()
    """By layer group; empty if nothing was found."""
    num_copied: int = 0
    """How many slots to copy from each group's source; ``num_tokens`` includes them."""
    is_swapped: bool = False
    """What follows the full blocks is copied back from host memory."""
    num_stateless: int = 0
    """Full blocks that are cached behind these, but of no use: no state was kept at their end."""
    snapshot: int = -1
    """The recurrent state after them; -1 for none."""

    def without_copy(self) -> PrefixHit:
        groups = tuple(replace(group, source=-1) for group in self.groups)
        num_tokens = self.num_tokens - self.num_copied
        return replace(self, num_tokens=num_tokens, groups=groups, num_copied=0)
