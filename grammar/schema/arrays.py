"""Items of arrays and their number."""

from __future__ import annotations

from grammar.schema.document import Schema
from grammar.schema.negation import MAX_FIRST, any_of
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
    if schema.get("uniqueItems") and schema.get("maxItems", 2) > 1:
        scope.drop("uniqueItems", "a grammar cannot remember the items before")
    else:
        scope.enforce("uniqueItems")
    if "contains" not in schema:
        scope.enforce("minContains", "maxContains")
    elif not scope.dialect.merges or not _lower_contains(scope):
        for keyword in scope.present(("contains", "minContains", "maxContains")):
            scope.drop(keyword, "a grammar cannot count matching items; minContains of 1 can be")


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
