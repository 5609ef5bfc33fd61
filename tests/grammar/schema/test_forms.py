from __future__ import annotations

import copy
import random
from typing import Any

import jsonschema
import pytest

from grammar.errors import GrammarTooLarge, InvalidGrammar
from grammar.schema import forms

META = jsonschema.Draft202012Validator(
    jsonschema.Draft202012Validator.META_SCHEMA,
    format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
)
LIMITS = {
    "max_depth": 20,
    "max_properties": 50,
    "max_optional": 40,
    "max_enum_values": 50,
    "max_count": 1000,
}


def check(schema: Any, **limits: Any) -> None:
    forms.check(schema, **(LIMITS | limits))


@pytest.mark.parametrize(
    ("schema", "path", "message"),
    [
        ({"type": "strin"}, "$.type", "one or several of"),
        ({"type": []}, "$.type", "one or several of"),
        (
            {"properties": {"a b": {"minLength": -1}}},
            "$.properties['a b'].minLength",
            "whole number",
        ),
        ({"anyOf": [{}, {"required": "a"}]}, "$.anyOf[1].required", "array of different strings"),
        ({"items": [{}]}, "$.items", "called prefixItems"),
        ({"items": 3}, "$.items", "a schema is an object or a boolean"),
        ({"allOf": []}, "$.allOf", "non-empty"),
        ({"pattern": "a("}, "$.pattern", "a regular expression .missing"),
        ({"patternProperties": {"[": {}}}, "$.patternProperties", "regular expressions"),
        ({"minimum": True}, "$.minimum", "a number"),
        ({"exclusiveMinimum": True}, "$.exclusiveMinimum", "a number"),
        ({"multipleOf": 0}, "$.multipleOf", "above 0"),
        ({"$defs": {"x": {"not": 3}}}, "$.$defs.x.not", "a schema"),
        ({"description": "x" * 200, "title": 5}, "$.title", "a string"),
        ({"$anchor": "1a"}, "$.$anchor", "a name"),
        ({"$dynamicAnchor": 5}, "$.$dynamicAnchor", "a name"),
        ([], "$", "a schema"),
    ],
)
def test_the_first_wrong_form_is_named(schema: Any, path: str, message: str) -> None:
    with pytest.raises(InvalidGrammar, match=message) as caught:
        check(schema)
    assert caught.value.path == path
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("num_digits", "shown"), [(80, "1" * 80), (81, "1" * 77 + "...")], ids=["whole", "cut"]
)
def test_a_long_value_is_shown_in_part(num_digits: int, shown: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        check({"title": int("1" * num_digits)})
    assert caught.value.message == f"title must be a string, got {shown}"


def test_limits() -> None:
    nested: Any = {}
    for _ in range(20):
        nested = {"items": nested}
    check(nested)
    with pytest.raises(GrammarTooLarge, match="nested deeper than 20"):
        check({"not": nested})
    wide: Any = {"properties": {str(i): {"properties": {"a": {}}} for i in range(25)}}
    check(wide)
    with pytest.raises(GrammarTooLarge, match="more than 49 properties"):
        check(wide, max_properties=49)
    check({"enum": [1, 2], "properties": {"a": True}}, max_enum_values=2)
    with pytest.raises(GrammarTooLarge, match=r"more than 2 values \(at \$\.enum"):
        check({"enum": [1, 2, 3]}, max_enum_values=2)
    forty_one: Any = {"properties": {str(i): {} for i in range(41)}}
    check(forty_one | {"required": ["0", "elsewhere"]})
    with pytest.raises(GrammarTooLarge, match="more than 40 optional"):
        check(forty_one)
    check({"maxLength": 1000, "minItems": 1000.0})
    with pytest.raises(GrammarTooLarge, match=r"more than 1000 \(at \$\.items\.maxItems"):
        check({"items": {"maxItems": 1001}})


def test_an_anchor_is_a_name() -> None:
    check({"$anchor": "a-b.C_1", "$dynamicAnchor": "_"})


def test_depth_counts_schemas_not_data() -> None:
    data: Any = 1
    for _ in range(100):
        data = [data]
    check({"const": data, "default": data, "x-anything": data})


SEED_SCHEMA: dict[str, Any] = {
    "$defs": {"a": {"type": ["integer", "null"], "minimum": 1, "multipleOf": 2}},
    "type": "object",
    "properties": {"s": {"pattern": "^a", "minLength": 1, "format": "date", "title": "t"}},
    "patternProperties": {"^x": {"enum": [1]}},
    "required": ["s"],
    "dependentRequired": {"s": ["t"]},
    "anyOf": [{"$ref": "#/$defs/a"}, {"not": {"const": 1}}, True],
    "items": {"uniqueItems": True, "maxItems": 3},
    "prefixItems": [{"deprecated": True}],
}
JUNK = [None, True, 0, -1, 1.5, 2.0, "", "a(", "string", [], ["a"], ["a", "a"], [1], {}, {"a": 1}]


def mutated(schema: Any, rng: random.Random) -> Any:
    """One value somewhere in the schema replaced by junk."""
    schema = copy.deepcopy(schema)
    places: list[tuple[Any, Any]] = []
    stack = [schema]
    while stack:
        node = stack.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                stack.append(node[key])
    node, key = rng.choice(places)
    node[key] = copy.deepcopy(rng.choice(JUNK))
    return schema


def test_agrees_with_the_metaschema() -> None:
    rng = random.Random(5)
    outcomes = set()
    for _ in range(500):
        schema = mutated(mutated(SEED_SCHEMA, rng), rng)
        good = META.is_valid(schema)
        outcomes.add(good)
        assert is_good(schema) == good, schema
    assert outcomes == {True, False}


def is_good(schema: Any) -> bool:
    try:
        check(schema)
    except InvalidGrammar:
        return False
    return True
