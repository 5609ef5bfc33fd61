"""What a schema says of itself: its draft, its identifier, and the words of other drafts."""

from __future__ import annotations

from grammar.schema.document import DRAFT_2020_12
from grammar.schema.scope import Scope

# Of these drafts every keyword that we enforce means the same, but for prefixItems; and what stands
# beside $ref, which they ignored until 2019-09, holds too, as most validators have it.
_OLDER_DRAFTS = frozenset(
    {
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-06/schema",
    }
)
# Constraints of older drafts, which 2020-12 would take for annotations.
_LEGACY = ("$recursiveRef", "additionalItems", "dependencies", "disallow", "divisibleBy", "extends")
KEYWORDS = ("$schema", "$id", *_LEGACY)


def lower(scope: Scope) -> None:
    schema = scope.schema
    draft = schema.get("$schema", DRAFT_2020_12).rstrip("#")
    if draft not in _OLDER_DRAFTS | {DRAFT_2020_12}:
        scope.drop("$schema", f"'{draft}' is not a known draft")
    if "$id" in schema and scope.path != scope.document.path:
        scope.drop("$id", "an identifier below the root moves the references beneath it")
    for keyword in scope.present(_LEGACY):
        scope.drop(keyword, "it is not supported")
