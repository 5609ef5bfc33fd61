from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.llama import TAG, LlamaParser
from tests.gateway.parsers.replay import Expected, check_splits, replay

WEATHER = '{"name": "get_weather", "parameters": {"city": "Oslo; {}"}}'
FOUND = ("get_weather", '{"city": "Oslo; {}"}')

CASES: dict[str, tuple[str, Expected]] = {
    "nothing but the object": (WEATHER, ("", [FOUND])),
    "after the tag": (f"{TAG}{WEATHER}", ("", [FOUND])),
    "two": (f'{WEATHER}; {{"name": "g", "parameters": {{}}}}', ("", [FOUND, ("g", "{}")])),
    "two in lines": (f"\n{WEATHER}\n{WEATHER}\n", ("", [FOUND, FOUND])),
    "typed": (
        '{"type": "function", "name": "f", "parameters": {"a": 1}}',
        ("", [("f", '{"a": 1}')]),
    ),
    "without parameters": ('{"name": "f"}', ("", [("f", "{}")])),
    "text before the tag": (f"I look.\n{TAG}{WEATHER}", ("I look.", [FOUND])),
    "text before two": (f"I look.\n{TAG}{WEATHER}; {WEATHER}", ("I look.", [FOUND, FOUND])),
    "text before two tags": (
        f"I look.\n{TAG}{WEATHER};\n{TAG}{WEATHER};",
        ("I look.", [FOUND, FOUND]),
    ),
    "text between": (
        f"{WEATHER};\nAnd {TAG}{WEATHER}",
        (";\nAnd", [FOUND, FOUND]),
    ),
    "a sign before text": (f"{WEATHER} ; so it is", ("; so it is", [FOUND])),
    "text, and a sign before text": (f"So\n{TAG}{WEATHER}; it is", ("So; it is", [FOUND])),
    "a sign before a document": (f'{WEATHER}; {{"n": 1}}', ('; {"n": 1}', [FOUND])),
    "signs at the end": (f"{WEATHER}; ;\n", ("", [FOUND])),
    "a sign before the first": (f";{WEATHER}", (";", [FOUND])),
    "no number": (
        '{"name": "f", "parameters": {"a": NaN}}; {"name": "g", "parameters": nan}',
        ("", [("f", '{"a": null}'), ("g", "{}")]),
    ),
    "a document behind blanks": (' \n{"n": 1}', (' \n{"n": 1}', [])),
    "text after": (f"{WEATHER} done", ("done", [FOUND])),
    "text": ("Hello; {name}", ("Hello; {name}", [])),
    "a document": ('{"city": "Oslo", "n": 1} is it', ('{"city": "Oslo", "n": 1} is it', [])),
    "a set": ("{1, 2}", ("{1, 2}", [])),
    "a name alone that is no text": ('{"name": 3}!', ('{"name": 3}!', [])),
    "cut in the arguments": ('{"name": "f", "parameters": {"x": "y', ("", [("f", '{"x": "y')])),
    "cut before the name": ('{"na', ('{"na', [])),
    "cut in the tag": ("<|python", ("<|python", [])),
    "blanks": (" \n ", (" \n ", [])),
}


@pytest.mark.parametrize("name", CASES)
def test_split_at_every_position(name: str) -> None:
    check_splits(LlamaParser, *CASES[name])


_FRAGMENTS = st.sampled_from([TAG, "<", "{", "}", '"name"', ":", ",", ";", " ", "\n", "a", WEATHER])


@given(fragments=st.lists(_FRAGMENTS, max_size=12), data=st.data())
def test_any_text_split_anywhere(fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert replay(LlamaParser(), pieces).plain == replay(LlamaParser(), [text]).plain


def test_text_is_not_held_back_once_it_is_no_call() -> None:
    parser = LlamaParser()
    assert parser.push("Hel") == ("Hel", [])
    parser = LlamaParser()
    assert parser.push('{"city"') == ('{"city"', [])
    assert parser.push(': "Oslo') == (': "Oslo', [])
