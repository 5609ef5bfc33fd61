from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar.audit import audit
from grammar.errors import GrammarTooLarge, InvalidGrammar
from grammar.schema.drafts import OLD_SPELLING, modern
from grammar.spec import GrammarSpec
from grammar.structural_tag import parse, schemas
from grammar.validation import validate

PAIR = {"type": "array", "items": [{"type": "number"}, {"type": "string"}]}
MODERN_PAIR = {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PAIR, MODERN_PAIR),
        (PAIR | {"additionalItems": False}, MODERN_PAIR | {"items": False}),
        (PAIR | {"additionalItems": PAIR}, MODERN_PAIR | {"items": MODERN_PAIR}),
        ({"items": []}, {}),
        ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        ({"exclusiveMaximum": False}, {}),
        # It has no bound to be beside, and is refused for its form.
        ({"exclusiveMaximum": True}, {"exclusiveMaximum": True}),
        ({"description": None, "format": None, "items": None, "const": None}, {"const": None}),
        ({"properties": {"a": {"enum": None}}, "required": None}, {"properties": {"a": {}}}),
        ({"properties": {"items": PAIR}}, {"properties": {"items": MODERN_PAIR}}),
        (
            {"dependencies": {"a": ["b"], "c": PAIR, "d": False, "e": []}},
            {
                "dependentRequired": {"a": ["b"], "e": []},
                "dependentSchemas": {"c": MODERN_PAIR, "d": False},
            },
        ),
        (
            {"dependencies": {"a": ["b"], "c": True}, "dependentRequired": {"a": ["d"]}},
            {
                "dependentRequired": {"a": ["d"]},
                "allOf": [{"dependentRequired": {"a": ["b"]}}],
                "dependentSchemas": {"c": True},
            },
        ),
        (
            {"dependencies": {"c": True}, "dependentSchemas": {"c": {}}, "allOf": [{}]},
            {"dependentSchemas": {"c": {}}, "allOf": [{}, {"dependentSchemas": {"c": True}}]},
        ),
        ({"dependencies": {}, "type": "null"}, {"type": "null"}),
        ({"dependencies": None}, {}),
        (
            {"$id": "#a", "not": {"$id": "#b", "$anchor": "c"}, "enum": [{"$id": "#d"}]},
            {"$anchor": "a", "not": {"$id": "#b", "$anchor": "c"}, "enum": [{"$id": "#d"}]},
        ),
        ({"anyOf": [PAIR, True], "$defs": {"p": PAIR}, "not": PAIR},
         {"anyOf": [MODERN_PAIR, True], "$defs": {"p": MODERN_PAIR}, "not": MODERN_PAIR}),
    ],
)  # fmt: skip
def test_what_was_spelled_otherwise(old: Any, new: Any) -> None:
    assert modern(old) == new
    assert OLD_SPELLING.search(json.dumps(old)) is not None


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"items": {"type": "string"}, "minimum": 3, "exclusiveMaximum": 5},
        {"const": PAIR, "enum": [PAIR], "examples": [PAIR], "default": PAIR},
        {"additionalItems": False},
        {
            "const": None,
            "default": None,
            "enum": [None],
            "properties": {"const": {"default": None}},
        },
        {"const": {"x": PAIR}, "default": {"x": {"type": None}}, "x-note": {"x": PAIR}},
        {"properties": 3, "anyOf": {}, "items": 5, "$ref": 5, "dependencies": ["a"], "$id": 5},
        {"properties": {"dependencies": {"type": "null"}}, "$id": "https://example.com/#a"},
        {"$id": "#", "properties": {"a": {"$id": "#/properties/a"}, "b": {"$id": "#1"}}},
    ],
)
def test_all_else_is_left_alone(schema: Any) -> None:
    assert modern(schema) == schema


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#/properties/pair/items/0", "#/properties/pair/prefixItems/0"),
        ("#/properties/pair/items/1/items", "#/properties/pair/prefixItems/1/items"),
        ("#/properties/pair/additionalItems", "#/properties/pair/items"),
        ("#/properties/items/items", "#/properties/items/items"),
        ("#/$defs/a~1b%25/items/0", "#/$defs/a~1b%25/prefixItems/0"),
        ("#/$defs/nested/items/0/items/1", "#/$defs/nested/prefixItems/0/prefixItems/1"),
        ("#/$defs/nested/items/1/items/0", "#/$defs/nested/prefixItems/1/items/0"),
        ("#", "#"),
        ("#pair", "#pair"),
        ("other/properties/pair/items/0", "other/properties/pair/items/0"),
        ("#/properties/pair/items/two/items", "#/properties/pair/prefixItems/two/items"),
        ("https://example.com/#/items/0", "https://example.com/#/items/0"),
        ("#/dependencies/d/items/0", "#/dependentSchemas/d/prefixItems/0"),
        (
            "#/properties/dependencies/dependencies/x",
            "#/properties/dependencies/dependentSchemas/x",
        ),
        ("#/$defs/nested/dependencies", "#/$defs/nested/dependentSchemas"),
    ],
)
def test_references_into_tuples_lead_to_the_same_schema(old: str, new: str) -> None:
    """As zod-to-json-schema writes them where a schema comes twice."""
    pair = {"items": [{"type": "string"}, {"items": {}}], "additionalItems": {}}
    schema = {
        "properties": {"pair": pair, "items": {"items": {}}, "again": {"$ref": old}},
        "$defs": {"a/b%": pair, "nested": {"items": [{"items": [{}, {}]}]}},
        "dependencies": {"d": pair},
    }
    assert modern(schema)["properties"]["again"] == {"$ref": new}


