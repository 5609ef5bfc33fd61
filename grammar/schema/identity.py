"""What a schema says of itself: its draft, its identifier, and the words of other drafts."""

from __future__ import annotations

from grammar.schema.scope import Scope

# Constraints of older drafts, which 2020-12 would take for annotations.
_LEGACY = ("$recursiveRef", "dependencies", "disallow", "divisibleBy", "extends")
KEYWORDS = ("$schema", "$id", *_LEGACY)


def lower(scope: Scope) -> None:
    schema = scope.schema
    if "$schema" in schema:  # those that are known are left out of a ``Document``
        scope.drop("$schema", f"'{schema['$schema']}' is not a known draft")
    if "$id" in schema and "$ref" in schema and scope.path != scope.document.path:
        scope.drop("$id", "drafts disagree on whether it moves the reference beside it")
    for keyword in scope.present(_LEGACY):
        scope.drop(keyword, "it is not supported")
