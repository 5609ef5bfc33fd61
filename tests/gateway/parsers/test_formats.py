from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.chat_template import ChatTemplate
from gateway.parsers import formats
from gateway.parsers.base import ToolFormat
from gateway.parsers.deepseek import DEEPSEEK, DEEPSEEK_V31
from gateway.parsers.harmony import HARMONY, HARMONY_REASONING
from gateway.parsers.hermes import HERMES
from gateway.parsers.llama import LLAMA
from gateway.parsers.mistral import MISTRAL, MISTRAL_V11
from gateway.parsers.qwen import QWEN
from gateway.parsers.reasoning import THINK
from tests.gateway.parsers.replay import replay

SIGNS = {
    "hermes": (HERMES, "{% if tools %}<tool_call>{% endif %}"),
    "qwen": (QWEN, "{% if tools %}<tool_call><function=x>{% endif %}"),
    "llama": (LLAMA, "{% if tools %}Environment: ipython{% endif %}"),
    "mistral": (MISTRAL, "{% if tools %}[TOOL_CALLS]{% endif %}"),
    "deepseek": (DEEPSEEK, "{% if tools %}<｜tool▁calls▁begin｜>```json{% endif %}"),
    "harmony": (HARMONY, "{% if tools %}<|channel|>commentary{% endif %}"),
}
DIALECTS = {
    "mistral": (MISTRAL_V11, "{% if tools %}[TOOL_CALLS]f[ARGS]{% endif %}"),
    "deepseek": (DEEPSEEK_V31, "{% if tools %}<｜tool▁calls▁begin｜>{% endif %}"),
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source})


@pytest.mark.parametrize("name", SIGNS)
def test_a_template_shows_which_format_its_model_knows(name: str) -> None:
    expected, source = SIGNS[name]
    assert formats.tool_format("auto", template(source)) is expected
    assert formats.tool_format(name, template("no sign")) is expected


@pytest.mark.parametrize("name", DIALECTS)
def test_a_template_shows_the_dialect_too(name: str) -> None:
    expected, source = DIALECTS[name]
    assert formats.tool_format("auto", template(source)) is expected
    assert formats.tool_format(name, template(source)) is expected


def test_without_tools_in_the_template_there_is_none() -> None:
    assert formats.tool_format("auto", template("<tool_call>")) is None
    assert formats.tool_format("none", template(SIGNS["hermes"][1])) is None
    assert formats.tool_format("auto", template("{{ tools }}")) is HERMES


def test_reasoning_is_looked_for_where_the_template_knows_its_end() -> None:
    assert formats.reasoning_format("auto", template("x</think>y")) is THINK
    assert formats.reasoning_format("auto", template("<|channel|>analysis")) is HARMONY_REASONING
    assert formats.reasoning_format("auto", template("xy")) is None
    assert formats.reasoning_format("think", template("xy")) is THINK
    assert formats.reasoning_format("harmony", template("xy")) is HARMONY_REASONING
    assert formats.reasoning_format("none", template("x</think>y")) is None


@pytest.mark.parametrize(
    "format",
    [found for found, _ in (*SIGNS.values(), *DIALECTS.values())],
    ids=[*SIGNS, *(f"later {name}" for name in DIALECTS)],
)
@pytest.mark.parametrize("num_calls", [1, 2])
def test_what_a_format_asks_of_the_model_its_parser_reads(
    format: ToolFormat, num_calls: int
) -> None:
    """The grammar of a forced call is made of the same parts."""
    arguments = {"city": "Oslo"}
    inner = json.dumps(arguments)
    if not format.has_json_arguments:
        inner = "<parameter=city>\nOslo\n</parameter>\n"
    one = format.begin.replace("%s", "f") + inner + format.end
    text = format.opening + format.separator.join([one] * num_calls) + format.closing
    found = replay(format.make_parser({}), text)
    assert found.content == ""
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [
        ("f", arguments)
    ] * num_calls


ALL = [found for found, _ in (*SIGNS.values(), *DIALECTS.values())]
MARKS = sorted({mark for format in ALL for mark in (*format.marks, format.begin, format.end)})
TEXTS = st.text(max_size=6) | st.sampled_from([*MARKS, '"', "\\", '\\"}', "{[", "\n"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


@given(
    calls=st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), min_size=1, max_size=2),
    format=st.sampled_from([format for format in ALL if format.has_json_arguments]),
    is_ascii=st.booleans(),
    data=st.data(),
)
def test_any_arguments_arrive_letter_by_letter(
    calls: list[dict[str, Any]], format: ToolFormat, is_ascii: bool, data: st.DataObject
) -> None:
    arguments = [json.dumps(call, ensure_ascii=is_ascii) for call in calls]
    texts = [format.begin.replace("%s", "f") + each + format.end for each in arguments]
    text = format.opening + format.separator.join(texts) + format.closing
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert replay(format.make_parser({}), pieces).plain == ("", [("f", each) for each in arguments])


FRAGMENTS = [
    *(mark.replace("%s", "f") for mark in MARKS),
    *('{"name": "f"', '"name": ', '"arguments": ', '"parameters": ', ', "id": '),
    *("nan", "1", "-", "f", '"', "\\", "{", "}", "[", "]", ":", ",", ";", " ", "\n"),
]


@given(
    format=st.sampled_from(ALL),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=10),
    is_begun=st.booleans(),
    data=st.data(),
)
@settings(max_examples=400)
def test_whatever_a_model_writes_is_read_alike_however_it_is_cut(
    format: ToolFormat, fragments: list[str], is_begun: bool, data: st.DataObject
) -> None:
    begin = format.opening + format.begin.replace("%s", "f") if is_begun else ""
    text = begin + "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert (
        replay(format.make_parser({}), pieces).plain == replay(format.make_parser({}), [text]).plain
    )
