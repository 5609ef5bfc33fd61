from __future__ import annotations

import contextlib
import json
import random
import re
from fractions import Fraction
from typing import Any

import pytest

from grammar.errors import InvalidGrammar
from grammar.schema.dialects import LLGUIDANCE, OUTLINES, XGRAMMAR
from grammar.schema.document import Document
from grammar.schema.forms import CONSTRAINTS
from grammar.schema.lowering import Dialect, lower
from grammar.schema.numbers import num_states
from grammar.schema.paths import ROOT, child
from tests.grammar.schemas import Schemas


def lowered(schema: Any, dialect: Dialect = LLGUIDANCE) -> Any:
    return lower(Document(schema), dialect).schema


def reasons(schema: Any, dialect: Dialect = LLGUIDANCE) -> dict[str, str]:
    return {f.path: f.reason for f in lower(Document(schema), dialect).unenforced}


def told(schema: Any, dialect: Dialect = LLGUIDANCE) -> set[str]:
    """Where something is said to be enforced or not."""
    return {finding.path for finding in lower(Document(schema), dialect).findings}


def constraints(schema: Any) -> set[str]:
    """Where the schema itself, without those inside of it, has constraints."""
    keywords = () if isinstance(schema, bool) else schema
    return {child(ROOT, keyword) for keyword in keywords if keyword in CONSTRAINTS}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, {}),
        ({"title": "T", "description": "D", "x-custom": 1, "default": 3}, {}),
        ({"type": "string", "minLength": 2.0}, {"type": "string", "minLength": 2}),
        ({"type": "string", "minimum": 3, "items": {"not": {}}}, {"type": "string"}),
        ({"type": "string", "required": ["a"], "maxProperties": 0}, {"type": "string"}),
        ({"type": "integer", "pattern": "a", "minLength": 1}, {"type": "integer"}),
        ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": r"^(?:a[\s\S]*)$"}),
        # Listed values are checked here, against whatever stands beside them.
        ({"enum": ["a", 1, "abc", None], "type": "string", "maxLength": 2}, {"enum": ["a"]}),
        ({"enum": [1, 2, 3], "not": {"const": 2}}, {"enum": [1, 3]}),
        ({"const": 2.0}, {"enum": [2]}),
        (
            {"enum": [0.0, -0.5, 2**53 - 1, {"a": [1.0]}]},
            {"enum": [0, -0.5, 2**53 - 1, {"a": [1]}]},
        ),
        ({"enum": [1e-5, 999999999999999.5]}, {"enum": [1e-5, 999999999999999.5]}),
        ({"enum": ["a"], "type": "integer"}, False),
        # Open bounds of numbers become closed ones that are surely another double.
        ({"type": "number", "exclusiveMinimum": 0}, {"type": "number", "minimum": 1e-09}),
        ({"type": "number", "exclusiveMaximum": 1}, {"type": "number", "maximum": 0.999999999}),
        (
            {"type": "number", "exclusiveMaximum": 10**12, "maximum": 5},
            {"type": "number", "maximum": 5},
        ),
        ({"type": "number", "exclusiveMinimum": 1, "minimum": 5}, {"type": "number", "minimum": 5}),
        (
            {"type": "number", "minimum": 1, "exclusiveMinimum": 5},
            {"type": "number", "minimum": 5.000000001},
        ),
        (
            {"type": "integer", "allOf": [{"multipleOf": 16}, {"multipleOf": 625}]},
            {"type": "integer", "allOf": [{"multipleOf": 16}, {"multipleOf": 625}]},
        ),
        ({"type": "number", "exclusiveMinimum": 10**15}, {"type": "number", "minimum": 10**15 + 1}),
        (
            {"type": "number", "exclusiveMaximum": 2**53 - 1},
            {"type": "number", "maximum": 2**53 - 2},
        ),
        ({"type": "integer", "exclusiveMinimum": 1}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"minimum": 2.0, "multipleOf": 0.5}, {"minimum": 2, "multipleOf": 0.5}),
        ({"minimum": 1e-9, "multipleOf": 10_000}, {"minimum": 1e-9, "multipleOf": 10_000}),
        # 6000000000000001.5 is a multiple of 1.5, but not the double nearest to it.
        (
            {"minimum": 2.0, "multipleOf": 1.5},
            {"minimum": 2, "multipleOf": 1.5, "maximum": 2**52 - 1},
        ),
        # What binds nothing is left out.
        ({"type": "array", "uniqueItems": False, "maxContains": 1}, {"type": "array"}),
        (
            {"type": "array", "prefixItems": [True], "unevaluatedItems": False},
            {"type": "array", "prefixItems": [{}], "items": False},
        ),
        (
            {"type": "array", "items": {"type": "null"}, "unevaluatedItems": False},
            {"type": "array", "items": {"type": "null"}},
        ),
        ({"anyOf": [{"type": "array"}], "unevaluatedItems": True}, {"anyOf": [{"type": "array"}]}),
        (
            {"type": "object", "unevaluatedProperties": {"type": "null"}},
            {"type": "object", "additionalProperties": {"type": "null"}},
        ),
        # Nobody could write this name, so that it needs no schema.
        ({"properties": {"\x01": {"type": "null"}, "a": {}}}, {"properties": {"a": {}}}),
        # Names that a rule lists are the only ones,
        (
            {
                "propertyNames": {"enum": ["a", "b"]},
                "properties": {"c": {}, "a": {}},
                "additionalProperties": {"type": "null"},
            },
            {
                "properties": {"c": False, "a": {}, "b": {"type": "null"}},
                "additionalProperties": False,
            },
        ),
        (
            {
                "propertyNames": {"$ref": "#/$defs/name"},
                "properties": {"a": {}},
                "$defs": {"name": {"const": "a"}},
            },
            {"properties": {"a": {}}, "additionalProperties": False},
        ),
        (
            {"propertyNames": {"enum": ["a", 1, "\x01"]}, "properties": {"a": {}}},
            {"properties": {"a": {}}, "additionalProperties": False},
        ),
        # A closed object has no other names, whatever the rule.
        (
            {
                "propertyNames": {"minLength": 1},
                "properties": {"": {}, "a": {"type": "null"}},
                "additionalProperties": False,
            },
            {
                "properties": {"": False, "a": {"type": "null"}},
                "additionalProperties": False,
            },
        ),
        # What a rule leaves over keeps the schema of the rest,
        (
            {"propertyNames": {"minLength": 1}, "additionalProperties": {"type": "null"}},
            {
                "patternProperties": {r"^(?:[\s\S]+)$": {"type": "null"}},
                "additionalProperties": False,
            },
        ),
        # not that of those that have one of their own,
        (
            {
                "propertyNames": {"pattern": "^[ab]$"},
                "properties": {"a": {"type": "null"}, "c": {}},
                "additionalProperties": {"type": "integer"},
            },
            {
                "properties": {"a": {"type": "null"}, "c": False},
                "patternProperties": {"^(?:b)$": {"type": "integer"}},
                "additionalProperties": False,
            },
        ),
        # and holds for those that match a pattern.
        (
            {
                "propertyNames": {"pattern": "^[ab]{2}$"},
                "patternProperties": {"^a": {"type": "null"}},
                "additionalProperties": False,
            },
            {
                "patternProperties": {"^(?:a[a-b])$": {"type": "null"}},
                "additionalProperties": False,
            },
        ),
        # Where patterns overlap, each set of names has all of its schemas.
        (
            {"patternProperties": {"^[ab]$": {"minimum": 1}, "^[bc]$": {"type": "null"}}},
            {
                "patternProperties": {
                    "^(?:a)$": {"minimum": 1},
                    "^(?:b)$": {"allOf": [{"minimum": 1}, {"type": "null"}]},
                    "^(?:c)$": {"type": "null"},
                }
            },
        ),
        ({"propertyNames": True}, {}),
        (
            {"anyOf": [{"type": "null"}], "unevaluatedProperties": True},
            {"anyOf": [{"type": "null"}]},
        ),
        (
            {"patternProperties": {"^x": {"type": "null"}}, "properties": {"xy": True, "y": True}},
            {
                "properties": {"xy": {"type": "null"}, "y": {}},
                "patternProperties": {r"^(?:x[\s\S]*)$": {"type": "null"}},
            },
        ),
        (
            {"patternProperties": {"^x": False}, "properties": {"xy": {"type": "null"}}},
            {"properties": {"xy": False}, "patternProperties": {r"^(?:x[\s\S]*)$": False}},
        ),
        (
            {"patternProperties": {"^x": {"type": "null"}}, "properties": {"xy": False}},
            {
                "properties": {"xy": False},
                "patternProperties": {r"^(?:x[\s\S]*)$": {"type": "null"}},
            },
        ),
        # Members are counted where no name is optional, unless their number follows from the names.
        ({"minProperties": 1}, {"minProperties": 1}),
        ({"maxProperties": 3.0}, {"maxProperties": 3}),
        ({"required": ["a"], "minProperties": 1}, {"required": ["a"]}),
        (
            {"properties": {"a": {}, "b": {}}, "additionalProperties": False, "maxProperties": 2},
            {"properties": {"a": {}, "b": {}}, "additionalProperties": False},
        ),
        (
            {"patternProperties": {"^x": {}}, "additionalProperties": False, "maxProperties": 0},
            {
                "patternProperties": {r"^(?:x[\s\S]*)$": {}},
                "additionalProperties": False,
                "maxProperties": 0,
            },
        ),
        (
            {"dependentRequired": {"a": ["b"]}},
            {"anyOf": [{"properties": {"a": False}}, {"required": ["b"]}]},
        ),
        # Nobody could write the name on which the other depends.
        (
            {"dependentRequired": {"\x01": ["b"], "a": ["b"]}},
            {"anyOf": [{"properties": {"a": False}}, {"required": ["b"]}]},
        ),
        # Proven apart, oneOf is anyOf.
        (
            {"oneOf": [{"type": "null"}, {"type": "string"}]},
            {"anyOf": [{"type": "null"}, {"type": "string"}]},
        ),
        (
            {"anyOf": [{"type": "null"}], "oneOf": [{"const": 1}, {"const": 2}]},
            {"anyOf": [{"type": "null"}], "allOf": [{"anyOf": [{"enum": [1]}, {"enum": [2]}]}]},
        ),
        ({"anyOf": [False, {"type": "null"}]}, {"anyOf": [{"type": "null"}]}),
        ({"anyOf": [False, False]}, {"anyOf": [False]}),
        # Nothing is said by a branch without its condition, and by the name of the whole.
        ({"type": "null", "then": False, "else": False}, {"type": "null"}),
        ({"$id": "https://example.com/x", "type": "null"}, {"type": "null"}),
        # What leads to nothing that is possible is no alternative.
        (
            {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"not": {}}}},
            {"anyOf": [{"type": "null"}]},
        ),
        (
            {"definitions": {"a b": {"$ref": "#"}}, "items": {"$ref": "#/definitions/a%20b"}},
            {
                "items": {"$ref": "#/$defs/d0"},
                "$defs": {"d0": {"$ref": "#/$defs/d1"}, "d1": {"items": {"$ref": "#/$defs/d0"}}},
            },
        ),
    ],
)
def test_exact_forms(schema: Any, expected: Any) -> None:
    assert lowered(schema) == expected
    # and in the same words: 2, not 2.0
    assert json.dumps(lowered(schema), sort_keys=True) == json.dumps(expected, sort_keys=True)
    assert reasons(schema) == {}
    assert constraints(schema) <= told(schema)


