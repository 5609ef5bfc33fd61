"""Items of arrays and their number."""

from __future__ import annotations

from itertools import permutations
from math import perm
from typing import Any

from grammar.schema.document import Schema
from grammar.schema.negation import MAX_FIRST, any_of
from grammar.schema.paths import child
from grammar.schema.scope import Scope

KEYWORDS = (
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
)
_MAX_VALUES = 20
_MAX_ARRAYS = 400
COMBINATORS = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")


def lower(scope: Scope) -> None:
    present = scope.present(KEYWORDS)
    if "array" not in scope.types:
        scope.enforce(*present)
        return
    schema = scope.schema
    if "prefixItems" in present:
        items = [scope.sub(sub, "prefixItems", i) for i, sub in enumerate(schema["prefixItems"])]
        scope.keep("prefixItems", items)
    if "items" in present:
        scope.keep("items", scope.sub(schema["items"], "items"))
    for keyword in scope.present(("minItems", "maxItems")):
        scope.keep(keyword, int(schema[keyword]))
    _lower_unevaluated(scope)
    _lower_content(scope)


def _lower_unevaluated(scope: Scope) -> None:
    if "unevaluatedItems" not in scope.schema:
        return
    if "items" in scope.schema or scope.schema["unevaluatedItems"] is True:
        scope.enforce("unevaluatedItems")
    elif scope.present((*COMBINATORS, "contains")):
        scope.drop("unevaluatedItems", "what other keywords evaluate cannot be followed")
    else:
        rest = scope.sub(scope.schema["unevaluatedItems"], "unevaluatedItems")
        scope.lowered["items"] = rest
        scope.enforce("unevaluatedItems")


def _lower_content(scope: Scope) -> None:
    schema = scope.schema
    if not schema.get("uniqueItems") or schema.get("maxItems", 2) <= 1 or _lower_unique(scope):
        scope.enforce("uniqueItems")
    else:
        reason = "a grammar cannot remember the items before; a few values in enum can be listed"
        scope.drop("uniqueItems", reason)
    if "contains" not in schema:
        scope.enforce("minContains", "maxContains")
    elif not scope.dialect.merges or not _lower_contains(scope):
        for keyword in scope.present(("contains", "minContains", "maxContains")):
            scope.drop(keyword, "a grammar cannot count matching items; minContains of 1 can be")


def _lower_unique(scope: Scope) -> bool:
    """Whether all arrays could be listed."""
    schema = scope.schema
    items = schema.get("items", {})
    if not scope.dialect.merges or "prefixItems" in schema or not isinstance(items, dict):
        return False
    values = _listed(items)
    if values is None or len(values) > _MAX_VALUES:
        return False
    place = child(scope.path, "uniqueItems")
    values = [value for value in values if scope.document.is_valid(value, items, place)]
    lengths = range(
        int(schema.get("minItems", 0)),
        int(min(schema.get("maxItems", len(values)), len(values))) + 1,
    )
    if sum(perm(len(values), length) for length in lengths) > _MAX_ARRAYS:
        return False
    spelt = [scope.instead({"const": value}, "uniqueItems") for value in values]
    options: list[Schema] = [
        {"type": "array", "prefixItems": list(array), "items": False, "minItems": length}
        for length in lengths
        for array in permutations(spelt, length)
        if length
    ]
    if 0 in lengths:
        options.append({"type": "array", "maxItems": 0})
    others = sorted(scope.types - {"array", "integer"})
    scope.also(any_of([*([{"type": others}] if others else []), *options]))
    return True


def _listed(items: dict[str, Any]) -> list[Any] | None:
    """The different values that an item can have, if they are listed."""
    if "const" in items:
        listed = [items["const"]]
    elif "enum" in items:
        listed = items["enum"]
    elif items.get("type") in ("boolean", "null"):
        listed = [False, True] if items["type"] == "boolean" else [None]
    else:
        return None
    if not all(isinstance(value, str | bool | int | None) for value in listed):
        return None
    # 1 is not true.
    return list({(type(value) is bool, value): value for value in listed}.values())


def _lower_contains(scope: Scope) -> bool:
    """Whether it could be said by the place of the first item that matches."""
    schema = scope.schema
    least = schema.get("minContains", 1)
    if least > 1 or "maxContains" in schema:
        return False
    if least == 1:
        item = scope.sub(schema["contains"], "contains")
        others = sorted(scope.types - {"array", "integer"})
        places = range(min(MAX_FIRST, int(schema.get("maxItems", MAX_FIRST))))
        options: list[Schema] = [{"type": others}] if others else []
        for place in places:
            before = [scope.dialect.anything] * place
            options.append({"type": "array", "minItems": place + 1, "prefixItems": [*before, item]})
        scope.also(any_of(options))
    scope.enforce("contains", "minContains")
    return True
