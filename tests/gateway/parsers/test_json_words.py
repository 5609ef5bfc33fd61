from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.json_words import JsonWords, translate

TEXTS = st.text(max_size=5) | st.sampled_from(['"', "\\", "NaN", '\\"None', "-inf"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)


def strict(text: str) -> Any:
    """What it is in JSON. Raises ``ValueError`` for words that only Python takes for numbers."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


@given(VALUES, st.booleans(), st.data())
def test_what_python_writes_is_made_json_however_it_is_cut(
    value: Any, is_ascii: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    words = JsonWords()
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = "".join([*map(words.feed, pieces), words.flush()])
    assert found == translate(text)
    strict(found)
    try:
        strict(text)
    except ValueError:
        return
    assert found == text, "what is JSON stays as it is"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[1e5, 1E-5, -1, -0.5e+3]", "[1e5, 1E-5, -1, -0.5e+3]"),
        ("[True, False, None, true, false, null]", "[true, false, null, true, false, null]"),
        ("[NaN, nan, Infinity, inf, -Infinity, -inf]", "[null, null, null, null, null, null]"),
        ('{"None": "None", "a": None}', '{"None": "None", "a": null}'),
        (r'["\" NaN \\", NaN]', r'["\" NaN \\", null]'),
        ("odd - Nan -x undefined", "odd - Nan -x undefined"),
        ('"not closed NaN', '"not closed NaN'),
    ],
)
def test_words(text: str, found: str) -> None:
    assert translate(text) == found


def test_only_a_word_that_may_go_on_is_held_back() -> None:
    words = JsonWords()
    assert words.feed('{"x": 12') == '{"x": 12'
    assert words.feed(", Na") == ", "
    assert words.feed("N") == ""
    assert words.feed("}") == "null}"
    assert words.flush() == ""
