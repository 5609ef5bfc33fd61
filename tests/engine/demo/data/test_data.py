"""What must hold for all generated chats, whatever their kind."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from engine.demo.data import KINDS, Example, chats, examples
from engine.demo.data.example import (
    CallsTools,
    Exact,
    FinalNumber,
    JsonAbout,
    JsonEquals,
    ListsFrom,
    Mentions,
    OneOf,
    Tells,
    Verse,
    normalise,
)
from engine.demo.evaluate import held_out_examples
from engine.demo.template import render
from tests.engine.demo.references import reference

NUM_TRAINING_CHATS = 8000
# These ask back about what was said before: alone their prompts are the same in both splits.
NEED_THEIR_CONTEXT = {"memory", "tool_answer", "follow_up", "reaction"}


def training(seed: int, count: int) -> list[Example]:
    return list(islice(examples("train", seed), count))


@pytest.fixture(scope="module")
def held_out() -> list[Example]:
    return held_out_examples(40)


def content(chats: Iterable[Example]) -> list[Any]:
    return [(chat.kind, chat.messages, chat.tools) for chat in chats]


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_same_seed_gives_the_same_chats(split: Any) -> None:
    first, again, other = (list(islice(examples(split, seed), 200)) for seed in (3, 3, 4))
    assert content(first) == content(again)
    assert content(first) != content(other)


def test_the_splits_differ_under_one_seed() -> None:
    one, other = (list(islice(examples(split, 3), 100)) for split in ("train", "heldout"))
    assert content(one) != content(other)


def digest(chats: Iterable[Example]) -> str:
    text = "".join(render(chat.messages, chat.tools) for chat in chats)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.nightly
def test_the_data_is_what_the_bundled_model_learned() -> None:
    """Whoever changes the data on purpose trains the model anew, measures it, and changes these."""
    assert digest(training(2_000_000, 1000)) == "ce6b926c09409d03"
    assert digest(held_out_examples(20)) == "3116e6b398d1cffc"


def test_held_out_chats_go_through_the_kinds_in_turn(held_out: list[Example]) -> None:
    assert [chat.kind for chat in held_out[: len(KINDS)]] == list(KINDS)
    assert Counter(chat.kind for chat in held_out) == dict.fromkeys(KINDS, 40)


# --- the split ---------------------------------------------------------------------------------


def said(messages: list[dict[str, Any]]) -> str:
    """Who said what, told apart as the split does it: without case and marks."""
    calls = [[call["function"] for call in m.get("tool_calls", ())] for m in messages]
    words = [[m["role"], normalise(m["content"])] for m in messages]
    return json.dumps([words, calls])


def last_turn(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What came in since the assistant's last answer."""
    start = len(messages)
    while start and messages[start - 1]["role"] not in ("assistant", "system"):
        start -= 1
    return messages[start:]


def prompts(chats: Iterable[Example]) -> Iterator[list[dict[str, Any]]]:
    """Everything that an assistant's turn answers, for each of them."""
    for chat in chats:
        for at, message in enumerate(chat.messages):
            if message["role"] == "assistant":
                yield chat.messages[:at]


def seen_in_training(held_out: list[Example], trained_on: list[Example]) -> set[str]:
    """The kinds of which at least one held-out prompt occurs in training."""
    turns, whole = set(), set()
    for prompt in prompts(trained_on):
        turns.add(said(last_turn(prompt)))
        whole.add(said(prompt))
    return {
        chat.kind
        for chat in held_out
        if said(chat.prompt) in whole
        or (chat.kind not in NEED_THEIR_CONTEXT and said(last_turn(chat.prompt)) in turns)
    }


@pytest.mark.nightly
def test_no_held_out_prompt_occurs_in_training(held_out: list[Example]) -> None:
    assert seen_in_training(held_out, training(5, NUM_TRAINING_CHATS)) == set()


