from __future__ import annotations

from typing import Any

import pytest

from grammar.schema.disjoint import overlapping
from grammar.schema.document import Document
from grammar.schema.languages import TooComplex

INT: Any = {"type": "integer"}
STR: Any = {"type": "string"}


def obj(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": kind}, "required": ["kind"], **more}


DISJOINT: list[tuple[Any, Any]] = [
    (INT, STR),
    (INT, False),
    ({"type": ["integer", "null"]}, {"type": ["string", "boolean"]}),
    ({"const": 1}, {"const": 2}),
    ({"const": 1}, {"const": True}),
    ({"enum": ["a", "b"]}, {"enum": ["c"]}),
    ({"const": "a"}, {"type": "string", "minLength": 2}),
    ({"type": "null"}, {"type": "object"}),
    ({"type": "boolean"}, {"enum": [1, 0]}),
    ({"type": "integer", "maximum": 2}, {"type": "number", "minimum": 2.5}),
    ({"type": "integer", "exclusiveMaximum": 2}, {"type": "integer", "minimum": 2}),
    ({"type": "number", "maximum": 2}, {"type": "number", "exclusiveMinimum": 2}),
    ({"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}),
    ({"type": "array", "maxItems": 0}, {"type": "array", "minItems": 1}),
    (obj({"const": "a"}), obj({"const": "b"})),
    (obj({"enum": ["a", "b"]}), obj({"const": "c"})),
    (obj({"type": "string", "pattern": "^(?:A|A_B)$"}), obj({"type": "string", "pattern": "^B$"})),
    (
        {"type": "string", "pattern": "^([0-9a-f]{1,4}:){5,9}[0-9a-f]*(/x){0,500}$"},
        {"type": "string", "pattern": "^([0-9a-f]{1,4}[.]?){2,900}$"},
    ),
    (obj(STR), obj(INT)),
    (obj(STR), {"type": "object", "additionalProperties": False}),
    (obj(STR), {"type": "object", "properties": {"kind": False}}),
    (obj(obj({"const": 1})), obj(obj({"const": 2}))),
    ({"allOf": [obj({"const": "a"}), {"minProperties": 1}]}, obj({"const": "b"})),
    ({"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}),
    ({"anyOf": [INT, {"type": "null"}]}, STR),
    (STR, {"oneOf": [INT, {"type": "null"}]}),
    ({"anyOf": [{"const": "a"}, {"const": "b"}]}, {"anyOf": [{"const": "c"}, INT]}),
    ({"type": "number", "exclusiveMaximum": 2}, {"type": "number", "exclusiveMinimum": 2}),
    ({"type": "null"}, {"not": {"type": "null"}}),
    ({"type": ["null", "boolean"]}, {"not": {"type": ["null", "boolean"]}}),
    # Of several bounds the tightest counts.
    ({"allOf": [{"minimum": 1}, {"minimum": 5}], **INT}, {"maximum": 3, **INT}),
    ({"allOf": [{"maximum": 5}, {"maximum": 1}], **INT}, {"minimum": 3, **INT}),
]
NOT_DISJOINT: list[tuple[Any, Any]] = [
    (INT, {"type": "number"}),
    (INT, True),
    (INT, {}),
    ({"type": "string", "pattern": "^A|B$"}, {"type": "string", "pattern": "^AB$"}),
    ({"type": "string", "pattern": "^(a:)*b$"}, {"type": "string", "pattern": "^[a-b]$"}),
    ({"const": 1}, {"const": 1.0}),
    ({"const": "ab"}, {"type": "string", "minLength": 2}),
    ({"minLength": 5}, {"maxLength": 2}),  # a number satisfies both
    ({"type": ["string", "null"], "minLength": 5}, {"type": ["string", "null"], "maxLength": 2}),
    ({"type": "integer", "maximum": 2}, {"type": "integer", "minimum": 2}),
    (obj({"const": "a"}), obj({"type": "string"})),
    ({"properties": {"k": {"const": 1}}}, {"properties": {"k": {"const": 2}}}),  # k may be absent
    (obj({"const": "a"}), {"type": "object", "patternProperties": {"^k": {}}}),
    ({"anyOf": [INT, STR]}, STR),
    ({"enum": ["a"]}, {"not": {"const": "b"}}),
    ({"enum": ["a", "b"]}, {"enum": ["b", "c"]}),
    ({"type": "null"}, {"type": ["null", "string"]}),
    ({"type": "boolean"}, {"const": False}),
    ({"type": "boolean"}, {"const": True}),
    ({"type": "string", "maxLength": 2}, {"type": "string", "minLength": 2}),
    ({"type": "array", "maxItems": 2}, {"type": "array", "minItems": 2}),
    (obj(STR), {"type": "object"}),
    (
        obj({"const": "a"}),
        {"type": "object", "patternProperties": {"^k": {}}, "additionalProperties": False},
    ),
    ({"$ref": "#/$defs/endless"}, {"$ref": "#/$defs/other"}),
]
DEFS = {
    "a": obj({"const": "a"}),
    "b": obj({"const": "b"}),
    "endless": obj({"$ref": "#/$defs/endless"}),
    "other": obj({"$ref": "#/$defs/other"}),
}


def check(first: Any, second: Any) -> bool:
    document = Document({"$defs": DEFS, "anyOf": [first, second]})
    found = not overlapping([first, second], document)
    assert bool(overlapping([second, first], document)) != found
    return found


@pytest.mark.parametrize(("first", "second"), DISJOINT)
def test_proofs(first: Any, second: Any) -> None:
    assert check(first, second)


@pytest.mark.parametrize(("first", "second"), NOT_DISJOINT)
def test_no_proof_where_a_value_fits_both(first: Any, second: Any) -> None:
    assert not check(first, second)


def test_the_types_that_two_have_in_common_are_named() -> None:
    first, second = {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}, obj(STR)
    other = {"properties": {"kind": {"const": "b"}}, "required": ["kind"]}
    types = {"null", "boolean", "integer", "number", "string", "array"}
    assert overlapping([first, other], Document(True)) == {0: {1: types}, 1: {0: types}}
    assert overlapping([first, second], Document(True)) == {0: {1: {"object"}}, 1: {0: {"object"}}}


def test_every_pair_counts() -> None:
    document = Document(True)
    assert not overlapping([INT, STR, {"type": "null"}], document)
    assert overlapping([INT, STR, {"const": "a"}], document)
    assert not overlapping([INT], document)


def test_proofs_of_many_steps_are_given_up() -> None:
    def ranges(count: int) -> list[Any]:
        low: Any = {"anyOf": [{"type": "integer", "maximum": -i} for i in range(count)]}
        high: Any = {"anyOf": [{"type": "integer", "minimum": i + 1} for i in range(count)]}
        return [low, high]

    assert not overlapping(ranges(60), Document(True))
    with pytest.raises(TooComplex, match="2 alternatives take too much"):
        overlapping(ranges(90), Document(True))


def test_effort_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    wide: Any = {"anyOf": [{"type": "integer", "minimum": i} for i in range(300)]}
    document = Document({"anyOf": [wide]})
    steps = 0

    def counted(*args: Any) -> bool:
        nonlocal steps
        steps += 1
        return False

    monkeypatch.setattr(document, "is_valid", counted)
    other = {"anyOf": [{"enum": list(range(i))} for i in range(1, 300)]}
    assert overlapping([wide, other], document)
    assert steps < 5_000