@pytest.mark.parametrize(
    ("names", "expression"),
    [
        ({"type": "string", "title": "any"}, r"[\s\S]*"),
        ({"type": ["string", "null"]}, r"[\s\S]*"),
        ({"pattern": "^[ab]", "maxLength": 2}, r"[a-b](?:[\s\S])?"),
        (
            {"not": {"enum": ["a", "ab"]}, "pattern": "^(?=a)[ab]*$", "maxLength": 3},
            "a(?:ab?|b[ab])",
        ),
        ({"anyOf": [{"pattern": "^ab"}, {"const": "c"}], "$ref": "#/$defs/n"}, "ab|c"),
        ({"oneOf": [{"pattern": "^a?$"}, {"pattern": "^a{1,2}$"}]}, "(?:aa)?"),
        ({"pattern": "^ab$"}, "ab"),
        ({"minLength": 2}, r"[\s\S]{2,}"),
        ({"maxLength": 3}, r"[\s\S]{0,3}"),
        ({"minLength": 1, "maxLength": 3.0}, r"[\s\S]{1,3}"),
        ({"minLength": 1000}, r"[\s\S]{1000,}"),
        ({"maxLength": 1000}, r"[\s\S]{0,1000}"),
    ],
)
def test_a_rule_of_names_is_an_expression(names: Any, expression: str) -> None:
    schema = {"propertyNames": names, "$defs": {"n": {"maxLength": 2}}}
    found = lowered(schema)
    (written,) = found["patternProperties"]
    assert found["additionalProperties"] is False
    for text in ("", "a", "b", "c", "ab", "ba", "aa", "abc", "aba", "\n", "\n" * 3, "é" * 1000):
        expected = re.fullmatch(expression, text) is not None
        assert (re.fullmatch(written, text) is not None) == expected, text
    assert reasons(schema) == {}


