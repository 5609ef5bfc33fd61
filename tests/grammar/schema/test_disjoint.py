from __future__ import annotations

from typing import Any

import pytest

from grammar.schema.disjoint import all_disjoint
from grammar.schema.document import Document

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
    (obj(STR), obj(INT)),
    (obj(STR), {"type": "object", "additionalProperties": False}),
    (obj(STR), {"type": "object", "properties": {"kind": False}}),
    (obj(obj({"const": 1})), obj(obj({"const": 2}))),
    ({"allOf": [obj({"const": "a"}), {"minProperties": 1}]}, obj({"const": "b"})),
    ({"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}),
    ({"anyOf": [INT, {"type": "null"}]}, STR),
    (STR, {"oneOf": [INT, {"type": "null"}]}),
    ({"anyOf": [{"const": "a"}, {"const": "b"}]}, {"anyOf": [{"const": "c"}, INT]}),
]
NOT_DISJOINT: list[tuple[Any, Any]] = [
    (INT, {"type": "number"}),
    (INT, True),
    (INT, {}),
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
]
DEFS = {"a": obj({"const": "a"}), "b": obj({"const": "b"})}


def check(first: Any, second: Any) -> bool:
    document = Document({"$defs": DEFS, "anyOf": [first, second]})
    found = all_disjoint([first, second], document)
    assert all_disjoint([second, first], document) == found
    return found


@pytest.mark.parametrize(("first", "second"), DISJOINT)
def test_proofs(first: Any, second: Any) -> None:
    assert check(first, second)


@pytest.mark.parametrize(("first", "second"), NOT_DISJOINT)
def test_no_proof_where_a_value_fits_both(first: Any, second: Any) -> None:
    assert not check(first, second)


def test_every_pair_counts() -> None:
    document = Document(True)
    assert all_disjoint([INT, STR, {"type": "null"}], document)
    assert not all_disjoint([INT, STR, {"const": "a"}], document)
    assert all_disjoint([INT], document)


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
    assert not all_disjoint([wide, other], document)
    assert steps < 5_000
