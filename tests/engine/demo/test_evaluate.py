from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.demo import MODEL_DIR
from engine.demo.data import KINDS, Example
from engine.demo.evaluate import MAX_TOKENS, Accuracy, Outcome, evaluate, held_out_examples
from engine.demo.vocabulary import TURN_END, token_id
from tests.engine.demo.references import prompt_text, reference

TOKENIZER = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
END = token_id(TOKENIZER, TURN_END)
HELD_OUT = held_out_examples(4)


class Reciter:
    """Knows the references by heart, except of the kinds that it is to get wrong."""

    def __init__(self, *wrong: str, end: list[int]) -> None:
        self._end = end
        self._answers = {
            prompt_text(chat): "no idea" if chat.kind in wrong else reference(chat)
            for chat in HELD_OUT
        }

    def __call__(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        assert max_tokens == MAX_TOKENS
        texts = [TOKENIZER.decode(prompt, skip_special_tokens=False) for prompt in prompts]
        answers = [TOKENIZER.encode(self._answers[text]).ids for text in texts]
        assert all(len(answer) < max_tokens for answer in answers)
        return [answer + self._end for answer in answers]


def test_the_references_are_all_right() -> None:
    accuracy = evaluate(Reciter(end=[END]), TOKENIZER, HELD_OUT)
    assert accuracy.overall == 1
    assert accuracy.per_kind() == dict.fromkeys(KINDS, 1.0)


def test_what_follows_the_end_token_does_not_count() -> None:
    assert evaluate(Reciter(end=[END, 50, 60, 0, 0]), TOKENIZER, HELD_OUT).overall == 1


def test_an_answer_that_does_not_end_is_wrong() -> None:
    accuracy = evaluate(Reciter(end=[]), TOKENIZER, HELD_OUT)
    assert accuracy.overall == 0
    assert accuracy.outcomes[0].answer == reference(accuracy.outcomes[0].example)


def test_each_kind_is_counted_for_itself() -> None:
    accuracy = evaluate(Reciter("fact", "tool", end=[END]), TOKENIZER, HELD_OUT)
    shares = accuracy.per_kind()
    assert {kind for kind in KINDS if shares[kind] < 1} == {"fact", "tool"}
    assert shares["fact"] == shares["tool"] == 0
    assert accuracy.overall == pytest.approx(1 - 2 / len(KINDS))
    assert [o.answer for o in accuracy.wrong("fact", 3)] == ["no idea"] * 3
    assert accuracy.wrong("repeat", 3) == []


def three_of_four() -> Accuracy:
    chat = Example("fact", [], lambda answer: True)
    return Accuracy([Outcome(chat, "a", right) for right in (True, True, False, True)])


def test_the_table_is_markdown() -> None:
    assert three_of_four().table().splitlines() == [
        "| kind | right |",
        "| --- | ---: |",
        "| fact | 75.0% |",
        "| **all** | 75.0% |",
    ]


def test_what_is_saved(tmp_path: Path) -> None:
    three_of_four().save(tmp_path / "accuracy.json")
    assert json.loads((tmp_path / "accuracy.json").read_text()) == {
        "prompts": 4,
        "overall": 0.75,
        "per_kind": {"fact": 0.75},
    }


def test_everyone_is_asked_the_same_prompts() -> None:
    again = held_out_examples(4)
    assert [chat.messages for chat in again] == [chat.messages for chat in HELD_OUT]
    assert len(HELD_OUT) == 4 * len(KINDS)


def test_fewer_prompts_are_the_first_of_more() -> None:
    assert [c.messages for c in held_out_examples(1)] == [
        c.messages for c in HELD_OUT[: len(KINDS)]
    ]