@pytest.mark.parametrize(
    "names",
    [False, {"const": 1}, {"const": "\x01"}, {"enum": [1]}, {"enum": ["b"], "maxLength": 0}],
)
def test_where_no_name_is_allowed_the_object_is_empty(names: Any) -> None:
    found = lowered({"propertyNames": names, "properties": {"a": {}}})
    assert found["properties"]["a"] is False
    assert found["additionalProperties"] is False


@pytest.mark.parametrize(
    "names",
    [{"pattern": r"\ba"}, {"pattern": r"^\p{L}"}, {"format": "email"}, {"$ref": "#/$defs/n"}],
)
def test_rules_of_names_that_are_no_language_are_dropped(names: Any) -> None:
    schema = {
        "propertyNames": names,
        "properties": {"a": {}},
        "$defs": {"n": {"not": {"$ref": "#/$defs/m"}}, "m": {"format": "email"}},
    }
    assert lowered(schema) == {"properties": {"a": {}}}
    assert list(reasons(schema)) == ["$.propertyNames"]


def test_formats_are_patterns_of_ours_and_some_have_a_length() -> None:
    assert set(lowered({"type": "string", "format": "uuid"})) == {"$ref", "$defs"}
    (email,) = lowered({"type": "string", "format": "email"})["$defs"].values()
    assert [*map(list, email["allOf"])] == [["pattern"], ["maxLength"]]
    assert email["allOf"][1]["maxLength"] == 254


