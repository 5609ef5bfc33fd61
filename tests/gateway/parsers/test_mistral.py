from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.mistral import MISTRAL, TAG
from tests.gateway.parsers.replay import Expected, check_splits, replay

make_tools = partial(MISTRAL.make_parser, {})

WEATHER = '{"name": "get_weather", "arguments": {"city": "Oslo]"}}'
FOUND = ("get_weather", '{"city": "Oslo]"}')

CASES: dict[str, tuple[str, Expected]] = {
    "array": (f"{TAG}[{WEATHER}]", ("", [FOUND])),
    "array of two": (f"{TAG} [{WEATHER}, {WEATHER}]", ("", [FOUND, FOUND])),
    "with ids": (
        f'{TAG}[{{"name": "f", "arguments": {{}}, "id": "abc"}}]',
        ("", [("f", "{}")]),
    ),
    "text around": (f"So: {TAG}[{WEATHER}]\nDone", ("So:\nDone", [FOUND])),
    "one by one": (
        f'{TAG}f[ARGS]{{"a": "}}"}}{TAG}g[ARGS]{{}}',
        ("", [("f", '{"a": "}"}'), ("g", "{}")]),
    ),
    "with a call id": (f'{TAG}f[CALL_ID]xyz[ARGS]{{"a": 1}}', ("", [("f", '{"a": 1}')])),
    "without a mark": (f'{TAG}f{{"a": 1}} ', ("", [("f", '{"a": 1}')])),
    "no name": (f"{TAG}{{}} x", (f"{TAG}{{}} x", [])),
    "no name behind blanks": (f"{TAG} \n{{}} x", (f"{TAG} \n{{}} x", [])),
    "a name alone in a cut array": (f'{TAG}[{{"name": "f"}}', ("", [("f", "{}")])),
    "cut behind a name": (f'{TAG}[{{"name": "f", ', ("", [("f", "")])),
    "an empty array": (f"{TAG}[]", (f"{TAG}[]", [])),
    "a word alone": (f"So {TAG} hello", (f"So {TAG} hello", [])),
    "nothing": (TAG, (TAG, [])),
    "cut": (f'{TAG}[{{"name": "f", "arguments": {{"x', ("", [("f", '{"x')])),
    "cut in the mark": ("a [TOOL", ("a [TOOL", [])),
}


@pytest.mark.parametrize("name", CASES)
def test_split_at_every_position(name: str) -> None:
    check_splits(make_tools, *CASES[name])


_FRAGMENTS = st.sampled_from([TAG, "[", "]", "[ARGS]", "{", "}", '"', " ", "a", WEATHER, ","])


@given(fragments=st.lists(_FRAGMENTS, max_size=12), data=st.data())
def test_any_text_split_anywhere(fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert replay(make_tools(), pieces).plain == replay(make_tools(), [text]).plain
