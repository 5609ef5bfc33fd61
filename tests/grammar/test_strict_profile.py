from __future__ import annotations

from typing import Any

import pytest

from grammar.errors import GrammarTooLarge, InvalidGrammar, UnsupportedKeyword
from grammar.strict_profile import check


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRING = {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        closed(),
        closed(x={"title": "X", "type": "integer", "minimum": 1}) | {"title": "A"},
        closed(a={"anyOf": [STRING, {"type": "null"}]}, b={"enum": ["x", None]}, c={"const": 1}),
        closed(next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        closed(a={"$ref": "#/$defs/b"}) | {"$defs": {"b": closed(c=STRING)}},
        closed(a={"type": "array", "items": closed(b=STRING), "minItems": 1}),
        closed(a={"type": "string", "pattern": "^a", "format": "date-time"}),
    ],
)
def test_the_subset_passes(schema: dict[str, Any]) -> None:
    check(schema)


@pytest.mark.parametrize(
    ("schema", "path", "message"),
    [
        (True, "$", "root"),
        (STRING, "$", "root"),
        (closed() | {"anyOf": [closed()]}, "$", "root"),
        (closed(a={"type": "object", "properties": {}}), "$.properties.a", "additionalProperties"),
        (closed(a={"type": "object"}), "$.properties.a", "additionalProperties"),
        (closed(a={"type": ["null", "object"]}), "$.properties.a", "additionalProperties"),
        (closed(a={"properties": {}}), "$.properties.a", "additionalProperties"),
        (closed(a=STRING) | {"required": []}, "$", "differs in: a"),
        (closed() | {"required": ["ghost"]}, "$", "differs in: ghost"),
        (closed(a=True), "$.properties.a", "true and false"),
        (closed(a={"type": "array", "items": {"type": "object"}}), "$.properties.a.items", "given"),
    ],
)
def test_broken_rules_are_named(schema: Any, path: str, message: str) -> None:
    with pytest.raises(InvalidGrammar, match=message) as caught:
        check(schema)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "keyword",
    [
        {"allOf": [STRING]},
        {"oneOf": [STRING]},
        {"not": STRING},
        {"if": STRING},
        {"minLength": 1},
        {"maxLength": 1},
        {"prefixItems": [STRING]},
        {"uniqueItems": True},
        {"contains": STRING},
        {"patternProperties": {}},
        {"propertyNames": STRING},
        {"minProperties": 1},
        {"dependentRequired": {}},
        {"unevaluatedProperties": False},
        {"format": "uri"},
    ],
)
def test_other_keywords_are_refused_by_name(keyword: dict[str, Any]) -> None:
    (name,) = keyword
    with pytest.raises(UnsupportedKeyword) as caught:
        check(closed(a=keyword))
    assert caught.value.keyword == name
    assert caught.value.path == f"$.properties.a.{name}"


def nested(levels: int) -> dict[str, Any]:
    schema = closed()
    for _ in range(levels - 1):
        schema = closed(a=schema)
    return schema


def test_limits() -> None:
    check(nested(10))
    with pytest.raises(GrammarTooLarge, match="10 levels"):
        check(nested(11))
    check(closed(**{f"p{i}": STRING for i in range(5_000)}))
    with pytest.raises(GrammarTooLarge, match="5000 properties"):
        check(closed(**{f"p{i}": STRING for i in range(5_001)}))
    check(closed(a={"enum": list(range(1_000))}))
    with pytest.raises(GrammarTooLarge, match="1000 enum values"):
        check(closed(a={"enum": list(range(600))}, b={"enum": list(range(401))}))
    check(closed(a={"enum": ["x" * 59 + str(i) for i in range(250)]}))
    with pytest.raises(GrammarTooLarge, match="15000 characters"):
        check(closed(a={"enum": ["x" * 60 + str(i) for i in range(251)]}))


def text_of(place: str, length: int) -> dict[str, Any]:
    """A schema with a text of this length there, among 10 characters of other names."""
    text = "x" * (length - 10)
    match place:
        case "enum":
            return closed(**{"name" + "_" * 6: {"enum": [text[:5], text[5:]]}})
        case "const":
            return closed(**{"name" + "_" * 6: {"const": text}})
        case "properties":
            return closed(**{text: STRING, "name" + "_" * 6: STRING})
    return closed(**{"name" + "_" * 6: STRING}) | {place: {text: STRING}}


@pytest.mark.parametrize("place", ["properties", "$defs", "definitions", "enum", "const"])
def test_all_names_and_values_count_together(place: str) -> None:
    check(text_of(place, 120_000))
    with pytest.raises(GrammarTooLarge, match="120000 characters"):
        check(text_of(place, 120_001))


def test_a_large_enum_may_have_short_strings_and_numbers_do_not_count() -> None:
    strings = ["x" * 59 + chr(0x4E00 + i) for i in range(249)]
    exactly = [*strings, "y" * 59, "z"]
    assert (len(exactly), sum(map(len, exactly))) == (251, 15_000)
    check(closed(a={"enum": exactly}))
    check(closed(a={"enum": [*strings, "y" * 1_000, 10**70, None]}))
    with pytest.raises(GrammarTooLarge, match="15000 characters") as caught:
        check(closed(a={"enum": [*strings, "y" * 59, "zz"]}))
    assert caught.value.path == "$.properties.a.enum"
