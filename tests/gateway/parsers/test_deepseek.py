from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.deepseek import (
    CALL,
    CALLS,
    DEEPSEEK,
    END_CALL,
    END_CALLS,
    SEPARATOR,
)
from tests.gateway.parsers.replay import Expected, check_splits, replay

make_tools = partial(DEEPSEEK.make_parser, {})

V3 = f'{CALL}function{SEPARATOR}get_weather\n```json\n{{"city": "Oslo"}}\n```{END_CALL}'
V31 = f'{CALL}get_weather{SEPARATOR}{{"city": "Oslo"}}{END_CALL}'
FOUND = ("get_weather", '{"city": "Oslo"}')

CASES: dict[str, tuple[str, Expected]] = {
    "V3": (f"{CALLS}{V3}{END_CALLS}", ("", [FOUND])),
    "V3.1": (f"{CALLS}{V31}{END_CALLS}", ("", [FOUND])),
    "two, and text around": (
        f"I look.\n\n{CALLS}{V3}\n{V3}{END_CALLS}\nDone",
        ("I look.\nDone", [FOUND, FOUND]),
    ),
    "a tag inside a string": (
        f'{CALLS}{CALL}f{SEPARATOR}{{"a": "{END_CALL}"}}{END_CALL}{END_CALLS}',
        ("", [("f", f'{{"a": "{END_CALL}"}}')]),
    ),
    "without arguments": (f"{CALLS}{CALL}f{SEPARATOR}{END_CALL}{END_CALLS}", ("", [])),
    "cut": (f'{CALLS}{CALL}f{SEPARATOR}{{"a', ("", [("f", '{"a')])),
    "cut in a name": (f"{CALLS}{CALL}fun", (f"{CALLS}{CALL}fun", [])),
    "no name": (
        f'{CALLS}{CALL}function{SEPARATOR}\n{{"a": 1}}\n```{END_CALL}{V31}{END_CALLS}',
        ("", [FOUND]),
    ),
    "no name and no arguments": (
        f"{CALLS}{CALL}{SEPARATOR}{END_CALL}{V31}{END_CALLS}",
        ("", [FOUND]),
    ),
    "without arguments, and another": (
        f"{CALLS}{CALL}f{SEPARATOR}{END_CALL}{V31}{END_CALLS}",
        ("", [("f", "{}"), FOUND]),
    ),
    "no call": (f"{CALLS}{END_CALLS}", (f"{CALLS}{END_CALLS}", [])),
}
CASES["without arguments"][1][1].append(("f", "{}"))


@pytest.mark.parametrize("name", CASES)
def test_split_at_every_position(name: str) -> None:
    check_splits(make_tools, *CASES[name])


_FRAGMENTS = st.sampled_from([CALLS, CALL, END_CALL, END_CALLS, SEPARATOR, "{", "}", "<", "a", V3])


@given(fragments=st.lists(_FRAGMENTS, max_size=12), data=st.data())
def test_any_text_split_anywhere(fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert replay(make_tools(), pieces).plain == replay(make_tools(), [text]).plain
