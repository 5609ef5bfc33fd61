"""Names for cached content: a chain of SHA-256 digests over blocks of token ids.

A block's key commits to everything its keys and values depend on: all tokens up to its end, and the
region it belongs to. The region (salt, adapter, ...) enters once, at the root of the chain.
"""

from __future__ import annotations

from array import array
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def root_key(block_size: int, region: Mapping[str, str]) -> bytes:
    """The parent of a request's first block.

    ``region`` maps a domain ("salt", "adapter", ...) to a value. Each part carries its length, so
    no two different regions have the same encoding: a salt can never pass for an adapter's name.
    """
    digest = sha256(b"sluice kv block v1")
    digest.update(block_size.to_bytes(4, "little"))
    for domain, value in sorted(region.items()):
        for part in (domain.encode(), value.encode()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def extend_chain(
    parent: bytes, token_ids: Sequence[int], start: int, block_size: int, num_blocks: int
) -> list[bytes]:
    """Keys of the ``num_blocks`` full blocks of ``token_ids`` from position ``start`` on."""
    assert start + num_blocks * block_size <= len(token_ids)
    # Four bytes a token, so that a key commits to the ids and not to their spelling.
    data = array("I", token_ids[start : start + num_blocks * block_size]).tobytes()
    stride = 4 * block_size
    keys = []
    for offset in range(0, len(data), stride):
        parent = sha256(parent + data[offset : offset + stride]).digest()
        keys.append(parent)
    return keys