@pytest.mark.nightly
def test_without_the_split_many_would(
    held_out: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail."""
    monkeypatch.setattr(chats, "held_out", lambda key: False)
    assert len(seen_in_training(held_out, training(5, NUM_TRAINING_CHATS))) >= 5


def test_every_kind_is_learned_from() -> None:
    """Words that only one kind of prompt or answer has, counted over training chats."""
    text = "\n".join(render(chat.messages, chat.tools) for chat in training(6, 2000)).lower()
    marks = [
        *(
            "capital of",
            "repeat",
            "json",
            "story",
            "count",
            "| --- |",
            "<tool_call>",
            "\n- ",
            " + ",
        ),
        *("too hard", "no tool for it", "haiku", "small model", "letters", '"type": "object"'),
        *("positive", "reverse", "your name is", "small demo model", "<tool_response>", "goodbye"),
    ]
    assert {mark: text.count(mark) for mark in marks if text.count(mark) < 20} == {}


# --- the references ----------------------------------------------------------------------------


def test_every_reference_passes_its_own_check(held_out: list[Example]) -> None:
    failed = [(chat.kind, reference(chat)) for chat in held_out if not chat.check(reference(chat))]
    assert failed == []


@pytest.mark.parametrize("answer", ["", "Pardon?", "I think that bananas can fly over the moon."])
def test_an_answer_to_something_else_fails_every_check(
    held_out: list[Example], answer: str
) -> None:
    assert [chat.kind for chat in held_out if chat.check(answer)] == []


def corrupted(example: Example) -> list[str]:
    """The reference with the one thing changed that its check is about."""
    answer, check = reference(example), example.check
    match check:
        case Exact():
            return [answer[:-1], f"{answer} {answer}", answer.swapcase() + "x"]
        case FinalNumber(value):
            return [answer.replace(str(value), str(value + 1)), f"{answer} Or {value - 10}?"]
        case Mentions(groups):
            gaps = [answer.lower() for _ in groups]
            for i, group in enumerate(groups):
                for phrase in group:
                    gaps[i] = gaps[i].replace(phrase.lower(), "…")
            return gaps
        case JsonEquals(value):
            fewer = dict(list(value.items())[1:])
            other = {key: f"{item}?" for key, item in value.items()}
            return [json.dumps(fewer), json.dumps(other), f"Here it is: {answer}", answer[:-1]]
        case JsonAbout():
            value = json.loads(answer)
            other = {key: f"{item}?" for key, item in value.items()}
            return ["{}", json.dumps(other), json.dumps({**value, "qqq": 1}), answer[:-1]]
        case OneOf():
            return [answer[:-1], f"{answer} {answer}"]
        case Verse(asked):
            gap = re.sub(re.escape(asked), "…", answer, flags=re.IGNORECASE)
            return [gap, f"{answer}\nMore.", answer.splitlines()[0]]
        case CallsTools(calls):
            name = calls[-1][0]
            return [
                answer.replace(f'"{name}"', '"other_tool"'),
                answer.replace('"arguments": {', '"arguments": {"extra": 1, '),
                f"{answer}\n{answer}",
                answer.removesuffix("</tool_call>"),
            ]
        case ListsFrom():
            lines = answer.splitlines()
            return ["\n".join(lines[:-1]), f"{answer}\n{lines[-1]}", f"{answer}\n- Nonsense"]
        case Tells(asked):
            changed = [answer.replace(word, "somebody").lower() for word in asked]
            return [answer[:-1], " ".join(answer.split()[-20:]), *changed]
        case _:
            raise AssertionError(f"how does one corrupt an answer to {check}?")


def test_every_corrupted_reference_fails_its_check(held_out: list[Example]) -> None:
    wrong = [(chat.kind, text) for chat in held_out for text in corrupted(chat)]
    assert len(wrong) > 2 * len(held_out)
    passed = [
        (chat.kind, text) for chat in held_out for text in corrupted(chat) if chat.check(text)
    ]
    assert passed == []


def test_tool_calls_fit_the_schemas_of_their_chat(held_out: list[Example]) -> None:
    for chat in held_out:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in chat.tools}
        for message in chat.messages:
            for call in message.get("tool_calls", ()):
                arguments = json.loads(call["function"]["arguments"])
                schema = schemas[call["function"]["name"]]
                assert (
                    set(schema.get("required", ())) <= set(arguments) <= set(schema["properties"])
                )
