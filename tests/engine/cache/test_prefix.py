from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.cache.prefix import (
    Content,
    PrefixIndex,
    child_key,
    extend_chain,
    root_key,
    token_bytes,
)

TOKENS = st.lists(st.integers(0, 300), min_size=4, max_size=40)
REGIONS = st.dictionaries(st.text(max_size=4), st.text(max_size=6), max_size=3)


def keys(token_ids: list[int], region: dict[str, str], block_size: int = 4) -> list[bytes]:
    root = root_key(block_size, region)
    return extend_chain(root, token_ids, 0, block_size, len(token_ids) // block_size)


@given(TOKENS, st.integers(0, 10))
def test_a_chain_grown_in_two_parts_is_the_same_chain(token_ids: list[int], cut: int) -> None:
    whole = keys(token_ids, {"salt": "s"})
    cut = min(cut, len(whole))
    first = extend_chain(root_key(4, {"salt": "s"}), token_ids, 0, 4, cut)
    parent = first[-1] if first else root_key(4, {"salt": "s"})
    rest = extend_chain(parent, token_ids, cut * 4, 4, len(whole) - cut)
    assert first + rest == whole


@given(TOKENS, TOKENS)
def test_keys_agree_exactly_as_far_as_the_tokens_do(one: list[int], two: list[int]) -> None:
    for i, (a, b) in enumerate(zip(keys(one, {}), keys(two, {}), strict=False)):
        assert (a == b) == (one[: 4 * i + 4] == two[: 4 * i + 4])


@given(TOKENS, REGIONS, REGIONS)
def test_two_regions_never_share_a_key(
    token_ids: list[int], one: dict[str, str], two: dict[str, str]
) -> None:
    if one != two:
        assert set(keys(token_ids, one)).isdisjoint(keys(token_ids, two))


def test_a_salt_cannot_pass_for_an_adapter_or_spill_into_its_neighbour() -> None:
    regions = [
        {"salt": "x"},
        {"adapter": "x"},
        {"salt": "x", "adapter": ""},
        {"salt": "ab", "adapter": "c"},
        {"salt": "a", "adapter": "bc"},
        {"salt": ""},
        {},
        # What follows would be the same text with one of the others, written one after the other.
        {"adapter": "bcsalta"},
        {"adapter": "bcsalt", "a": ""},
        {"adapterbcsalt": "a"},
        {"saltx": ""},
        {"sal": "tx"},
    ]
    assert len({root_key(16, region) for region in regions}) == len(regions)


def test_a_region_is_a_set_of_pairs_without_order() -> None:
    assert root_key(16, {"a": "1", "b": "2"}) == root_key(16, {"b": "2", "a": "1"})


def test_block_sizes_do_not_mix() -> None:
    assert root_key(16, {}) != root_key(32, {})


def test_token_ids_of_every_width_are_told_apart() -> None:
    ids = [0, 1, 255, 256, 65_535, 65_536, 2**31, 2**32 - 1]
    assert len({keys([i], {}, 1)[0] for i in ids}) == len(ids)


def content(tokens: list[int], parent: bytes = b"root") -> Content:
    data = token_bytes(tokens)
    return Content(child_key(parent, data), parent, data, owner="")


class TestIndex:
    def test_it_finds_what_was_added_until_it_is_removed(self) -> None:
        index = PrefixIndex()
        assert index.add(7, content([1, 2]))
        assert index.find(content([1, 2]).key) == 7
        assert len(index) == 1
        index.check_integrity({7: content([1, 2]), 8: None})
        index.remove(7, content([1, 2]))
        assert index.find(content([1, 2]).key) is None
        index.check_integrity({})

    def test_the_second_block_of_the_same_content_is_turned_away(self) -> None:
        index = PrefixIndex()
        assert index.add(7, content([1, 2]))
        assert not index.add(8, content([1, 2]))
        assert index.find(content([1, 2]).key) == 7

    def test_the_longest_overlap_among_siblings(self) -> None:
        index = PrefixIndex()
        for block_id, tokens in enumerate([[1, 9, 9, 9], [1, 2, 3, 9], [1, 2, 9, 9]]):
            index.add(block_id, content(tokens))
        assert index.longest_overlap(b"root", token_bytes([1, 2, 3, 4])) == (1, 3)
        assert index.longest_overlap(b"root", token_bytes([5, 2, 3, 4])) == (-1, 0)
        assert index.longest_overlap(b"other", token_bytes([1, 2, 3, 4])) == (-1, 0)
        assert index.longest_overlap(b"root", b"") == (-1, 0)

    def test_only_the_newest_siblings_are_compared(self) -> None:
        index = PrefixIndex()
        for block_id in range(1000):
            index.add(block_id, content([block_id, block_id]))
        assert index.longest_overlap(b"root", token_bytes([999, 1])) == (999, 1)
        assert index.longest_overlap(b"root", token_bytes([0, 1])) == (-1, 0)


def test_a_shorter_run_does_not_match_beyond_its_end() -> None:
    index = PrefixIndex()
    index.add(1, content([5, 6]))
    index.add(2, content([7, 8, 0, 0]))
    assert index.longest_overlap(b"root", token_bytes([5, 6, 0, 0])) == (1, 2)
    assert index.longest_overlap(b"root", token_bytes([7, 8])) == (2, 2)


def test_ids_that_differ_in_any_bit_differ() -> None:
    index = PrefixIndex()
    index.add(1, content([3, 1, 4]))
    for bit in range(32):
        assert index.longest_overlap(b"root", token_bytes([3, 1, 4 ^ (1 << bit)])) == (1, 2)


@given(TOKENS, TOKENS)
def test_overlap_is_the_common_prefix(one: list[int], two: list[int]) -> None:
    index = PrefixIndex()
    index.add(1, content(one))
    common = next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )
    _, count = index.longest_overlap(b"root", token_bytes(two))
    assert count == common
