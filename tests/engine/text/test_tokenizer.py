from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from engine.errors import ModelLoadError
from engine.text.tokenizer import Tokenizer
from tests.engine import toys

BYTE_LEVEL = Tokenizer(toys.byte_level())
SENTENCEPIECE = Tokenizer(toys.sentencepiece())
METASPACE = Tokenizer(toys.metaspace())
BACKENDS = {
    BYTE_LEVEL: toys.byte_level(),
    SENTENCEPIECE: toys.sentencepiece(),
    METASPACE: toys.metaspace(),
}


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Ids of the vocabulary and a few that it does not know."""
    return st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40)


@pytest.mark.parametrize("text", ["the cat", " leading", "naïve 你好 😀", "", "a\n\tb", "\x00"])
def test_byte_level_text_survives(text: str) -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text


@given(ids=ids_of(BYTE_LEVEL), skip=st.booleans())
def test_byte_level_decodes_as_the_library_does(ids: list[int], skip: bool) -> None:
    expected = BACKENDS[BYTE_LEVEL].decode(ids, skip_special_tokens=skip)
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=skip) == expected


@given(ids=ids_of(METASPACE), skip=st.booleans())
def test_metaspace_decodes_as_the_library_does(ids: list[int], skip: bool) -> None:
    expected = BACKENDS[METASPACE].decode(ids, skip_special_tokens=skip)
    assert METASPACE.decode(ids, skip_special_tokens=skip) == expected


@given(data=st.data(), skip=st.booleans())
def test_sentencepiece_decodes_as_the_library_does(data: st.DataObject, skip: bool) -> None:
    """Over whole characters; what the library makes of a broken run depends on its far end."""
    backend = BACKENDS[SENTENCEPIECE]
    piece = st.integers(259, SENTENCEPIECE.vocab_size - 1).map(lambda i: [i])
    special = st.integers(0, 2).map(lambda i: [i])
    char = st.characters(codec="utf-8").map(lambda c: [3 + byte for byte in c.encode()])
    ids = list(chain(*data.draw(st.lists(piece | special | char, max_size=20))))
    expected = backend.decode(ids, skip_special_tokens=skip)
    assert SENTENCEPIECE.decode(ids, skip_special_tokens=skip) == expected


@given(ids=st.lists(st.integers(3, 258), max_size=30))
def test_broken_utf8_becomes_replacement_characters(ids: list[int]) -> None:
    data = bytes(i - 3 for i in ids)
    assert SENTENCEPIECE.decode(ids) == data.decode("utf-8", "replace").removeprefix(" ")


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE, METASPACE])
@given(data=st.data())
def test_any_split_gives_the_same_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    chunks = data.draw(st.lists(ids_of(tokenizer), max_size=8))
    decoder = tokenizer.text_decoder()
    parts = [decoder.push(chunk) for chunk in chunks]
    assert "".join(parts) + decoder.finish() == tokenizer.decode(list(chain(*chunks)))


@pytest.mark.parametrize("tokenizer", BACKENDS)
@given(text=st.text(max_size=60), num_tokens=st.integers(1, 20))
def test_a_text_is_cut_where_it_has_more_tokens(
    tokenizer: Tokenizer, text: str, num_tokens: int
) -> None:
    cut = tokenizer.cut(text, num_tokens)
    assert text.startswith(cut)
    has_more = len(tokenizer.encode(text, add_special_tokens=False)) > num_tokens
    assert cut == text or has_more


def test_a_cut_text_has_its_first_tokens() -> None:
    text = "the cat sat on the mat"
    whole = BYTE_LEVEL.encode(text, add_special_tokens=False)
    for num_tokens in range(1, len(whole) + 1):
        cut = BYTE_LEVEL.cut(text, num_tokens)
        assert BYTE_LEVEL.encode(cut, add_special_tokens=False) == whole[:num_tokens]


def test_a_character_waits_for_its_last_byte() -> None:
    decoder = BYTE_LEVEL.text_decoder()
    ids = [BYTE_LEVEL.vocabulary().index(bytes([byte])) for byte in "é".encode()]
    assert [decoder.push([i]) for i in ids] == ["", "é"]
    assert decoder.push(ids[:1]) == ""
    assert decoder.finish() == "�"


def test_vocabulary_holds_exact_bytes() -> None:
    vocabulary = BYTE_LEVEL.vocabulary()
    assert vocabulary[:3] == [b"", b"", b""]
    assert all(bytes([byte]) in vocabulary for byte in range(256))
    assert b" the" in vocabulary
    assert vocabulary[-2:] == [b"<tool_call>", "añadido x".encode()]
    assert len(vocabulary) == BYTE_LEVEL.vocab_size
    assert SENTENCEPIECE.vocabulary()[3 + 0xE4] == b"\xe4"
    assert b" the" in SENTENCEPIECE.vocabulary()


def test_special_tokens() -> None:
    assert BYTE_LEVEL.special_ids == {0, 1, 2}
    ids = [1, *BYTE_LEVEL.encode("a"), 2]
    assert BYTE_LEVEL.decode(ids) == "a"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "<s>a</s>"


def test_add_special_tokens_is_the_post_processors(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    backend = toys.byte_level()
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("a")[0] == 1
    assert 1 not in tokenizer.encode("a", add_special_tokens=False)
    with_them, without = (
        tokenizer.encode_batch(["a"], add_special_tokens=b) for b in (True, False)
    )
    assert (with_them, without) == ([[1, *without[0]]], [tokenizer.encode("a")[1:]])


@pytest.mark.parametrize("tokenizer", BACKENDS)
def test_many_texts_at_once_are_each_by_itself(tokenizer: Tokenizer) -> None:
    texts = ["the cat", "", " leading", "naïve 你好 😀", "the cat"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []


def test_bad_words_are_known_at_the_start_and_after_a_space() -> None:
    tokenizer = Tokenizer(toys.byte_level())
    texts = {
        word: [tokenizer.decode(ids) for ids in tokenizer.bad_words_token_ids([word])]
        for word in ("cat", " cat", "xyz")
    }
    assert texts == {"cat": ["cat", " cat"], " cat": ["cat", " cat"], "xyz": ["xyz"]}
    both = tokenizer.bad_words_token_ids(["xyz", "cat"])
    assert both == (
        *tokenizer.bad_words_token_ids(["xyz"]),
        *tokenizer.bad_words_token_ids(["cat"]),
    )


def test_truncation_and_padding_of_the_file_are_off() -> None:
    backend = toys.byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert Tokenizer(backend).decode(Tokenizer(backend).encode("the cat sat")) == "the cat sat"


@pytest.mark.parametrize("cleanup", [True, False])
def test_word_pieces(cleanup: bool) -> None:
    backend = toys.word_pieces()
    backend.decoder = decoders.WordPiece(cleanup=cleanup)
    tokenizer = Tokenizer(backend)
    for text in ("the cat, naïve!", "it's what the cat's mat", "a - b . c don't", "the"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == backend.decode(ids)
    assert tokenizer.decode([]) == ""


class TestLoad:
    def test_reads_a_folder(self, tmp_path: Path) -> None:
        toys.write_model_folder(tmp_path, config={"eos_token_id": 2})
        tokenizer = Tokenizer.load(tmp_path)
        assert tokenizer.encode("the cat") == BYTE_LEVEL.encode("the cat")
        assert tokenizer.eos_token_ids == {2}

    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            (
                {"generation_config": {"eos_token_id": [1, 2]}, "config": {"eos_token_id": 0}},
                {1, 2},
            ),
            ({"generation_config": {}, "config": {"eos_token_id": 0}}, {0}),
            ({"config": {}, "tokenizer_config": {"eos_token": "</s>"}}, {2}),
            ({"tokenizer_config": {"eos_token": {"content": "<s>"}}}, {1}),
            ({"tokenizer_config": {"eos_token": "unheard of"}}, set()),
            ({}, set()),
        ],
    )
    def test_eos_token_ids(self, tmp_path: Path, files: dict[str, Any], expected: set[int]) -> None:
        toys.write_model_folder(tmp_path, **files)
        assert Tokenizer.load(tmp_path).eos_token_ids == expected

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match=r"tokenizer\.json does not exist"):
            Tokenizer.load(tmp_path)

    def test_broken_file(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text("{")
        with pytest.raises(ModelLoadError, match="cannot be read"):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[]"])
    def test_broken_config(self, tmp_path: Path, text: str) -> None:
        toys.write_model_folder(tmp_path)
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelLoadError, match=r"config\.json"):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize(
        "decoder",
        [
            None,
            decoders.CTC(),
            decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]),
        ],
    )
    def test_unsupported_decoder_is_named(self, decoder: decoders.Decoder | None) -> None:
        backend = Backend(models.BPE({"a": 0}, []))
        if decoder is not None:
            backend.decoder = decoder
        kind = json.loads(backend.to_str())["decoder"]
        name = kind["type"] if kind else "null"
        with pytest.raises(ModelLoadError, match=f"{name}.* is not supported"):
            Tokenizer(backend)