def test_long_patterns_are_written_once() -> None:
    stamp = {"type": "string", "format": "date-time"}
    schema = {"properties": {"a": stamp, "b": stamp, "c": {"items": stamp}}}
    found = lowered(schema)
    assert len(found["$defs"]) == 1
    assert found["properties"]["a"] == found["properties"]["c"]["items"] == {"$ref": "#/$defs/s0"}


@pytest.mark.parametrize(("name", "parts"), [("uuid", 1), ("hostname", 2)])
def test_a_format_beside_a_pattern_holds_as_well(name: str, parts: int) -> None:
    schema = {"type": "string", "format": name, "pattern": "^a$"}
    (found,) = lowered(schema)["$defs"].values()
    assert found["pattern"] == "^(?:a)$"
    assert len(found["allOf"]) == parts
    assert "$.format" in told(schema)
    assert reasons(schema) == {}


def test_what_the_list_cannot_say_the_type_still_does() -> None:
    assert lowered({"type": "number", "enum": [1e300]}) == {"type": "number"}
    assert lowered({"enum": [1e300]}) == {}


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ({"multipleOf": 0.1}, "$.multipleOf", "binary fraction"),
        ({"multipleOf": 99_991}, "$.multipleOf", "more than 10000 units"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "$.allOf[1].multipleOf", "common"),
        ({"minimum": 2**53}, "$.minimum", "a bound beyond 9007199254740991"),
        ({"maximum": 9e-10}, "$.maximum", "too close to 0"),
        ({"anyOf": [{}], "unevaluatedItems": False}, "$.unevaluatedItems", "cannot be followed"),
        (
            {"type": "array", "uniqueItems": True, "maxItems": 2},
            "$.uniqueItems",
            "the items before",
        ),
        ({"patternProperties": {"(?<=a)": {}}}, "$.patternProperties", "look-behind"),
        (
            {"patternProperties": {r"^\p{L}": {}, "^c": {}, "^a": {}}},
            "$.patternProperties",
            "Unicode property",
        ),
        (
            {"patternProperties": {".*a.{20}$": {}, ".*b.{20}$": {}}},
            "$.patternProperties",
            "states",
        ),
        ({"not": {"type": "number", "multipleOf": 2}}, "$.not", "multipleOf"),
        ({"not": {"uniqueItems": True}}, "$.not", "uniqueItems"),
        ({"not": {"propertyNames": {"maxLength": 3}}}, "$.not", "propertyNames"),
        ({"not": {"additionalProperties": {"type": "null"}}}, "$.not", "all names"),
        ({"oneOf": [{"minimum": 1}, {"type": "integer"}]}, "$.oneOf", "no integers"),
        ({"required": ["a", "\x01"]}, "$.required", "a control character"),
        ({"type": "number", "enum": [1e300]}, "$.enum", "an exponent"),
        ({"enum": [1e15 + 0.5]}, "$.enum", "an exponent"),
        ({"enum": [9e-6]}, "$.enum", "an exponent"),
        ({"const": [{"a": 2**53}]}, "$.const", "an integer beyond 9007199254740991"),
        ({"const": {"a": ["\x01"]}}, "$.const", "a control character"),
        ({"enum": ["a", "\x01"]}, "$.enum", "a control character"),
        ({"enum": [1], "dependencies": {"a": ["b"]}}, "$.dependencies", "not supported"),
        (
            {"items": {"$id": "a", "$ref": "b"}, "$defs": {"b": {"$id": "b"}}},
            "$.items.$id",
            "disagree",
        ),
        ({"minProperties": 2}, "$.minProperties", "free names may repeat"),
        (
            {"properties": {name: {} for name in "abcdefgh"}, "maxProperties": 1},
            "$.maxProperties",
            "so many optional",
        ),
        (
            {
                "properties": {name: {} for name in "abcdefgh"},
                "additionalProperties": False,
                "minProperties": 4,
            },
            "$.minProperties",
            "so many optional",
        ),
        ({"dependentRequired": {"a": ["b", "\x01"]}}, "$.dependentRequired", "a control character"),
    ],
)
def test_what_is_dropped_has_a_reason(schema: Any, path: str, reason: str) -> None:
    assert list(reasons(schema)) == [path]
    assert reason in reasons(schema)[path]
    assert path.removeprefix("$.") not in lowered(schema)


