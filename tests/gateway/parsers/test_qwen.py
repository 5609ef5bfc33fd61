from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.base import ToolParser
from gateway.parsers.qwen import CLOSE, OPEN, QWEN, spell
from grammar.errors import UnsupportedKeyword
from grammar.structural_tag import AnyText, ConstString, Format, Or, Sequence, Tag
from tests.gateway.parsers.replay import Expected, check_splits, replay

SCHEMAS = {
    "f": {
        "type": "object",
        "properties": {"zip": {"type": "string"}, "n": {"type": "integer"}, "any": {}},
    }
}


def call(**arguments: str) -> str:
    inside = "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments.items()
    )
    return f"{OPEN}\n<function=f>\n{inside}</function>\n{CLOSE}"


def make() -> ToolParser:
    return QWEN.make_parser(SCHEMAS)


CASES: dict[str, tuple[str, Expected]] = {
    "text stays text": (call(zip="0123"), ("", [("f", '{"zip": "0123"}')])),
    "numbers are numbers": (call(n="3", zip="a"), ("", [("f", '{"n": 3, "zip": "a"}')])),
    "JSON where the schema is silent": (
        call(any='{"a": [1, null]}'),
        ("", [("f", '{"any": {"a": [1, null]}}')]),
    ),
    "text where it is no JSON": (call(any='a "b"\nc'), ("", [("f", '{"any": "a \\"b\\"\\nc"}')])),
    "without arguments": (call(), ("", [("f", "{}")])),
    "two": (call(n="1") + "\n" + call(n="2"), ("", [("f", '{"n": 1}'), ("f", '{"n": 2}')])),
    "text around": (f"So.\n{call(n='1')}\nDone", ("So.\nDone", [("f", '{"n": 1}')])),
    "an unknown function": (
        f"{OPEN}<function=g><parameter=a>1</parameter></function>{CLOSE}",
        ("", [("g", '{"a": 1}')]),
    ),
    "cut in a value": (
        f"{OPEN}<function=f><parameter=zip>012",
        ("", [("f", "{")]),
    ),
    "no call": (f"{OPEN}x{CLOSE}", (f"{OPEN}x{CLOSE}", [])),
    "no name": (f"{OPEN}<function=>{CLOSE}", (f"{OPEN}<function=>{CLOSE}", [])),
    "a function that does not end": (
        f"{OPEN}<function=f><parameter=n>1</parameter>{CLOSE} Done",
        ("Done", [("f", '{"n": 1}')]),
    ),
    "numbers that JSON has not": (
        call(n="NaN", any="[1e999]"),
        ("", [("f", '{"n": "NaN", "any": "[1e999]"}')]),
    ),
    "two functions in one tag": (
        f"{OPEN}<function=><function=f><parameter=n>1</parameter></function>"
        f"<function=g><parameter=a>2</parameter></function>{CLOSE}",
        ("", [("f", '{"n": 1}'), ("g", '{"a": 2}')]),
    ),
    "a tag in a value, and another value": (
        call(any='["</parameter>"]', n="1"),
        ("", [("f", '{"any": ["</parameter>"], "n": 1}')]),
    ),
    "a quote in what is no JSON": (
        call(any='5" wide', n="1"),
        ("", [("f", '{"any": "5\\" wide", "n": 1}')]),
    ),
    "letters as they are": (
        call(zip="é", any='"日"', ñ="ö"),
        ("", [("f", '{"zip": "é", "any": "日", "ñ": "ö"}')]),
    ),
    "half a character": (
        call(any='["\\ud800"]'),
        ("", [("f", '{"any": ["\\ud800"]}')]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_split_at_every_position(name: str) -> None:
    check_splits(make, *CASES[name])


def test_a_schema_whose_properties_are_none_says_nothing_of_values() -> None:
    found = replay(QWEN.make_parser({"f": {"properties": []}}), [call(n="1", zip="a")])
    assert found.plain == ("", [("f", '{"n": 1, "zip": "a"}')])


_FRAGMENTS = st.sampled_from(
    [OPEN, CLOSE, "<function=f>", "</function>", "<parameter=n>", "</parameter>", "<", "1", "\n"]
)


@given(fragments=st.lists(_FRAGMENTS, max_size=12), data=st.data())
def test_any_text_split_anywhere(fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert replay(make(), pieces).plain == replay(make(), [text]).plain


_TEXTS = st.text(max_size=8) | st.sampled_from(
    ["</parameter>", "<parameter=n>", CLOSE, '"', "\n", "1"]
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=5,
)


@given(text=_TEXTS.filter(lambda text: "</parameter>" not in text), value=_VALUES, data=st.data())
def test_what_is_written_as_the_schema_says_arrives(
    text: str, value: Any, data: st.DataObject
) -> None:
    """Texts as they are, everything else as JSON, in which the tags may stand."""
    written = call(zip=text, any=json.dumps(value))
    cut = data.draw(st.integers(0, len(written)))
    ((name, arguments),) = replay(make(), [written[:cut], written[cut:]]).plain[1]
    assert (name, json.loads(arguments)) == ("f", {"zip": text, "any": value})


END = "</parameter>"
TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        (TEXT, AnyText(excludes=(END,))),
        (TEXT | {"enum": ["x", "y", 3]}, Or((ConstString("x"), ConstString("y")))),
        (TEXT | {"enum": ["x", "y", 3], "const": "y"}, Or((ConstString("y"),))),
        (TEXT | {"const": "y"}, Or((ConstString("y"),))),
    ],
)
def test_texts_are_written_without_quotes(schema: dict[str, Any], content: Format) -> None:
    tag = Tag("<parameter=a>\n", content, (f"\n{END}\n",))
    assert spell({"properties": {"a": schema}}) == Sequence((tag,))


@pytest.mark.parametrize(
    ("schema", "keyword", "path"),
    [
        ({"properties": {"a>b": TEXT}}, "properties", "$.properties['a>b']"),
        ({"properties": {" a": TEXT}}, "properties", "$.properties[' a']"),
        ({"properties": {"a": TEXT | {"enum": ["x", END]}}}, "enum", "$.properties.a.enum"),
        ({"properties": {"a": TEXT | {"enum": [3]}}}, "enum", "$.properties.a.enum"),
        ({"properties": {"a": TEXT | {"const": "\nx"}}}, "const", "$.properties.a.const"),
        ({"properties": {"a": TEXT | {"const": "x\n"}}}, "const", "$.properties.a.const"),
        (
            {"properties": {"a": {"anyOf": [{}, {"$ref": "#/properties/b"}]}}},
            "$ref",
            "$.properties.a.anyOf[1].$ref",
        ),
        ({"properties": {"a": {}}, "$defs": {"d": {"$ref": "#"}}}, "$ref", "$.$defs.d.$ref"),
    ],
)
def test_what_cannot_be_written_as_tags_is_refused_in_its_place(
    schema: dict[str, Any], keyword: str, path: str
) -> None:
    with pytest.raises(UnsupportedKeyword) as caught:
        spell(schema)
    assert (caught.value.keyword, caught.value.path) == (keyword, path)
