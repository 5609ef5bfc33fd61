"""What is kept from each backend, keyword by keyword; that it is right to keep it from them is
``test_differential``'s to show."""

from __future__ import annotations

from typing import Any

import pytest

from grammar.schema.dialects import DIALECTS, LLGUIDANCE, OUTLINES, XGRAMMAR
from grammar.schema.document import Document
from grammar.schema.lowering import Dialect, lower

STR: Any = {"type": "string"}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def reasons(schema: Any, dialect: Dialect) -> dict[str, str]:
    """Why which keywords are not enforced, by keyword."""
    found = lower(Document(schema), dialect).unenforced
    return {finding.keyword: finding.reason for finding in found}


@pytest.mark.parametrize("dialect", [XGRAMMAR, OUTLINES], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "null"}, {}),
        (closed(a=STR) | {"required": ["a"]}, {}),
        ({"anyOf": [STR, {"type": "null"}]}, {}),
        ({"allOf": [STR]}, {}),
        # What stands beside listed values was checked when they were.
        ({"enum": [1, 2], "minimum": 2, "not": {"const": 3}}, {}),
        ({"const": 1, "minimum": 0}, {}),
        # They look at one keyword and ignore those beside it.
        ({"allOf": [STR, {}]}, {"allOf": "{} does not combine schemas"}),
        ({"anyOf": [STR], "allOf": [STR]}, {"allOf": "{} does not combine schemas"}),
        ({"anyOf": [STR], "type": "string"}, {"type": "{} ignores it beside anyOf"}),
        (
            {"$ref": "#/$defs/a", "anyOf": [STR], "$defs": {"a": STR}},
            {"anyOf": "{} ignores it beside $ref"},
        ),
        ({"minLength": 1, "title": "T"}, {"minLength": "{} ignores it without a type"}),
        # Of objects they follow the closed ones only.
        (
            {"type": "object", "properties": {"a": STR}},
            {"properties": "in an open object {} lets a name come again in another spelling"},
        ),
        ({"type": "object", "properties": {"a": STR}, "unevaluatedProperties": False}, {}),
        (
            {
                "type": "object",
                "properties": {"a": STR},
                "required": ["a"],
                "additionalProperties": {"type": "null"},
                "unevaluatedProperties": False,
            },
            dict.fromkeys(
                ("properties", "required"),
                "in an open object {} lets a name come again in another spelling",
            ),
        ),
        (closed(a=STR) | {"required": ["b"]}, {"required": "{} ignores names without a schema"}),
        (closed() | {"minProperties": 1}, {"minProperties": "{} does not follow it"}),
        (closed() | {"propertyNames": STR}, {"propertyNames": "{} does not follow it"}),
        (
            closed(a=STR) | {"patternProperties": {"^b": {}}},
            {
                "patternProperties": "{} does not follow it",
                "additionalProperties": "it depends on patternProperties",
                "properties": "in an open object {} lets a name come again in another spelling",
            },
        ),
    ],
)
def test_engines_of_one_family(dialect: Dialect, schema: Any, expected: dict[str, str]) -> None:
    assert reasons(schema, dialect) == {
        keyword: reason.format(dialect.name) for keyword, reason in expected.items()
    }
    assert reasons(schema, LLGUIDANCE) == {}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 2.0, "exclusiveMinimum": 0}, {}),
        ({"type": "integer", "multipleOf": 2}, {}),
        ({"type": "number", "minimum": 1.5}, {}),
        (STR | {"minLength": 1}, {"minLength": "control characters"}),
        (STR | {"maxLength": 1}, {"maxLength": "control characters"}),
        (STR | {"pattern": "a"}, {"pattern": "nested groups"}),
        (STR | {"format": "date"}, {"format": "nested groups"}),
        ({"type": "number", "multipleOf": 2}, {"multipleOf": "ignores it for numbers"}),
        (
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), "inexact at an open bound"),
        ),
        (
            {"type": "integer", "multipleOf": 2, "minimum": 0},
            {"multipleOf": "ignores it beside a bound"},
        ),
        ({"type": "integer", "minimum": 0.5, "maximum": 3}, {"minimum": "takes only integers"}),
        ({"type": ["integer", "null"], "maximum": 2.5}, {"maximum": "takes only integers"}),
    ],
)
def test_xgrammar(schema: Any, expected: dict[str, str]) -> None:
    found = reasons(schema, XGRAMMAR)
    assert found.keys() == expected.keys()
    assert all(expected[keyword] in reason for keyword, reason in found.items())


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (STR | {"minLength": 1, "maxLength": 3}, {}),
        (STR | {"pattern": "^a"}, {}),
        (STR | {"format": "date"}, {}),
        ({"type": "array", "minItems": 1, "items": STR}, {}),
        ({"type": "integer", "minimum": 1}, {"minimum": "outlines ignores it"}),
        ({"type": "integer", "multipleOf": 2}, {"multipleOf": "outlines ignores it"}),
        # A pattern between the quotes of JSON never needs an escape.
        (STR | {"pattern": '"'}, {"pattern": "outlines cannot follow it"}),
        (
            STR | {"pattern": "^a", "minLength": 2},
            {"minLength": "outlines ignores it beside a pattern or a format"},
        ),
        (
            STR | {"pattern": "^a", "format": "date"},
            {"format": "outlines ignores it beside a pattern or a length"},
        ),
        (
            STR | {"format": "hostname"},
            {"format": "outlines ignores it beside a pattern or a length"},
        ),
        (STR | {"format": "email"}, {"format": "outlines cannot follow the format 'email'"}),
        (
            {"type": "array", "prefixItems": [STR], "minItems": 1, "maxItems": 2},
            dict.fromkeys(("minItems", "maxItems"), "outlines ignores it beside prefixItems"),
        ),
        (closed(**{'a"': STR}), {"properties": "outlines does not escape names"}),
        (closed(**{"a\\": STR}), {"properties": "outlines does not escape names"}),
        (closed(**{"a\n": STR, "b": {}}), {"properties": "outlines does not escape names"}),
        (
            closed(a=STR) | {"type": ["object", "null"], "required": ["a"]},
            dict.fromkeys(
                ("properties", "required", "additionalProperties"),
                "outlines forgets the other types",
            ),
        ),
    ],
)
def test_outlines(schema: Any, expected: dict[str, str]) -> None:
    assert reasons(schema, OUTLINES) == expected


def test_each_is_found_by_its_name() -> None:
    assert {name: dialect.name for name, dialect in DIALECTS.items()} == {
        name: name for name in ("llguidance", "xgrammar", "outlines")
    }


@pytest.mark.parametrize(
    "name", ["a.b", "$ref", "a+", "a|b", "(", "[", "{", "\\", '"', "^", "*?", "\n"]
)
def test_outlines_reads_the_names_of_listed_objects_as_regexes(name: str) -> None:
    misread = {"enum": "outlines misreads a name in it"}
    assert reasons({"enum": ["a.b", [{"x": {name: 1}}]]}, OUTLINES) == misread
    assert reasons({"enum": ["a.b", [{"x": {name: 1}}]]}, XGRAMMAR) == {}
    assert reasons({"enum": [name]}, OUTLINES) == {}
    assert reasons({"const": {"a-b #/é&~ ": name}}, OUTLINES) == {}
