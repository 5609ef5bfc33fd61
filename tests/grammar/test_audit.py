from __future__ import annotations

import json
from typing import Any

import pytest

from grammar.audit import BACKENDS, audit, schemas_of
from grammar.errors import GrammarTooLarge, InvalidGrammar
from grammar.spec import GrammarSpec


def by_path(schema: Any) -> dict[str, tuple[str, ...]]:
    return {item.path: item.enforced_by for item in audit(schema).keywords}


def enforcing(schema: Any) -> list[str]:
    """The backends that enforce every keyword."""
    found = audit(schema)
    return [backend for backend in BACKENDS if not found.unenforced(backend)]


def test_each_keyword_has_its_path_and_its_backends() -> None:
    schema = {
        "title": "T",
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"type": "number"}, "uniqueItems": True},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert by_path(schema) == {
        "$.type": BACKENDS,
        "$.properties": BACKENDS,
        "$.required": BACKENDS,
        "$.additionalProperties": BACKENDS,
        "$.properties.name.type": BACKENDS,
        "$.properties.name.maxLength": ("llguidance", "outlines"),
        "$.properties.age.type": BACKENDS,
        "$.properties.age.minimum": ("llguidance", "xgrammar"),
        "$.properties.tags.type": BACKENDS,
        "$.properties.tags.items": BACKENDS,
        "$.properties.tags.items.type": BACKENDS,
        "$.properties.tags.uniqueItems": (),
    }
    assert enforcing(schema) == []
    del schema["properties"]["tags"]  # type: ignore[attr-defined]
    assert enforcing(schema) == ["llguidance"]


def test_reasons_are_given_per_backend() -> None:
    (item,) = [k for k in audit({"type": "number", "multipleOf": 0.5}).keywords if k.reasons]
    assert item.keyword == "multipleOf"
    assert item.enforced_by == ("llguidance",)
    assert item.reasons == {
        "xgrammar": "xgrammar ignores it for numbers",
        "outlines": "outlines ignores it",
    }


def test_what_is_inside_of_what_was_dropped_says_so() -> None:
    """Outlines is told no properties here, and so nothing about the value of one."""
    schema = {
        "type": ["object", "null"],
        "properties": {"a": {"type": "null"}},
        "additionalProperties": False,
    }
    inner = next(item for item in audit(schema).keywords if item.path == "$.properties.a.type")
    assert inner.enforced_by == ("llguidance", "xgrammar")
    assert inner.reasons == {"outlines": "what it stands in is not enforced"}


ENFORCED_BY_LLGUIDANCE: list[Any] = [
    True,
    {"minimum": 5},
    # Zod's integers
    {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1},
    {"type": ["integer", "null"], "multipleOf": 3, "exclusiveMinimum": 0},
    {"type": "string", "pattern": "a", "minLength": 2, "maxLength": 5, "format": "email"},
    {"type": "array", "prefixItems": [{}], "items": False, "minItems": 1, "maxItems": 4},
    {"type": "array", "uniqueItems": True, "maxItems": 1},
    {"type": "array", "uniqueItems": False, "minContains": 2},
    {"type": "array", "prefixItems": [{}], "unevaluatedItems": False},
    {"type": "object", "unevaluatedProperties": {"type": "null"}},
    {"type": "object", "required": ["a"], "minProperties": 2, "properties": {"a": {}}},
    {"type": "object", "patternProperties": {"^x-": {"type": "null"}, "^y-": {}}},
    {"type": "object", "patternProperties": {r"^\d+$": {}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "properties": {"a": {}}},
    {"type": "object", "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {}}},
    {"allOf": [{"type": "object"}, {"required": ["a"]}], "anyOf": [{}, {"minProperties": 1}]},
    {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/s"}], "$defs": {"s": {"type": "string"}}},
    {"$ref": "#foo", "$defs": {"s": {"$anchor": "foo", "type": "string"}}, "maxLength": 3},
    {"enum": [1, 2, 3], "not": {"const": 2}, "if": {"const": 1}, "then": False},
    {"type": "string", "minimum": 3, "uniqueItems": True, "x-note": 1},
    {"if": {"type": "string"}},
    {"not": {"type": "null"}},
    {"type": "array", "uniqueItems": True, "items": {"enum": ["a", 1, True, None]}},
    {"type": "string", "not": {"pattern": "^a"}, "format": "iri"},
    {"if": {"type": "null"}, "then": False, "else": {"minimum": 3}},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"properties": {"c": {"const": 1}}}]},
    {"type": "object", "patternProperties": {"a$": {}}},
    {"patternProperties": {"^a": {"type": "null"}, "^ab": {}, "b": {"enum": [None]}}},
    {"propertyNames": {"pattern": "a", "maxLength": 3, "not": {"enum": ["ab"]}}},
    {"format": "of nobody"},
    {
        "propertyNames": {"minLength": 1},
        "properties": {"a": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    },
    {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}},
]


