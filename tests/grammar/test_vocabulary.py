from __future__ import annotations

import numpy as np
import pytest

from grammar.vocabulary import Mask, Vocabulary


def ids_of(mask: Mask) -> list[int]:
    return [int(i) for i in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


def test_masks_tell_text_eos_special_and_padding_apart() -> None:
    vocabulary = Vocabulary([b"a", b"", b"<s>", b"b", b"</s>"], [4], [2], size=70)
    assert vocabulary.mask_words == 3
    assert ids_of(vocabulary.text_mask) == [0, 3]
    assert ids_of(vocabulary.eos_mask) == [4]
    assert vocabulary.text_mask.dtype == np.int32
    assert len(vocabulary.tokens) == 70


def test_masks_for_anything_and_for_more_than_blanks() -> None:
    tokens = [b"a", b" \n", b"", b"<s>", b"", b"</s>"]
    vocabulary = Vocabulary(tokens, [5], [3, 4], size=40)
    assert ids_of(vocabulary.any_mask) == [0, 1, 3, 4]
    assert ids_of(vocabulary.solid_mask) == [i for i in range(40) if i != 1]
    assert [i for i in range(-2, 45) if vocabulary.has(i)] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 65])
def test_a_mask_allows_the_ids_it_was_made_of(size: int) -> None:
    vocabulary = Vocabulary([b"a"] * size, [], [], size)
    assert vocabulary.mask_words * 32 - 32 < size <= vocabulary.mask_words * 32
    for ids in ([], [0], [size - 1], [*range(0, size, 3)], [*range(size)]):
        mask = vocabulary.mask(ids)
        assert mask.dtype == np.int32
        assert mask.shape == (vocabulary.mask_words,)
        assert [i for i in range(size) if vocabulary.allows(mask, i)] == ids == ids_of(mask)


def test_bit_31_of_a_word_is_kept() -> None:
    vocabulary = Vocabulary([bytes([i]) for i in range(64)], [63], [], size=64)
    assert ids_of(vocabulary.text_mask) == list(range(63))
    assert ids_of(vocabulary.eos_mask) == [63]


def test_what_lies_beyond_the_logits_is_left_out() -> None:
    vocabulary = Vocabulary(
        [b"a", b"b", b"</s>", b"c", b"<x>"], [2, 3], [4], size=3, encode=lambda _: [0, 3, 1]
    )
    assert vocabulary.tokens == (b"a", b"b", b"</s>")
    assert ids_of(vocabulary.text_mask) == [0, 1]
    assert ids_of(vocabulary.eos_mask) == ids_of(vocabulary.mask(vocabulary.special_ids)) == [2]
    assert vocabulary.tokenize(b"acb") == [0]
    assert not vocabulary.has(3)
    assert vocabulary.eos_token_ids == vocabulary.special_ids == {2}, "not the size itself"


def test_tokenize_is_greedy_and_never_uses_specials() -> None:
    vocabulary = Vocabulary([b"a", b"b", b"ab", b"abc", b"c"], [3], [], size=8)
    assert vocabulary.tokenize(b"abcab") == [2, 4, 2]
    assert vocabulary.tokenize(b"abXab") == [2]


def test_tokenize_prefers_the_tokenizers_own_encoding() -> None:
    vocabulary = Vocabulary(
        [b"a", b"b", b"ab", b""], [3], [], 4, encode=lambda text: [0] * len(text)
    )
    assert vocabulary.tokenize(b"bb") == [0, 0]
    assert vocabulary.tokenize(b"a\xff") == [0]
