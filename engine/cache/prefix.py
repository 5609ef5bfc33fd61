"""Names for cached content, and the index by which it is found.

A block's key is a digest in a chain: it commits to everything the block's keys and values depend
on, which is all tokens up to its end, the pictures that some of these stand for, and the region it
belongs to. The region (salt, adapter, ...) enters where its first own block begins; a picture
enters at every block that its span overlaps, with the block's place in it.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from engine.cache.ceilings import Ceiling

_TOKEN_BYTES = 4
# Blocks with the same parent that are compared for a partial match, the newest first.
_MAX_SIBLINGS_COMPARED = 8


def root_key(block_size: int, region: Mapping[str, str]) -> bytes:
    """The parent of a region's first block.

    ``region`` maps a domain ("salt", "adapter", ...) to a value. Each part carries its length, so
    no two different regions have the same encoding: a salt can never pass for an adapter's name.
    """
    return _root_key(block_size, tuple(sorted(region.items())))


@lru_cache(maxsize=4096)  # Few tenants, many requests.
def _root_key(block_size: int, parts: tuple[tuple[str, str], ...]) -> bytes:
    digest = sha256(b"sluice kv block v1")
    digest.update(block_size.to_bytes(4, "little"))
    for domain, value in parts:
        for part in (domain.encode(), value.encode()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Four bytes a token, so that a key commits to the ids and not to their spelling."""
    return array("I", token_ids).tobytes()


def child_key(parent: bytes, data: bytes) -> bytes:
    """The key of the block that follows ``parent`` and holds the tokens ``data``."""
    return sha256(parent + data).digest()


def extend_chain(
    parent: bytes, token_ids: Sequence[int], start: int, block_size: int, num_blocks: int
) -> list[bytes]:
    """Keys of the ``num_blocks`` full blocks of ``token_ids`` from position ``start`` on."""
    end = start + num_blocks * block_size
    assert end <= len(token_ids)
    data = token_bytes(token_ids[start:end])
    stride = _TOKEN_BYTES * block_size
    keys = []
    for offset in range(0, len(data), stride):
        parent = child_key(parent, data[offset : offset + stride])
        keys.append(parent)
    return keys


def seen_from(parent: bytes, pictures: Iterable[tuple[int, bytes]]) -> bytes:
    """What stands for ``parent`` before a block that these pictures overlap: (where the block
    begins, counted from the first token of the picture's span, and the picture's digest). So blocks
    of other pictures have nothing in common, not even their first tokens."""
    for start, digest in pictures:
        parent = sha256(
            b"image" + parent + start.to_bytes(8, "little", signed=True) + digest
        ).digest()
    return parent


class Content(msgspec.Struct, frozen=True, gc=False):
    """What a published block holds."""

    key: bytes
    parent: bytes
    """Key of the block before it, or of its region's root for the first."""
    data: bytes
    """Its tokens, encoded by ``token_bytes``."""
    owner: str
    """Whose share it counts towards when blocks are evicted."""
    partial: bool = False
    """Partly filled: can be used only by copying its leading slots."""
    ceilings: tuple[Ceiling, ...] = ()
    """Ceilings of the groups that it counts towards."""


class PrefixIndex:
    """Finds published blocks by their key, and those that match the next tokens in part."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, int] = {}
        self._children: dict[bytes, dict[int, bytes]] = {}
        """By parent key: its blocks, each with its tokens."""
        self.find: Callable[[bytes], int | None] = self._by_key.get
        """The block with this content, None if there is none. It may be evicted unless acquired at
        once. (No method: admissions look up thousands of keys.)"""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._by_key)

    def add(self, block_id: int, content: Content) -> bool:
        """Returns False, changing nothing, if another block has this content already."""
        if self._by_key.setdefault(content.key, block_id) != block_id:
            return False
        self._children.setdefault(content.parent, {})[block_id] = content.data
        return True

    def remove(self, block_id: int, content: Content) -> None:
        del self._by_key[content.key]
        siblings = self._children[content.parent]
        del siblings[block_id]
        if not siblings:
            del self._children[content.parent]

    def longest_overlap(self, parent: bytes, data: bytes) -> tuple[int, int]:
        """(block, tokens): the child of ``parent`` that shares most leading tokens with ``data``.

        (-1, 0) if none shares any. Of many children only the newest few are compared.
        """
        best = (-1, 0)
        siblings = self._children.get(parent)
        if siblings is not None:
            first_token = data[:_TOKEN_BYTES]
            for block_id in islice(reversed(siblings), _MAX_SIBLINGS_COMPARED):
                sibling = siblings[block_id]
                if sibling.startswith(first_token):  # Most siblings share nothing.
                    count = _common_tokens(sibling, data)
                    if count > best[1]:
                        best = (block_id, count)
        return best

    def check_integrity(self, contents: Mapping[int, Content | None]) -> None:
        """The index knows exactly ``contents`` (by block id)."""
        published = {c.key: block_id for block_id, c in contents.items() if c is not None}
        assert published == self._by_key, "keys and blocks disagree"
        children: dict[bytes, dict[int, bytes]] = {}
        for block_id, content in contents.items():
            if content is not None:
                children.setdefault(content.parent, {})[block_id] = content.data
        assert children == self._children, "parents and children disagree"


def _common_tokens(one: bytes, two: bytes) -> int:
    """How many leading tokens two runs of ``token_bytes`` share."""
    size = min(len(one), len(two))
    difference = int.from_bytes(one[:size], "little") ^ int.from_bytes(two[:size], "little")
    if difference == 0:
        return size // _TOKEN_BYTES
    lowest_bit = (difference & -difference).bit_length() - 1
    return lowest_bit // (8 * _TOKEN_BYTES)