@pytest.mark.parametrize(
    ("divisors", "states"), [([3], 3), ([1.5], 15), ([0.5, 0.25], 50), ([0.5, 3], 30), ([4, 6], 12)]
)
def test_divisors_are_counted_in_units_of_their_last_digit(
    divisors: list[float], states: int
) -> None:
    assert num_states([Fraction(divisor) for divisor in divisors]) == states


def test_divisors_that_never_meet_need_no_common_multiple() -> None:
    schema = {"properties": {"a": {"multipleOf": 997}, "b": {"multipleOf": 991}}}
    assert reasons(schema) == {}


@pytest.mark.parametrize(
    ("schema", "merges"),
    [
        ({"properties": {"a": {"minimum": 1, "maximum": 3}}}, False),
        ({"anyOf": [{"type": "null"}]}, False),
        ({"allOf": [{"type": "null"}]}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}, "minimum": 3}, True),
        ({"dependentRequired": {"a": ["b"]}}, True),
    ],
)
def test_it_is_known_whether_one_schema_is_made_of_several(schema: Any, merges: bool) -> None:
    assert lower(Document(schema), LLGUIDANCE).merges == merges


def test_dropping_a_pattern_frees_the_names_it_might_have_matched() -> None:
    schema = {"patternProperties": {r"\bx": {"type": "null"}}, "additionalProperties": False}
    assert lowered(schema) == {}
    assert set(reasons(schema)) == {"$.patternProperties", "$.additionalProperties"}


