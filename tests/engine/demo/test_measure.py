from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from engine.demo import MODEL_DIR
from engine.demo.data import Example
from engine.demo.evaluate import held_out_examples
from engine.demo.measure import Greedy
from engine.demo.vocabulary import TURN_END, token_id
from tests.engine.demo.references import prompt_text

TOKENIZER = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
END = token_id(TOKENIZER, TURN_END)
SHORT_KINDS = ("arithmetic", "fact", "repeat", "sentiment", "extract", "tool", "memory")


@pytest.fixture(scope="module")
def greedy() -> Greedy:
    return Greedy(MODEL_DIR)


@pytest.fixture(scope="module")
def chats() -> list[Example]:
    return [chat for chat in held_out_examples(2) if chat.kind in SHORT_KINDS]


def ids_of(chat: Example) -> list[int]:
    ids: list[int] = TOKENIZER.encode(prompt_text(chat), add_special_tokens=False).ids
    return ids


def ended(answer: list[int]) -> list[int]:
    return answer[: answer.index(END) + 1]


@pytest.mark.nightly
def test_a_batch_gives_what_each_prompt_gives_alone(greedy: Greedy, chats: list[Example]) -> None:
    prompts = [ids_of(chat) for chat in chats]
    assert len({len(prompt) for prompt in prompts}) > 5, "padding must matter"
    together = [ended(answer) for answer in greedy(prompts, 100)]
    alone = [ended(greedy([prompt], 100)[0]) for prompt in prompts]
    assert together == alone


@pytest.mark.nightly
def test_the_model_answers_rightly(greedy: Greedy, chats: list[Example]) -> None:
    answers = greedy([ids_of(chat) for chat in chats], 100)
    texts = [TOKENIZER.decode(ended(answer)) for answer in answers]
    right = [chat.check(text) for chat, text in zip(chats, texts, strict=True)]
    assert sum(right) >= 0.9 * len(chats)


def test_no_more_than_max_tokens(greedy: Greedy, chats: list[Example]) -> None:
    answers = greedy([ids_of(chat) for chat in chats[:3]], 4)
    assert [len(answer) for answer in answers] == [4, 4, 4]