@pytest.mark.parametrize("schema", ENFORCED_BY_LLGUIDANCE)
def test_what_llguidance_enforces(schema: Any) -> None:
    assert audit(schema).unenforced("llguidance") == ()


UNENFORCED: list[tuple[Any, str]] = [
    ({"type": "array", "uniqueItems": True}, "$.uniqueItems"),
    ({"type": "array", "contains": {}, "minContains": 2}, "$.contains"),
    ({"not": {"type": "integer"}}, "$.not"),
    ({"not": {"multipleOf": 2}}, "$.not"),
    ({"if": {"uniqueItems": True}, "then": {"maxItems": 3}}, "$.if"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "$.oneOf"),
    ({"type": "string", "pattern": r"\bfoo"}, "$.pattern"),
    ({"type": "number", "multipleOf": 0.01}, "$.multipleOf"),
    ({"type": "integer", "minimum": 2**53 + 1}, "$.minimum"),
    ({"type": "number", "maximum": 1e-12}, "$.maximum"),
    ({"type": "object", "minProperties": 2}, "$.minProperties"),
    ({"type": "object", "patternProperties": {r"\ba": {}}}, "$.patternProperties"),
    ({"patternProperties": {r"^\p{L}": {}, "^é": {}}}, "$.patternProperties"),
    ({"propertyNames": {"format": "email"}}, "$.propertyNames"),
    ({"anyOf": [{}], "unevaluatedProperties": False}, "$.unevaluatedProperties"),
    ({"dependentRequired": {str(i): [f"a{i}"] for i in range(9)}}, "$.dependentRequired"),
    ({"items": {"$id": "x", "$ref": "y"}, "$defs": {"a": {"$id": "y"}}}, "$.items.$id"),
    ({"$schema": "https://example.com/my-draft"}, "$.$schema"),
    ({"$dynamicRef": "#a"}, "$.$dynamicRef"),
    ({"dependencies": {"a": ["b"]}}, "$.dependencies"),
    ({"const": "\u0001"}, "$.const"),
    ({"const": 2**70}, "$.const"),
    ({"required": ["\u0001"]}, "$.required"),
]


@pytest.mark.parametrize(("schema", "path"), UNENFORCED)
def test_what_nobody_enforces(schema: Any, path: str) -> None:
    assert enforcing(schema) == []
    item = next(item for item in audit(schema).keywords if item.path == path)
    assert item.enforced_by == ()


def test_a_reference_is_audited_where_it_leads_and_once() -> None:
    schema = {
        "$defs": {"u": {"uniqueItems": True, "items": {"$ref": "#/$defs/u"}}},
        "prefixItems": [{"$ref": "#/$defs/u"}, {"$ref": "#/$defs/u"}],
    }
    paths = [finding.path for finding in audit(schema).unenforced("llguidance")]
    assert paths == ["$.$defs.u.uniqueItems"]


def test_unused_definitions_do_not_matter() -> None:
    assert enforcing({"$defs": {"u": {"uniqueItems": True}}, "type": "null"}) == [*BACKENDS]


def test_dangling_references_are_errors() -> None:
    with pytest.raises(InvalidGrammar, match=r"at \$\.items\.\$ref"):
        audit({"items": {"$ref": "#/nowhere"}})


def test_the_schemas_of_a_structural_tag_are_found_with_their_paths() -> None:
    structure = {"begin": "<a>", "schema": {"uniqueItems": True}, "end": "</a>"}
    source = json.dumps({"structures": [structure], "triggers": ["<a"]})
    (part,) = schemas_of(GrammarSpec("structural_tag", source))
    assert part.path == "$.structures[0].schema"
    found = audit(part.schema, path=part.path)
    assert found.unenforced("llguidance")[0].path == "$.structures[0].schema.uniqueItems"
    assert schemas_of(GrammarSpec("regex", "a")) == []
    (whole,) = schemas_of(GrammarSpec("json_schema", '{"not": {}}'))
    assert (whole.schema, whole.path) == ({"not": {}}, "$")


def test_a_schema_nested_too_deeply_is_too_large() -> None:
    schema: Any = {}
    for _ in range(5_000):
        schema = {"items": schema}
    with pytest.raises(GrammarTooLarge, match="nested too deeply"):
        audit(schema)
