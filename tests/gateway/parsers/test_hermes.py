from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.hermes import CLOSE, HERMES, OPEN
from tests.gateway.parsers.replay import Collected, check_splits, replay


def parse(pieces: Iterable[str]) -> Collected:
    return replay(HERMES.make_parser({}), pieces)


WEATHER = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'

FOUND = ("get_weather", '{"city": "Oslo"}')

NO_ARGUMENTS = [("f", "{}")]

CASES: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "plain": ("Hello < there\n\n", "Hello < there\n\n", []),
    "one call": (
        f"{OPEN}\n{WEATHER}\n{CLOSE}",
        "",
        [("get_weather", '{"city": "Oslo"}')],
    ),
    "text around": (
        f"Let me see.\n{OPEN}\n{WEATHER}\n{CLOSE}\nDone.",
        "Let me see.\nDone.",
        [("get_weather", '{"city": "Oslo"}')],
    ),
    "blanks before a text": ("\n Hello", "\n Hello", []),
    "blanks behind a call": (f"Hi\n{OPEN}{WEATHER}{CLOSE}\n", "Hi", [FOUND]),
    "blanks behind the text behind a call": (
        f"Hi\n{OPEN}{WEATHER}{CLOSE}\nDone \n",
        "Hi\nDone \n",
        [FOUND],
    ),
    "two calls": (
        f'{OPEN}{WEATHER}{CLOSE}\n{OPEN}{{"name":"g","arguments":{{}}}}{CLOSE}\n',
        "",
        [("get_weather", '{"city": "Oslo"}'), ("g", "{}")],
    ),
    "arguments first": (
        f'{OPEN}{{"arguments": {{"a": [1, {{"b": 2}}]}}, "name": "f"}}{CLOSE}',
        "",
        [("f", '{"a": [1, {"b": 2}]}')],
    ),
    "a tag inside a string": (
        f'{OPEN}{{"name": "f", "arguments": {{"html": "</tool_call> \\" }}"}}}}{CLOSE}',
        "",
        [("f", '{"html": "</tool_call> \\" }"}')],
    ),
    "arguments as text": (
        f'{OPEN}{{"name": "f", "arguments": "{{\\"x\\": 1}}"}}{CLOSE}',
        "",
        [("f", '{"x": 1}')],
    ),
    "no arguments": (f'{OPEN}{{"name": "f"}}{CLOSE}', "", [("f", "{}")]),
    "null arguments": (f'{OPEN}{{"name": "f", "arguments": null}}{CLOSE}', "", [("f", "{}")]),
    "a list": (f'{OPEN}{{"name": "f", "arguments": [1, 2]}}{CLOSE}', "", [("f", "[1, 2]")]),
    "arguments twice": (
        f'{OPEN}{{"name": "f", "arguments": {{"a": 1}}, "parameters": {{}}}}{CLOSE}',
        "",
        [("f", '{"a": 1}')],
    ),
    "an empty name": (
        f'{OPEN}{{"name": "", "arguments": {{}}}}{CLOSE}',
        f'{OPEN}{{"name": "", "arguments": {{}}}}{CLOSE}',
        [],
    ),
    "half a character": (
        f'{OPEN}{{"name": "f\\ud800", "arguments": "{{\\"a\\": \\"\\udfff\\"}}"}}{CLOSE}',
        "",
        [("f\\ud800", '{"a": "\\udfff"}')],
    ),
    "two calls in one tag": (
        f'{OPEN}{{"name": "f", "arguments": {{"a": 1}}}}\n{{"name": "g"}} {{"x": 1}}{CLOSE}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    "a tag that is not closed before the next": (
        f'{OPEN}{{"name": "f"}}\n{OPEN}{WEATHER}{CLOSE}\nDone',
        "Done",
        [("f", "{}"), ("get_weather", '{"city": "Oslo"}')],
    ),
    "a brace too many": (
        f'{OPEN}{{"name": "f", "arguments": {{}}}}}}{CLOSE}',
        "",
        [("f", "{}")],
    ),
    "other members": (
        f'{OPEN}{{"id": 5, "ok": true, "name": "f", "arguments": {{}}}}{CLOSE}',
        "",
        [("f", "{}")],
    ),
    "cut in the arguments": (
        f'{OPEN}{{"name": "f", "arguments": {{"x": "y',
        "",
        [("f", '{"x": "y')],
    ),
    "cut behind a call without arguments": (f'{OPEN}{{"name": "f"}}', "", [("f", "{}")]),
    "cut before the name": (f'{OPEN}{{"na', f'{OPEN}{{"na', []),
    "cut in the tag": ("Hi <tool_ca", "Hi <tool_ca", []),
    "cut in the next tag": (f"{OPEN}{WEATHER}{CLOSE}\n<tool_ca", "<tool_ca", [FOUND]),
    "cut in the next tag, with text": (
        f"Hi\n{OPEN}{WEATHER}{CLOSE}\n<tool_ca",
        "Hi\n<tool_ca",
        [FOUND],
    ),
    "no JSON": (f"{OPEN}nonsense{CLOSE} x", f"{OPEN}nonsense{CLOSE} x", []),
    "no JSON behind blanks": (f"\n {OPEN}nonsense{CLOSE}", f"\n {OPEN}nonsense{CLOSE}", []),
    "no JSON behind a call": (
        f"{OPEN}{WEATHER}{CLOSE}\n{OPEN}nonsense{CLOSE}",
        f"{OPEN}nonsense{CLOSE}",
        [FOUND],
    ),
    "no JSON behind a call, and more": (
        f"{OPEN}{WEATHER}{CLOSE}{OPEN}nonsense{CLOSE}\n Done",
        f"{OPEN}nonsense{CLOSE}\n Done",
        [FOUND],
    ),
    "no JSON behind a call, and blanks": (
        f"{OPEN}{WEATHER}{CLOSE}{OPEN}nonsense{CLOSE}\n",
        f"{OPEN}nonsense{CLOSE}\n",
        [FOUND],
    ),
    "no JSON behind a call and a text": (
        f"{OPEN}{WEATHER}{CLOSE}\nSo \n{OPEN}nonsense{CLOSE}",
        f"So \n{OPEN}nonsense{CLOSE}",
        [FOUND],
    ),
    "a word that is no JSON": (
        f'{OPEN}{{"name": f, "arguments": {{}}}}{CLOSE}',
        f'{OPEN}{{"name": f, "arguments": {{}}}}{CLOSE}',
        [],
    ),
    "a word after the name": (f'{OPEN}{{"name": "f", "id": nan}}{CLOSE}!', "!", [("f", "{}")]),
    "words of Python": (
        f'{OPEN}{{"name": "f", "arguments": {{"NaN": [nan, -Infinity, None], "b": True}}}}{CLOSE}',
        "",
        [("f", '{"NaN": [null, null, null], "b": true}')],
    ),
    "no number for arguments": (
        f'{OPEN}{{"name": "f", "arguments": NaN}}{CLOSE}',
        "",
        NO_ARGUMENTS,
    ),
    "None for arguments": (f'{OPEN}{{"name": "f", "arguments": None}}{CLOSE}', "", NO_ARGUMENTS),
    "a list of no numbers": (
        f'{OPEN}{{"name": "f", "arguments": [NaN]}}{CLOSE}',
        "",
        [("f", "[null]")],
    ),
    "a text of no number": (
        f'{OPEN}{{"name": "f", "arguments": "{{\\"x\\": NaN}}"}}{CLOSE}',
        "",
        [("f", '{"x": null}')],
    ),
    "a word for arguments": (
        f'{OPEN}{{"name": "f", "arguments": odd}}{CLOSE}',
        "",
        [("f", "odd")],
    ),
    "cut in a word": (f'{OPEN}{{"name": "f", "arguments": {{"x": Na', "", [("f", '{"x": Na')]),
    "cut after a word": (
        f'{OPEN}{{"name": "f", "arguments": {{"x": NaN',
        "",
        [("f", '{"x": null')],
    ),
    "a name that is no string": (
        f'{OPEN}{{"name": 3}}{CLOSE}',
        f'{OPEN}{{"name": 3}}{CLOSE}',
        [],
    ),
    "junk after the object": (f'{OPEN}{{"name": "f"}} junk{CLOSE}!', "!", [("f", "{}")]),
    "nearly tags": ("a <<tool_call <tool_calls", "a <<tool_call <tool_calls", []),
    "tag right after": (f'a <{OPEN}{{"name":"x"}}{CLOSE}', "a <", [("x", "{}")]),
    "never closed": (f'{OPEN}{{"name": "f", "arguments": {{}}}}\n', "", [("f", "{}")]),
    "deep": (
        f'{OPEN}{{"name": {"[" * 5000}',
        f'{OPEN}{{"name": {"[" * 5000}',
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_in_one_piece(name: str) -> None:
    text, content, calls = CASES[name]
    assert parse([text]).plain == (content, calls)


@pytest.mark.parametrize("name", [name for name in CASES if name != "deep"])
def test_split_at_every_position(name: str) -> None:
    text, content, calls = CASES[name]
    check_splits(partial(HERMES.make_parser, {}), text, (content, calls))


_FRAGMENTS = st.sampled_from(
    [OPEN, CLOSE, "<", "tool", '"', "\\", "{", "}", "[", "]", ":", ",", " ", "\n", "a", WEATHER]
)


@given(fragments=st.lists(_FRAGMENTS, max_size=20), data=st.data())
def test_any_text_split_anywhere(fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(pieces).plain == parse([text]).plain


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    name=st.text(min_size=1),
    arguments=st.dictionaries(st.text(), _JSON, max_size=3),
    before=st.text(alphabet="ab <\n"),
    indent=st.sampled_from([None, 2]),
)
def test_every_valid_call_is_found_and_its_arguments_kept(
    name: str, arguments: dict[str, object], before: str, indent: int | None
) -> None:
    written = json.dumps({"name": name, "arguments": arguments}, indent=indent)
    found = parse(f"{before}{OPEN}{written}{CLOSE}")
    assert found.content == before.rstrip()
    (call,) = found.calls
    assert call.name == name
    assert json.loads(call.arguments) == arguments


def test_the_name_comes_before_the_arguments_are_complete() -> None:
    parser = HERMES.make_parser({})
    parser.push(f'{OPEN}{{"name": "f", "arguments": {{"x": "')
    _, pieces = parser.push("abc")
    assert [piece.function.arguments for piece in pieces] == ["abc"]


def test_plain_text_is_not_held_back() -> None:
    parser = HERMES.make_parser({})
    assert parser.push("Hello") == ("Hello", [])
    assert parser.push(" world <b") == (" world <b", [])
    assert parser.push(" \n") == ("", [])  # may be layout before a call
    assert parser.push("x") == (" \nx", [])


def test_blanks_before_a_call_are_dropped_though_they_come_with_text() -> None:
    pieces = ["So", " I look \n", f"{OPEN}{WEATHER}{CLOSE}"]
    assert parse(pieces).plain == ("So I look", [FOUND])


def test_time_is_linear() -> None:
    """A long call in single characters: each is looked at once."""
    text = f'{OPEN}{{"name": "f", "arguments": {{"x": "{"y" * 50_000}"}}}}{CLOSE}'
    assert len(parse(text).calls[0].arguments) == 50_000 + len('{"x": ""}')


def test_ids_differ() -> None:
    found = parse([CASES["two calls"][0]])
    assert found.calls[0].id != found.calls[1].id
