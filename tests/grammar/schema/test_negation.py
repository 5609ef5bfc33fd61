from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from grammar.schema.document import Document
from grammar.schema.negation import Around, Negation, Open, all_of, any_of

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 2.5, "", "a", "ab", "b", "abc", [], [1], ["a"]),
    *([1, "a"], ["a", 1], [1, 2, 3], {}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}),
    *({"a": {"a": 1}}, {"c": None}, {"a": 1, "b": 2, "c": 3}),
]
CLOSED: list[Any] = [
    True,
    False,
    {"type": "string"},
    {"type": ["null", "array"]},
    {"type": "number"},
    {"enum": ["a", 1, None]},
    {"enum": [True, 2.5]},
    {"const": []},
    {"pattern": "^a"},
    {"type": "string", "pattern": "b", "minLength": 2, "maxLength": 2},
    {"type": "number", "minimum": 1, "exclusiveMaximum": 3},
    {"minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [{"const": 1}]},
    {"items": {"type": "number"}},
    {"contains": {"const": "a"}},
    {"prefixItems": [True], "items": False},
    {"required": ["a"]},
    {"type": "object", "required": ["a", "b"]},
    {"properties": {"a": {"type": "number"}, "b": False}},
    {"minProperties": 1, "maxProperties": 1},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"properties": {"a": {"type": "string"}}}}},
    {"not": {"required": ["a"]}},
    {"anyOf": [{"type": "string"}, {"required": ["a"]}]},
    {"allOf": [{"type": "object"}, {"required": ["a"]}]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"type": "string"}]},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"type": "string"}},
    {"$ref": "#/$defs/n"},
    {"properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]},
    {"additionalProperties": False},
    {"properties": {"a": {"type": "string"}, "b": {}}, "additionalProperties": False},
    {"properties": {"a": {}, "b": {}}, "required": ["a"], "additionalProperties": False},
    {"enum": [[1], {}, ["a"]]},
    {"enum": [{"a": 1}, {"b": 1}, "a"]},
    {"const": {"a": {"a": 1}}},
]


def complement(schema: Any, *around: Any) -> Any:
    document = Document({"$defs": {"n": {"type": "null"}}})
    return Negation(document).of(schema, Around(list(around), document))


@pytest.mark.parametrize("schema", CLOSED)
def test_a_complement_is_what_the_schema_does_not_allow(schema: Any) -> None:
    definitions = {"$defs": {"n": {"type": "null"}}}
    found = {"allOf": [complement(schema)], **definitions}
    checked = {"allOf": [schema], **definitions}
    for value in VALUES:
        is_valid = jsonschema.Draft202012Validator(checked).is_valid(value)
        assert jsonschema.Draft202012Validator(found).is_valid(value) != is_valid, value


@pytest.mark.parametrize(
    ("schema", "around", "values"),
    [
        # Of a closed object all names are known.
        (
            {"properties": {"a": True}, "additionalProperties": False},
            {"type": "object", "properties": {"a": True, "b": True}, "additionalProperties": False},
            [({"a": 1}, False), ({"b": 1}, True), ({}, False)],
        ),
        # A name that is required here and not allowed there.
        (
            {"properties": {"a": True}, "additionalProperties": False},
            {"type": "object", "required": ["b"]},
            [({"b": 1}, True), ({"a": 1, "b": 1}, True)],
        ),
        # What both say of a member is violated by none that is left.
        (
            {"properties": {"a": {"uniqueItems": True}}, "required": ["b"]},
            {"type": "object", "properties": {"a": {"uniqueItems": True}}},
            [({}, True), ({"b": 1}, False)],
        ),
    ],
)
def test_what_is_known_around_it_is_not_said_again(
    schema: Any, around: Any, values: list[tuple[Any, bool]]
) -> None:
    found = complement(schema, around)
    for value, expected in values:
        assert jsonschema.Draft202012Validator(found).is_valid(value) == expected


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "integer"}, "no integers"),
        ({"multipleOf": 2}, "multipleOf"),
        ({"uniqueItems": True}, "uniqueItems"),
        ({"contains": {}, "minContains": 2}, "minContains"),
        ({"patternProperties": {"^a": False}}, "patternProperties"),
        ({"additionalProperties": {"type": "null"}}, "all names"),
        ({"properties": dict.fromkeys("abcde", True), "additionalProperties": False}, "few names"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"required": ["a"], "properties": {"b": {"multipleOf": 2}}}, "multipleOf"),
        ({"format": "email"}, "no regular language"),
        ({"pattern": ".*a.{20}$"}, "states"),
    ],
)
def test_what_has_no_complement_says_so(schema: Any, reason: str) -> None:
    with pytest.raises(Open, match=reason):
        complement(schema)


def test_a_member_that_may_be_missing_is_missing_where_it_cannot_be_said_what_else_it_may_be() -> (
    None
):
    schema = {"properties": {"a": {"multipleOf": 2}}, "required": ["a"]}
    validator = jsonschema.Draft202012Validator(complement(schema, {"type": "object"}))
    assert validator.is_valid({"b": 3})
    assert not validator.is_valid({"a": 2})


@pytest.mark.parametrize(
    ("types", "others"), [({"object"}, True), ({"integer"}, True), ({"object", "integer"}, False)]
)
def test_only_values_of_the_types_that_the_schema_allows_are_left_out(
    types: set[str], others: bool
) -> None:
    document = Document(True)
    around = Around([{"type": ["object", "number", "string"]}], document)
    schema = {"required": ["a"], "maximum": 1}
    found = Negation(document).of_types(schema, frozenset(types), around)
    validator = jsonschema.Draft202012Validator(found)
    assert validator.is_valid("")
    assert validator.is_valid({})
    assert validator.is_valid(2)
    assert validator.is_valid({"a": 1}) == ("object" not in types)
    assert validator.is_valid(1) == ("integer" not in types)
    assert (validator.is_valid({"a": 1}) or validator.is_valid(1)) == others


def test_values_that_python_takes_for_equal_are_two() -> None:
    assert all_of([{"const": 1}, {"const": True}]) == {"allOf": [{"const": 1}, {"const": True}]}
    assert any_of([{"const": 1}, {"const": 1}, False]) == {"const": 1}
