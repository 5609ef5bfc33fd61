from __future__ import annotations

import json
from typing import Any

import pytest

from grammar.errors import GrammarTooLarge, InvalidGrammar
from grammar.spec import GrammarSpec, Limits


def test_specs_are_values() -> None:
    schema = {"type": "object", "title": "é"}
    assert GrammarSpec.from_schema(schema) == GrammarSpec.from_schema(dict(schema))
    assert len({GrammarSpec("regex", "a"), GrammarSpec("regex", "a")}) == 1
    assert json.loads(GrammarSpec.from_choices(["a", 'b"']).source) == ["a", 'b"']


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(InvalidGrammar, match="'xml'"):
        GrammarSpec("xml", "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("json_schema", "{", "not valid JSON"),
        ("json_schema", "[]", "object or a boolean"),
        ("json_schema", '{"const": NaN}', "NaN"),
        ("json_schema", '{"minLength": 1e400}', "1e400 is beyond the largest double"),
        ("json_schema", "false", "accepts nothing"),
        ("choice", "[]", "non-empty"),
        ("choice", '"a"', "non-empty"),
        ("choice", '["a", 1]', r"at \$\[1\]"),
        ("ebnf", " \n", "empty"),
        ("json_object", "{}", "no source"),
        ("json_schema", '{"const": ' + "9" * 5000 + "}", "too many digits"),
        ("regex", "a\ud800", "half of a surrogate pair at 1"),
        ("ebnf", 'start: "\udfff"', "surrogate"),
        ("choice", r'["a", "\ud800"]', "surrogate"),
        ("json_schema", r'{"properties": {"\uDFFF": true}}', "surrogate"),
        ("structural_tag", r'{"type": "const_string", "value": "\ud800"}', "surrogate"),
        ("ebnf", "start: a\na[temperature=2]: /x/", "line 2: the attribute 'temperature'"),
        ("ebnf", "\na[capture]: /x/", "line 2: the attribute 'capture'"),
        ("ebnf", "\n\n%llguidance {}\nx-guidance", "line 4: 'x-guidance'"),
    ],
)
def test_malformed_sources_are_refused(kind: Any, source: str, message: str) -> None:
    with pytest.raises(InvalidGrammar, match=message):
        GrammarSpec(kind, source).validate()


def test_escapes_of_whole_characters_are_fine() -> None:
    GrammarSpec("choice", r'["\ud83d\ude00", "\\ud800"]').validate()
    GrammarSpec("ebnf", 'start: "[temperature]"').validate()


@pytest.mark.parametrize("kind", ["regex", "choice", "ebnf"])
def test_blanks_can_be_left_out_of_json_only(kind: Any) -> None:
    with pytest.raises(InvalidGrammar, match="of JSON only"):
        GrammarSpec(kind, '["a"]', any_whitespace=False)


def test_older_words_are_read_in_schemas_only() -> None:
    old = '{"items": [{"type": "null"}]}'
    assert GrammarSpec("json_schema", old).document() == {"prefixItems": [{"type": "null"}]}
    assert GrammarSpec("structural_tag", old).document() == {"items": [{"type": "null"}]}
    now = '{"const": {"items": "["}, "items": {}}'
    assert GrammarSpec("json_schema", now).document() == json.loads(now)


REGEX_TAG = '{"type": "structural_tag", "format": {"type": "regex", "pattern": "%s"}}'


@pytest.mark.parametrize(("kind", "form"), [("regex", "%s"), ("structural_tag", REGEX_TAG)])
def test_a_regex_has_a_size(kind: Any, form: str) -> None:
    limits = Limits(max_regex_size=20)
    GrammarSpec(kind, form % "(ab){10}").validate(limits)
    with pytest.raises(GrammarTooLarge, match="expand to 22, over 20 items") as caught:
        GrammarSpec(kind, form % "(ab){11}").validate(limits)
    assert caught.value.path == ("$" if kind == "regex" else "$.format.pattern")


def test_choices_have_a_number_and_sources_a_size() -> None:
    limits = Limits(max_enum_values=3, max_source_bytes=20)
    GrammarSpec.from_choices(["a", "b", "c"]).validate(limits)
    with pytest.raises(GrammarTooLarge, match="4 choices, over 3"):
        GrammarSpec.from_choices(["a", "b", "c", "d"]).validate(limits)
    GrammarSpec("regex", "é" * 10).validate(limits)
    with pytest.raises(GrammarTooLarge, match="21 bytes, over the limit of 20"):
        GrammarSpec("regex", "é" * 10 + "a").validate(limits)


def test_a_choice_has_a_length() -> None:
    GrammarSpec.from_choices(["x" * 10_000]).validate()
    with pytest.raises(GrammarTooLarge, match=r"10001 characters.*\$\[1\]"):
        GrammarSpec.from_choices(["a", "x" * 10_001]).validate()


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (json.dumps({"enum": list(range(11))}), r"more than 10 values \(at \$\.enum"),
        (json.dumps({"properties": {str(i): {} for i in range(21)}}), "more than 20 properties"),
        (json.dumps(nested(31)), "deeper than 30"),
        ("[" * 100_000, "deeply"),
        (json.dumps({"title": "x" * 300_000}), "bytes"),
    ],
)
def test_too_large_schemas_are_refused(source: str, message: str) -> None:
    limits = Limits(max_depth=30, max_properties=20, max_enum_values=10)
    with pytest.raises(GrammarTooLarge, match=message):
        GrammarSpec("json_schema", source).validate(limits)


def test_at_the_limit_is_allowed() -> None:
    GrammarSpec.from_schema({"enum": list(range(10))}).validate(Limits(max_enum_values=10))
    GrammarSpec.from_schema(nested(29)).validate(Limits(max_depth=30))
