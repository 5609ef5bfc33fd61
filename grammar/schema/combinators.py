"""References, alternatives, conjunctions and conditions."""

from __future__ import annotations

from grammar.schema.disjoint import all_disjoint
from grammar.schema.document import Schema
from grammar.schema.paths import child
from grammar.schema.scope import Scope

KEYWORDS = (
    *("$ref", "$dynamicRef", "anyOf", "oneOf", "allOf"),
    *("not", "if", "then", "else"),
)


def lower(scope: Scope) -> None:
    if "$dynamicRef" in scope.schema:
        scope.drop("$dynamicRef", "it is not supported")
    if "$ref" in scope.schema:
        path = child(scope.path, "$ref")
        scope.keep("$ref", scope.lowering.reference(scope.schema["$ref"], path))
    if "anyOf" in scope.schema:
        scope.keep("anyOf", _options(scope, "anyOf"))
    if "oneOf" in scope.schema:
        _lower_one_of(scope)
    if "allOf" in scope.schema:
        scope.keep("allOf", [scope.sub(s, "allOf", i) for i, s in enumerate(scope.schema["allOf"])])
    _lower_conditions(scope)


def _options(scope: Scope, keyword: str) -> list[Schema]:
    options = [scope.sub(s, keyword, i) for i, s in enumerate(scope.schema[keyword])]
    return [option for option in options if option is not False] or [False]


def _lower_one_of(scope: Scope) -> None:
    options = _options(scope, "oneOf")
    if all_disjoint(scope.schema["oneOf"], scope.document):
        scope.enforce("oneOf")
    else:
        scope.drop("oneOf", "its alternatives may overlap; anyOf, or a distinct required constant")
    if "anyOf" not in scope.lowered:
        scope.lowered["anyOf"] = options
    else:
        scope.also({"anyOf": options})


def _lower_conditions(scope: Scope) -> None:
    schema = scope.schema
    if "not" in schema:
        scope.drop("not", "a grammar cannot say what must not match")
    if "if" not in schema or not scope.present(("then", "else")):
        scope.enforce("if", "then", "else")
        return
    for keyword in scope.present(("if", "then", "else")):
        scope.drop(keyword, "a grammar cannot decide afterwards which branch applied")
