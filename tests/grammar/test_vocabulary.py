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


def test_bit_31_of_a_word_is_kept() -> None:
    vocabulary = Vocabulary([bytes([i]) for i in range(64)], [63], [], size=64)
    assert ids_of(vocabulary.text_mask) == list(range(63))
    assert ids_of(vocabulary.eos_mask) == [63]


@pytest.mark.parametrize(
    ("tokens", "eos", "special", "size", "message"),
    [
        ([b"a"], [], [], 4, "at least one EOS"),
        ([b"a"] * 5, [0], [], 4, "do not fit"),
        ([b"a"], [4], [], 4, "outside"),
        ([b"a"], [0], [-1], 4, "outside"),
    ],
)
def test_impossible_vocabularies_are_refused(
    tokens: list[bytes], eos: list[int], special: list[int], size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Vocabulary(tokens, eos, special, size)


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