def test_a_backend_of_one_family_is_told_one() -> None:
    schema = {"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {"type": "integer"}}}
    assert lowered(schema, XGRAMMAR)["$ref"] == "#/$defs/d0"
    assert "minimum" not in lowered(schema, XGRAMMAR)
    assert reasons(schema, XGRAMMAR) == {"$.minimum": "xgrammar ignores it beside $ref"}
    assert reasons({"minimum": 3}, XGRAMMAR) == {"$.minimum": "xgrammar ignores it without a type"}


def test_an_object_that_cannot_be_is_ruled_out_for_them() -> None:
    schema = {
        "type": ["object", "null"],
        "properties": {"a": False},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert lowered(schema, XGRAMMAR)["type"] == ["null"]
    others = {"properties": {"a": False, "b": {"type": "null"}}, "required": ["b"]}
    assert lowered(schema | others, XGRAMMAR)["properties"] == {"b": {"type": "null"}}
    assert lowered(schema | {"type": "object"}, XGRAMMAR) is False


def test_it_is_ruled_out_by_any_name_that_cannot_be() -> None:
    schema = {
        "type": ["object", "null"],
        "properties": {"a": {}, "b": False},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert lowered(schema, XGRAMMAR)["type"] == ["null"]


@pytest.mark.parametrize("keyword", ["dependentRequired", "dependentSchemas"])
def test_eight_dependencies_are_enforced_and_nine_dropped(keyword: str) -> None:
    def needs(name: str) -> Any:
        return [name] if keyword == "dependentRequired" else {"required": [name]}

    schemas = [{keyword: {n: needs(f"x{n}") for n in "abcdefghi"[:count]}} for count in (8, 9)]
    eight, nine = (lowered(schema) for schema in schemas)
    assert [part["anyOf"] for part in eight["allOf"]] == [
        [{"properties": {name: False}}, {"required": [f"x{name}"]}] for name in "abcdefgh"
    ]
    assert nine == {}
    assert [reasons(schema) for schema in schemas] == [
        {},
        {f"$.{keyword}": "more than 8 different dependencies"},
    ]
    same = lowered({keyword: {n: needs("x") for n in "abcdefghi"}})
    missing = {"properties": dict.fromkeys("abcdefghi", False)}
    assert same == {"anyOf": [missing, {"required": ["x"]}]}


def test_dependencies_are_told_whole_or_not_at_all() -> None:
    assert lowered({"dependentRequired": {"a": ["b"], "c": ["\x01"]}}) == {}
    assert lowered({"dependentSchemas": {"a": True}}) == {}


@pytest.mark.parametrize("sign", [1, -1])
def test_of_integers_that_are_no_doubles_not_every_backend_makes_others(sign: int) -> None:
    value = sign * (2**63 - 1)
    assert lowered({"enum": [value]}, XGRAMMAR) == {"enum": [value]}
    assert list(reasons({"enum": [value - sign, value + sign]}, XGRAMMAR)) == ["$.enum"]
    assert list(reasons({"enum": [value]}, LLGUIDANCE)) == ["$.enum"]


def test_references_to_identifiers_lead_to_schemas_of_their_own() -> None:
    schema = {
        "properties": {"a": {"$ref": "x"}, "b": {"$ref": "y"}},
        "$defs": {"x": {"$id": "x", "type": "null"}, "y": {"$id": "y", "type": "integer"}},
    }
    assert lowered(schema)["$defs"] == {"d0": {"type": "null"}, "d1": {"type": "integer"}}
    assert reasons(schema) == {}


@pytest.mark.parametrize("anything", [True, {}, {"title": "T"}])
def test_outlines_spells_out_what_anything_is(anything: Any) -> None:
    array = lowered({"type": "array", "items": anything}, OUTLINES)
    assert array["items"]["type"] == ["array", "boolean", "null", "number", "object", "string"]


@pytest.mark.parametrize("dialect", [LLGUIDANCE, OUTLINES, XGRAMMAR], ids=lambda d: d.name)
def test_of_every_constraint_it_is_said_what_became_of_it(dialect: Dialect) -> None:
    for number in range(400):
        schema = Schemas(random.Random(number), wild=0.5).root()
        with contextlib.suppress(InvalidGrammar):  # a reference that leads back to itself
            assert constraints(schema) <= told(schema, dialect), schema
