from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.json_strings import JsonStrings


def insides(text: str) -> str:
    """The characters that belong to strings, closing quotes included."""
    strings = JsonStrings()
    return "".join(char for char in text if strings.read(char))


def test_escaped_quotes_and_backslashes_end_no_string() -> None:
    assert insides(r'{"a\"}": ["\\", 1, "b"]}') == r'a\"}"\\"b"'


def test_what_comes_next_is_known() -> None:
    strings = JsonStrings()
    seen = [(strings.inside, strings.escaped)]
    for char in r'"\n"':
        strings.read(char)
        seen.append((strings.inside, strings.escaped))
    assert seen == [(False, False), (True, False), (True, True), (True, False), (False, False)]


@given(st.lists(st.text()))
def test_all_but_layout_of_a_list_of_strings_is_inside(items: list[str]) -> None:
    expected = "".join(json.dumps(item)[1:] for item in items)
    assert insides(json.dumps(items)) == expected