def test_a_grammar_follows_a_reference_into_a_tuple() -> None:
    pair = {"type": "array", "items": [{"type": "string"}, {"$ref": "#/properties/pair/items/0"}]}
    spec = GrammarSpec.from_schema({"type": "object", "properties": {"pair": pair}})
    assert audit(spec.document()).keywords
    assert validate(spec, '{"pair": ["a", "b"]}').passed
    assert not validate(spec, '{"pair": ["a", 1]}').passed


SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["integer", "array", "string"]),
            "minimum": st.integers(0, 3),
            "maximum": st.integers(2, 4),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {"items": st.lists(inner, max_size=3)}, optional={"additionalItems": st.booleans() | inner}
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.integers(0, 4) | st.text(max_size=1), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)


@given(SCHEMAS, VALUES)
def test_the_same_values_are_valid(schema: dict[str, Any], value: Any) -> None:
    old = jsonschema.Draft7Validator(schema).is_valid(value)
    assert jsonschema.Draft202012Validator(modern(schema)).is_valid(value) == old


def test_grammars_and_checks_take_old_schemas() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **PAIR,
        "additionalItems": False,
    }
    spec = GrammarSpec.from_schema(schema)
    spec.validate()
    assert validate(spec, '[1, "a"]').passed
    assert not validate(spec, '["a", 1]').passed
    assert not validate(spec, '[1, "a", 2]').passed
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    (inner,) = schemas(parse(tag))
    assert inner.schema == spec.document()


def test_dependencies_hold() -> None:
    """They were understood by none, and so went unchecked."""
    schema = {"dependencies": {"a": ["b"], "c": {"properties": {"a": {"type": "null"}}}}}
    spec = GrammarSpec.from_schema(schema)
    assert audit(spec.document()).unenforced("llguidance") == ()
    assert validate(spec, '{"a": 1, "b": 1}').passed
    assert not validate(spec, '{"a": 1}').passed
    assert not validate(spec, '{"a": 1, "b": 1, "c": 1}').passed
    with pytest.raises(InvalidGrammar, match=r"must be an object.*at \$\.dependencies"):
        GrammarSpec.from_schema({"dependencies": ["a"]}).validate()
    for wrong in ({"dependentRequired": 3}, {"dependentRequired": {"a": 3}}, {"allOf": 3}):
        with pytest.raises(InvalidGrammar):
            GrammarSpec.from_schema(wrong | {"dependencies": {"a": ["b"]}}).validate()


def test_a_place_may_be_named_by_an_identifier() -> None:
    schema = {"allOf": [{"$ref": "#n"}], "definitions": {"a": {"$id": "#n", "type": "null"}}}
    spec = GrammarSpec.from_schema(schema)
    assert audit(spec.document()).unenforced("llguidance") == ()
    assert validate(spec, "null").passed
    assert not validate(spec, "1").passed


def test_in_draft_4_identifiers_had_another_name() -> None:
    members = {"a": {"id": "#n", "type": "null"}, "id": {"id": "http://other/x", "type": "string"}}
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://example/root",
        "properties": {"a": {"$ref": "#n"}, "id": {"$ref": "http://other/x"}},
        "definitions": members,
    }
    spec = GrammarSpec.from_schema(schema)
    assert audit(spec.document()).unenforced("llguidance") == ()
    assert validate(spec, '{"a": null, "id": "x"}').passed
    assert not validate(spec, '{"a": 1}').passed
    assert not validate(spec, '{"id": 1}').passed
    undated = {keyword: value for keyword, value in schema.items() if keyword != "$schema"}
    with pytest.raises(InvalidGrammar, match=r"write \$id"):
        GrammarSpec.from_schema(undated).validate()
    GrammarSpec.from_schema({"id": "x", "properties": {"id": {"id": "y"}}}).validate()


def test_what_is_wrong_in_any_draft_is_still_refused() -> None:
    wrong: list[dict[str, Any]] = [{"items": [{}], "prefixItems": [{}]}, {"items": [3]}]
    for schema in wrong:
        with pytest.raises(InvalidGrammar):
            GrammarSpec.from_schema(schema).validate()
    deep: Any = {}
    for _ in range(400):
        deep = {"items": [deep]}
    with pytest.raises(GrammarTooLarge):
        GrammarSpec.from_schema(deep).validate()


@pytest.mark.parametrize(
    ("schema", "is_plain"),
    [
        ({"items": {"$recursiveRef": "#"}, "type": "array"}, True),
        ({"$recursiveAnchor": True, "items": {"$recursiveRef": "#"}, "type": "array"}, True),
        ({"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}, "type": "array"}, True),
        ({"items": {"$dynamicRef": "#"}, "type": "array"}, True),
        (
            {
                "type": "array",
                "items": {"$dynamicRef": "#n"},
                "$defs": {"a": {"$id": "a", "$dynamicAnchor": "n"}, "b": {"$dynamicAnchor": "n"}},
            },
            False,
        ),
    ],
)
def test_a_reference_that_is_dynamic_and_leads_to_one_place_is_a_plain_one(
    schema: dict[str, Any], is_plain: bool
) -> None:
    spec = GrammarSpec.from_schema(schema, strict=False)
    if is_plain:
        assert audit(spec.document()).unenforced("llguidance") == ()
        assert validate(spec, "[[], [[]]]").passed
        assert not validate(spec, "[[1]]").passed
    else:
        assert spec.document()["items"] == schema["items"]
