from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from engine.demo import MODEL_DIR
from engine.demo.data import examples
from engine.demo.template import render
from engine.demo.vocabulary import (
    END_OF_TEXT,
    MAX_LENGTH,
    TURN_END,
    TURN_START,
    save_tokenizer,
    token_id,
    train_tokenizer,
)
from engine.text.tokenizer import Tokenizer

MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
BUNDLED = Tokenizer.load(MODEL_DIR)
# Any text, with what the tokenizer treats in its own way made likely.
PIECE = st.text(max_size=12) | st.sampled_from(
    [*MARKERS, "<|im_end|", "007", "  ", "\r\n", " \n", "é", "👩‍🔬", "你好", "\x00", '{"a": 1}']
)
TEXT = st.lists(PIECE, max_size=6).map("".join)


@pytest.fixture(scope="module")
def small() -> Backend:
    chats = islice(examples("train", 1), 300)
    return train_tokenizer((render(chat.messages, chat.tools) for chat in chats), vocab_size=800)


@given(TEXT)
def test_any_text_survives_the_bundled_tokenizer(text: str) -> None:
    ids = BUNDLED.encode(text, add_special_tokens=False)
    assert BUNDLED.decode(ids) == text
    assert not BUNDLED.special_ids & set(ids)


@given(text=TEXT)
def test_any_text_survives_a_new_tokenizer(small: Backend, text: str) -> None:
    assert small.decode(small.encode(text, add_special_tokens=False).ids) == text


@given(st.lists(TEXT | st.sampled_from([END_OF_TEXT, TURN_START, TURN_END]), max_size=6))
def test_special_tokens_survive_unless_skipped(parts: list[str]) -> None:
    text = "".join(parts)
    ids = BUNDLED.encode(text, add_special_tokens=False)
    assert BUNDLED.decode(ids, skip_special_tokens=False) == text


@given(TEXT, TEXT)
def test_adding_special_tokens_adds_none(first: str, second: str) -> None:
    """The template writes them all, so that both ways of encoding a prompt are right."""
    text = f"{TURN_START}{first}{TURN_END}{second}"
    assert BUNDLED.encode(text) == BUNDLED.encode(text, add_special_tokens=False)


def test_the_special_tokens_come_first(small: Backend) -> None:
    for tokenizer in (small, Backend.from_file(str(MODEL_DIR / "tokenizer.json"))):
        ids = [token_id(tokenizer, token) for token in (END_OF_TEXT, TURN_START, TURN_END)]
        assert ids == [0, 1, 2]


def test_the_vocabulary_has_the_size_asked_for(small: Backend) -> None:
    assert small.get_vocab_size() == 800


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_of_a_tool_call_is_one_token_that_decoding_keeps(marker: str) -> None:
    ids = BUNDLED.encode(f"a{marker}b", add_special_tokens=False)
    assert [BUNDLED.decode([i]) for i in ids] == ["a", marker, "b"]


def test_every_digit_is_a_token(small: Backend) -> None:
    for tokenizer in (small, Backend.from_file(str(MODEL_DIR / "tokenizer.json"))):
        pieces = [tokenizer.decode([i]) for i in tokenizer.encode("cost 1024 + 9").ids]
        assert [piece for piece in pieces if piece.strip().isdigit()] == list("10249")


def test_a_word_has_the_same_tokens_after_a_quote_as_after_a_space(small: Backend) -> None:
    """Copying a value into JSON is copying the tokens that stood in the sentence."""
    bare = small.encode("Zanzibar").ids
    assert small.encode('"Zanzibar').ids[1:] == bare
    assert small.decode(small.encode(" Zanzibar").ids).strip() == "Zanzibar"


def test_an_unknown_token_has_no_id(small: Backend) -> None:
    with pytest.raises(AssertionError, match="<pad>"):
        token_id(small, "<pad>")


def test_a_saved_tokenizer_is_the_same_for_transformers(small: Backend, tmp_path: Path) -> None:
    save_tokenizer(small, tmp_path)
    loaded: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = render([{"role": "user", "content": "Héllo 12  you"}], add_generation_prompt=True)
    assert loaded(text)["input_ids"] == small.encode(text).ids
    assert loaded.decode(small.encode(text).ids) == text
    assert (loaded.eos_token, loaded.pad_token, loaded.bos_token) == (TURN_END, END_OF_TEXT, None)
    assert loaded.model_max_length == MAX_LENGTH
    assert loaded.chat_template
