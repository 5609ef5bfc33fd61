"""What the demo that sees is trained with: pictures, questions, and chats as tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

from engine.demo.vision import network
from engine.demo.vision.batches import (
    IMAGE,
    SPECIAL,
    Batches,
    Encoder,
    as_shown,
    held_out,
    prompt_of,
    split_of,
)
from engine.demo.vision.evaluate import Accuracy, judged
from engine.demo.vision.fonts import FOLDERS, HELD_OUT, find_fonts
from engine.demo.vision.pictures import (
    _HAND,
    _LIT,
    held_out_split,
    train_split,
)
from engine.demo.vision.questions import KINDS, Example
from engine.demo.vision.train import TEMPLATE_FILE
from engine.demo.vocabulary import TURN_END, token_id, train_tokenizer
from engine.text.chat_template import ChatTemplate

GRID = (3, 4)
SPLIT = split_of("heldout", [])


def tokenizer() -> Tokenizer:
    return train_tokenizer(
        ["What digit is this? The digit is 7."], 400, special=SPECIAL, markers=()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_chats_of_a_kind(kind: str) -> None:
    chats = held_out(kind, 12, SPLIT)
    again = held_out(kind, 12, SPLIT)
    for chat, other in zip(chats, again, strict=True):
        assert chat.turns == other.turns
        assert [p.tobytes() for p in chat.pictures] == [p.tobytes() for p in other.pictures]
        assert len(chat.pictures) == {"text": 0, "digits": 2}.get(kind, 1)
        assert all(question and answer.isascii() for question, answer in chat.turns)
        for picture in chat.pictures:
            assert picture.mode == "RGB"
            assert len(set(picture.tobytes())) > 1, "something is drawn"
    assert len({chat.turns[0] for chat in chats}) > 1


def test_held_out_pictures_differ_from_those_of_training_in_all_that_they_promise() -> None:
    train, held = train_split([]), held_out_split([])
    for bands, others in ((train.angles, held.angles), (train.sizes, held.sizes)):
        for low, high in bands:
            assert all(high <= a or b <= low for a, b in others)
    families = {fonts[0].family for fonts in find_fonts("train")}
    assert not families & HELD_OUT
    assert {fonts[0].family for fonts in find_fonts("heldout")} >= {"Aileron"}
    assert {fonts[0].family for fonts in find_fonts("heldout")} <= HELD_OUT


def test_digits_by_strokes_are_ten() -> None:
    assert set(_HAND) == set(_LIT) == set("0123456789")
    assert len(set(_LIT.values())) == 10


def test_prompts_are_those_of_the_chat_template() -> None:
    template = ChatTemplate({"default": TEMPLATE_FILE.read_text()})
    for kind in KINDS:
        for chat in held_out(kind, 3, SPLIT):
            content = [{"type": "image"}] * len(chat.pictures)
            parts = [*content, {"type": "text", "text": chat.turns[0][0]}]
            messages = [{"role": "user", "content": parts}]
            rendered = template.render(messages, add_generation_prompt=True)
            assert rendered == prompt_of(chat, IMAGE)


def test_the_loss_counts_answers_and_nothing_else() -> None:
    codec = tokenizer()
    encoder = Encoder(codec)
    chats = [chat for kind in KINDS for chat in held_out(kind, 4, SPLIT)]
    batch = encoder.batch(chats, GRID)
    for chat, ids, counted in zip(chats, batch.token_ids, batch.is_answer, strict=True):
        said = codec.decode(ids[counted].tolist(), skip_special_tokens=False)
        assert said == "".join(answer + TURN_END for _, answer in chat.turns)
    image = token_id(codec, IMAGE)
    pictures = [picture for chat in chats for picture in chat.pictures]
    assert (batch.token_ids == image).sum() == len(pictures) * GRID[0] * GRID[1]
    shown = [as_shown(picture, GRID) for picture in pictures]
    assert np.array_equal(batch.pictures, np.stack(shown))
    assert batch.pictures.shape[1:] == (GRID[0] * network.SIDE, GRID[1] * network.SIDE, 3)


def test_positions_of_pictures_are_rows_and_columns() -> None:
    frame, row, column = network.positions([5, 9, 9, 9, 9, 9, 9, 6, 7], 9, (2, 3)).tolist()
    assert frame == [0, 1, 1, 1, 1, 1, 1, 4, 5]
    assert row == [0, 1, 1, 1, 2, 2, 2, 4, 5]
    assert column == [0, 1, 2, 3, 1, 2, 3, 4, 5]


def test_answers_are_right_if_they_are_exact_and_end() -> None:
    codec = tokenizer()
    asked = [Example("digit", [Image.new("RGB", (8, 8))], [("What digit is this?", "It is 7.")])]
    end = token_id(codec, TURN_END)
    ids = codec.encode("It is 7.").ids
    for answer, right in (([*ids, end, 3], True), (ids, False), ([*ids[:-1], end], False)):
        (outcome,) = outcomes = judged(asked, [answer], codec, end)
        assert outcome.right is right
        assert Accuracy(outcomes).overall == right


def test_workers_make_batches_and_say_what_went_wrong(tmp_path: Path) -> None:
    if not find_fonts("train"):
        pytest.skip(f"no fonts in {', '.join(map(str, FOLDERS))}")
    made = Batches(tokenizer(), FOLDERS, workers=1, chats=3, seed=1)
    try:
        batch = made.take(wait=True)
        assert batch is not None
        assert len(batch.token_ids) == 3
    finally:
        made.close()
    broken = Batches(tokenizer(), [tmp_path], workers=1, chats=3, seed=1)
    try:
        with pytest.raises(FileNotFoundError, match="no font to train with"):
            broken.take(wait=True)
    finally:
        broken.close()
