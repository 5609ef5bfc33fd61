"""Blocks are shared as far as tokens and pictures are equal, and by nobody with another salt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.groups import FullAttention, SlidingWindow
from engine.cache.manager import CacheManager
from engine.cache.table import BlockTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.cache.groups import GroupKind

BLOCK = 4
SALTS = st.sampled_from(["a", "b"])
Picture = tuple[int, int, bytes]


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[Picture]]:
    """Few kinds of text and of pictures, so that two prompts often begin alike."""
    token_ids: list[int] = []
    pictures: list[Picture] = []
    for length, digest in draw(
        st.lists(st.tuples(st.integers(1, 9), st.sampled_from([b"", b"", b"x", b"y"])), max_size=5)
    ):
        if digest:
            pictures.append((len(token_ids), len(token_ids) + length, digest * 32))
        token_ids += [0 if digest else 1] * length
    return [*token_ids, 2], pictures


def table(pictures: Sequence[Picture], salt: str, num_public_tokens: int = 0) -> BlockTable:
    return BlockTable({"salt": salt}, salt, num_public_tokens, "", pictures)


def marked(token_ids: list[int], pictures: Sequence[Picture]) -> list[tuple[int, int, bytes]]:
    """Each token with its place in its picture, if it is of one."""
    places = {i: (i - start, d) for start, end, d in pictures for i in range(start, end)}
    return [(token_id, *places.get(i, (-1, b""))) for i, token_id in enumerate(token_ids)]


def num_common(one: list[tuple[int, int, bytes]], other: list[tuple[int, int, bytes]]) -> int:
    equal = [a == b for a, b in zip(one, other, strict=False)]
    return equal.index(False) if False in equal else len(equal)


@pytest.mark.parametrize("kinds", [(FullAttention(),), (FullAttention(), SlidingWindow(6))])
@given(one=prompts(), other=prompts(), salts=st.tuples(SALTS, SALTS), cut=st.integers(0, 20))
def test_a_hit_ends_where_tokens_or_pictures_part(
    kinds: tuple[GroupKind, ...],
    one: tuple[list[int], list[Picture]],
    other: tuple[list[int], list[Picture]],
    salts: tuple[str, str],
    cut: int,
) -> None:
    manager = CacheManager(64, BLOCK, kinds, chunk_tokens=64)
    first = table(one[1], salts[0])
    manager.admit(first, manager.lookup(first, one[0]), len(one[0]))
    num_written = max(1, len(one[0]) - cut)
    manager.publish(first, one[0], num_written)
    manager.release(first, one[0])
    hit = manager.lookup(table(other[1], salts[1]), other[0])
    common = num_common(marked(*one)[:num_written], marked(*other))
    if salts[0] != salts[1]:
        assert hit.num_tokens == 0
        return
    assert hit.num_tokens <= common
    # Whole blocks of equal content are found.
    assert hit.num_tokens >= min(common, len(other[0]) - 1) // BLOCK * BLOCK
    if not other[1] and not one[1]:
        assert hit.num_tokens == min(common, len(other[0]) - 1)


def test_a_partly_equal_block_is_not_copied_across_pictures() -> None:
    manager = CacheManager(8, BLOCK)
    token_ids = [1, 2, 0, 0, 0, 0, 3, 4]
    first = table([(2, 6, b"x" * 32)], "a")
    manager.admit(first, manager.lookup(first, token_ids), 8)
    manager.publish(first, token_ids, 8)
    for digest, expected in ((b"x" * 32, 7), (b"y" * 32, 0)):
        assert manager.lookup(table([(2, 6, digest)], "a"), token_ids).num_tokens == expected


def test_public_pictures_are_shared_across_salts_and_others_are_not() -> None:
    manager = CacheManager(8, BLOCK)
    token_ids = [1, 0, 0, 0, 0, 2, 2, 2, 3]
    first = table([(1, 5, b"x" * 32)], "a", 8)
    manager.admit(first, manager.lookup(first, token_ids), 9)
    manager.publish(first, token_ids, 9)
    assert manager.lookup(table([(1, 5, b"x" * 32)], "b", 8), token_ids).num_tokens == 8
    assert manager.lookup(table([(1, 5, b"y" * 32)], "b", 8), token_ids).num_tokens == 0
