from __future__ import annotations

from typing import Any

import pytest

from grammar import contradiction
from grammar.errors import Unsatisfiable
from grammar.jobs import Backends, Compiler
from grammar.spec import GrammarSpec, Limits
from grammar.vocabulary import Vocabulary

NONE = {"type": "integer", "minimum": 3, "maximum": 2}
SOME = {"type": "integer"}


def needing(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (NONE, "$"),
        (needing(a=SOME, b=NONE), "$.properties.b"),
        (needing(a=SOME, b=needing(c=NONE)), "$.properties.b.properties.c"),
        (needing(a={"type": "array", "items": NONE, "minItems": 1}), "$.properties.a.items"),
        ({"type": "array", "prefixItems": [SOME, NONE], "minItems": 2}, "$.prefixItems[1]"),
        (needing(a=False), "$.properties.a"),
        ({"allOf": [SOME, NONE]}, "$.allOf[1]"),
        # Only together they have no value.
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, "$"),
        (needing(a={"anyOf": [NONE, NONE]}), "$.properties.a"),
        # With what they refer to; of which the reference is as near as it gets.
        ({"$defs": {"d": NONE}} | needing(a=SOME, b={"$ref": "#/$defs/d"}), "$.properties.b"),
    ],
)
def test_it_is_found_where_it_is(vocabulary: Vocabulary, schema: dict[str, Any], path: str) -> None:
    compiler = Compiler(vocabulary, ["llguidance"], Limits(), Backends(vocabulary).load)
    with pytest.raises(Unsatisfiable) as caught:
        compiler.compile(GrammarSpec.from_schema(schema))
    assert caught.value.path == path
    assert "required property" not in caught.value.message


def test_what_has_no_value_but_is_not_needed_is_nobodys_fault() -> None:
    tried: list[Any] = []
    schema = {"properties": {"a": NONE}, "items": NONE, "prefixItems": [NONE]}
    found = Unsatisfiable("$", "why")
    assert contradiction.locate(schema, found, tried.append) is found
    assert tried == []


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": NONE}, "required": ["b"]},
        {"prefixItems": [SOME], "items": NONE, "minItems": 1},
        {"prefixItems": [SOME], "minItems": 2},
    ],
)
def test_what_is_needed_need_not_be_described(schema: dict[str, Any]) -> None:
    tried: list[Any] = []
    found = Unsatisfiable("$", "why")
    assert contradiction.locate(schema, found, tried.append) is found
    assert tried == [SOME] * ("prefixItems" in schema)


def test_the_search_is_bounded() -> None:
    tried: list[Any] = []
    found = Unsatisfiable("$", "why")
    assert (
        contradiction.locate(needing(**{f"p{i}": SOME for i in range(999)}), found, tried.append)
        is found
    )
    assert len(tried) <= 100

    def never(part: Any) -> None:
        tried.append(part)
        raise Unsatisfiable("$", "never")

    deep: dict[str, Any] = NONE
    for _ in range(500):
        deep = needing(a=deep)
    tried.clear()
    assert contradiction.locate(deep, found, never).path == "$" + 100 * ".properties.a"
    assert len(tried) == 100
