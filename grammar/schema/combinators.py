"""References, alternatives, conjunctions, conditions, and what marks a document as a whole."""

from __future__ import annotations

from grammar.schema.disjoint import all_disjoint
from grammar.schema.document import DRAFT_2020_12, Schema
from grammar.schema.paths import child
from grammar.schema.scope import Scope

# Of these drafts every keyword that we enforce means the same, but for prefixItems.
_OLDER_DRAFTS = frozenset(
    {
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-06/schema",
    }
)
# Constraints of older drafts, which 2020-12 would take for annotations.
_LEGACY = ("$recursiveRef", "additionalItems", "dependencies", "disallow", "divisibleBy", "extends")
KEYWORDS = (
    *("$schema", "$id", "$dynamicRef", *_LEGACY),
    *("$ref", "anyOf", "oneOf", "allOf", "not", "if", "then", "else"),
)


def lower(scope: Scope) -> None:
    _lower_identity(scope)
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


def _lower_identity(scope: Scope) -> None:
    schema = scope.schema
    draft = schema.get("$schema", DRAFT_2020_12).rstrip("#")
    if draft not in _OLDER_DRAFTS | {DRAFT_2020_12}:
        scope.drop("$schema", f"'{draft}' is not a known draft")
    if "$id" in schema and scope.path != scope.document.path:
        scope.drop("$id", "an identifier below the root moves the references beneath it")
    for keyword in scope.present(("$dynamicRef", *_LEGACY)):
        scope.drop(keyword, "it is not supported")


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
