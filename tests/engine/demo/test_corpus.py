from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.demo import MODEL_DIR
from engine.demo.corpus import Batch, Corpus, Encoder, batches_of
from engine.demo.data import Example, examples
from engine.demo.evaluate import held_out_examples
from engine.demo.vocabulary import MAX_LENGTH, TURN_END
from tests.engine.demo.references import reference

TOKENIZER = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
ENCODER = Encoder(TOKENIZER)


def answers(chat: Example) -> str:
    """What the assistant says in all of a chat, each turn with its end token."""
    turns = [at for at, message in enumerate(chat.messages) if message["role"] == "assistant"]
    heads = [Example(chat.kind, chat.messages[: at + 1], chat.check, chat.tools) for at in turns]
    return "".join(reference(head) + TURN_END for head in heads)


def test_the_loss_counts_what_the_assistant_says_and_nothing_else() -> None:
    chats = [*islice(examples("train", 8), 60), *held_out_examples(2)]
    for chat, (ids, counted) in zip(chats, ENCODER.encode(chats), strict=True):
        assert TOKENIZER.decode(list(ids[counted]), skip_special_tokens=False) == answers(chat)


def test_a_chat_ends_with_its_end_token() -> None:
    (ids, counted) = ENCODER.encode(held_out_examples(1)[:1])[0]
    assert ids[-1] == TOKENIZER.token_to_id(TURN_END)
    assert counted[-1]


def test_a_chat_that_is_too_long_is_left_out() -> None:
    chats = [
        Example("chat", [{"role": "user", "content": "7" * n}], lambda answer: True)
        for n in (10, MAX_LENGTH, 20)
    ]
    assert len(ENCODER.encode(chats)) == 2


LENGTHS = st.lists(st.integers(3, 90), min_size=1, max_size=40)


@given(LENGTHS, st.integers(32, 300))
def test_batches_hold_every_chat_once_within_the_limit(lengths: list[int], limit: int) -> None:
    encoded = [
        (np.full(n, i + 1, dtype=np.int16), np.arange(n) >= n // 2) for i, n in enumerate(lengths)
    ]
    batches = list(batches_of(encoded, limit))
    rows = [row for batch in batches for row in batch.tokens]
    found = {int(row[0]): int(np.count_nonzero(row)) for row in rows}
    assert found == {i + 1: n for i, n in enumerate(lengths)}
    assert len(rows) == len(lengths)
    for batch in batches:
        assert batch.tokens.shape[1] % 16 == 0
        assert batch.tokens.size <= limit or len(batch.tokens) == 1
    assert sum(len(batch.targets) for batch in batches) == sum(n - n // 2 for n in lengths)


@given(LENGTHS)
def test_a_target_follows_its_position(lengths: list[int]) -> None:
    numbers = np.arange(1, 100, dtype=np.int16)
    encoded = [(numbers[:n], np.arange(n) >= 2) for n in lengths]
    for batch in batches_of(encoded, 500):
        assert np.array_equal(batch.tokens.reshape(-1)[batch.positions + 1], batch.targets)
        assert np.array_equal(batch.tokens.reshape(-1)[batch.positions], batch.targets - 1)


def corpus(**options: int) -> Corpus:
    settings = {"seed": 1, "tokens_per_batch": 4096, "num_workers": 1, "chats_per_chunk": 40}
    return Corpus(TOKENIZER, **{**settings, **options})


def test_workers_make_batches_and_full_memory_makes_them_go_round() -> None:
    made = corpus(memory_tokens=1)
    try:
        batches: list[Batch] = [made.take() for _ in range(100)]
        assert all(batch.tokens.size <= 4096 for batch in batches)
        different = {id(batch) for batch in batches}
        assert 1 < len(different) < 40, "two chunks of 40 chats, again and again"
        assert made.num_waiting == 0
        assert made.num_tokens == sum({id(b): b.tokens.size for b in batches}.values())
    finally:
        made.close()


def test_what_a_worker_raises_comes_out_of_take() -> None:
    broken = corpus(chats_per_chunk=-1)
    try:
        with pytest.raises(ValueError, match="islice"):
            broken.take()
    finally:
        broken.close()
