from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.demo.data.example import (
    CallsTools,
    Check,
    Exact,
    FinalNumber,
    JsonAbout,
    JsonEquals,
    ListsFrom,
    OneOf,
    Tells,
    Verse,
    fill,
    held_out,
    join_words,
    mentions,
    normalise,
    phrase,
    roughen,
    say,
)

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
STORY = "Once upon a time a fox named Ada found a map. She was very happy about it."

CHECKS: dict[str, tuple[Check, list[str], list[str]]] = {
    "exact": (Exact("a b"), ["a b", " a b\n"], ["", "a  b", "A b", "a b.", "a b a b"]),
    "mentions": (
        mentions("Paris", ("France", "french")),
        ["Paris is in France.", "paris: FRENCH", "(France) Paris"],
        ["", "Paris", "France", "Parisian France", "Par is in France"],
    ),
    "final number": (
        FinalNumber(-12),
        ["-12", "3 - 15 = -12.", "It is 4? No, -12!"],
        ["", "12", "-12, or 13", "-120", "minus twelve", "-1.2"],
    ),
    "json": (
        JsonEquals({"name": "Ada", "age": 7}),
        ['{"age": 7, "name": "Ada"}', '{"name":"Ada","age":7}\n'],
        [
            "",
            "{}",
            '{"name": "Ada"}',
            '{"name": "Ada", "age": "7"}',
            '{"name": "Ada", "age": 7',
            "7",
        ],
    ),
    "json around it": (
        JsonEquals({"a": 1}),
        ['{"a": 1}'],
        ['Here: {"a": 1}', '```json\n{"a": 1}\n```', '[{"a": 1}]', '{"a": 1} {"a": 1}'],
    ),
    "free keys": (
        JsonAbout({"name": "Ada", "person": "Ada", "age": 7}),
        ['{"person": "Ada"}', '{"age": 7, "name": "Ada"}'],
        ["", "{}", "7", '["name"]', '{"age": 8}', '{"name": "Ada", "job": 1}', '{"age": 7'],
    ),
    "a verse": (
        Verse("the sea", 2),
        ["I saw The Sea  \nand it saw me."],
        ["", "the sea", "I saw the seal\nand it saw me.", "the sea\nwas\nblue"],
    ),
    "one of": (OneOf(frozenset({"a", "b"})), ["a", "b\n"], ["", "c", "a b"]),
    "a call": (
        CallsTools((("get_weather", {"city": "Rome"}),)),
        [CALL, f"Let me see.\n{CALL}"],
        [
            "",
            CALL.replace("Rome", "rome"),
            CALL.replace("get_", ""),
            CALL.replace("city", "place"),
            CALL.replace("}}", "}"),
            CALL.removesuffix("</tool_call>"),
            f"{CALL}\n{CALL}",
            '{"name": "get_weather", "arguments": {"city": "Rome"}}',
        ],
    ),
    "two calls": (
        CallsTools((("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo"}))),
        [f"{CALL}\n{CALL.replace('Rome', 'Oslo')}"],
        [CALL, f"{CALL.replace('Rome', 'Oslo')}\n{CALL}", f"{CALL}\n{CALL}"],
    ),
    "a list": (
        ListsFrom(frozenset({"oak", "pine", "elm"}), 2),
        ["- Oak\n- Elm", "Here are two trees:\n\n1. pine\n2. oak"],
        ["", "- Oak", "- Oak\n- oak", "- Oak\n- Elm\n- Pine", "- Oak\n- Rose", "Oak\nElm"],
    ),
    "a story": (
        Tells(("fox", "Ada"), min_words=10),
        [STORY, STORY.upper().replace("IT.", "IT!")],
        ["", STORY[:-1], STORY.replace("Ada", "Adam"), STORY.replace("fox", ""), "A fox: Ada."],
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_tells_right_from_wrong(name: str) -> None:
    check, right, wrong = CHECKS[name]
    assert [answer for answer in right if not check(answer)] == []
    assert [answer for answer in wrong if check(answer)] == []


def test_an_exchange_without_a_check_wants_the_reference() -> None:
    turn = say("repeat", "Say: a b", "a b", key="a b")
    assert turn.check("a b")
    assert not turn.check("a c")


def test_about_one_key_in_twelve_is_held_out() -> None:
    share = sum(held_out(f"prompt {i}") for i in range(12_000)) / 12_000
    assert 1 / 14 < share < 1 / 10


def test_no_key_is_never_held_out() -> None:
    assert not held_out(None)


@pytest.mark.parametrize(
    ("one", "other"),
    [("What is 3 + 4?", "what is 3 + 4"), ("Say: hello!", "say hello"), ("a  b", "a b")],
)
def test_case_and_marks_make_no_other_prompt(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(("one", "other"), [("3 + 4", "3 - 4"), ("3 * 4", "3 / 4"), ("3", "4")])
def test_signs_and_digits_make_another_prompt(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_fill_leaves_other_braces_alone() -> None:
    assert fill('{"t": {t}, "x": {}}', {"t": 3}) == '{"t": 3, "x": {}}'


def test_filled_values_are_not_filled_again() -> None:
    assert fill("{x}", {"x": "{y}", "y": "no"}) == "{y}"


@given(st.integers(), st.sampled_from(["What is {a} plus {b}?", "{a}", "Remember {b}, please."]))
def test_roughening_keeps_the_placeholders(seed: int, template: str) -> None:
    wanted = re.findall(r"\{\w+\}", template)
    assert re.findall(r"\{\w+\}", roughen(random.Random(seed), template)) == wanted


def test_roughening_leaves_most_prompts_as_they_are() -> None:
    template = "What is the largest number here?"
    rng = random.Random(1)
    rough = [roughen(rng, template) for _ in range(2000)]
    assert 0.5 < rough.count(template) / len(rough) < 0.62
    assert len(set(rough)) > 20  # typos, lower case, polite words


def test_a_phrase_is_shown_rough_but_keyed_clean() -> None:
    rng = random.Random(2)
    drawn = [phrase(rng, ("Tell me about {x}.",), x="Oslo") for _ in range(200)]
    assert {clean for _, clean in drawn} == {"Tell me about Oslo."}
    assert len({shown for shown, _ in drawn}) > 5
    assert all("Oslo" in shown for shown, _ in drawn)


@pytest.mark.parametrize(
    ("words", "joined"),
    [("a", "a"), ("ab", "a and b"), ("abc", "a, b and c"), ("abcd", "a, b, c and d")],
)
def test_words_are_joined_as_in_a_sentence(words: str, joined: str) -> None:
    assert join_words(list(words)) == joined


def test_json_answers_compare_as_values() -> None:
    value = {"a": [1, "é"], "b": None}
    assert JsonEquals(value)(json.dumps(value, indent=2))
    assert JsonEquals(value)(json.dumps(value, ensure_ascii=False, sort_keys=True))
