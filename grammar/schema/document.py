"""A schema as a document: where its references lead. Nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from grammar.errors import InvalidGrammar
from grammar.schema.forms import subschemas
from grammar.schema.paths import ROOT, child

Schema = dict[str, Any] | bool
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"


class Document:
    """A root schema of good form."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self._schemas = {id(schema) for schema in _all_schemas(root)}
        resource = DRAFT202012.create_resource(root)
        uri = resource.id() or ""
        # An explicit registry, because the default one fetches what it does not know.
        registry: Registry[Any] = Registry().with_resource(uri, resource)
        self._resolver = registry.resolver(base_uri=uri)
        self._validator = jsonschema.Draft202012Validator(root, registry=registry)

    def resolve(self, reference: str, path: str) -> tuple[Schema, str]:
        """The schema that a ``$ref`` at ``path`` leads to, and that schema's own path.

        Raises ``InvalidGrammar`` if it leads outside the document or nowhere.
        """
        try:
            found = self._resolver.lookup(reference).contents
        except (Unresolvable, TypeError, ValueError, LookupError):
            raise InvalidGrammar(path, f"'{reference}' leads nowhere in this document") from None
        if not isinstance(found, bool) and id(found) not in self._schemas:
            raise InvalidGrammar(path, f"'{reference}' does not lead to a schema")
        return found, _path_of(reference)

    def is_valid(self, value: Any, schema: Schema) -> bool:
        """Whether ``value`` satisfies a subschema of this document; formats are not checked."""
        return bool(self._validator.evolve(schema=schema).is_valid(value))


def _all_schemas(root: Schema) -> Iterator[Schema]:
    stack = [root]
    while stack:
        schema = stack.pop()
        yield schema
        if isinstance(schema, dict):
            stack += (sub for sub, _ in subschemas(schema, ROOT))


def _path_of(reference: str) -> str:
    fragment = reference.partition("#")[2]
    if not fragment:
        return ROOT
    if not fragment.startswith("/"):
        return f"$#{fragment}"
    path = ROOT
    for part in unquote(fragment[1:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        path = child(path, int(key)) if key.isdigit() else child(path, key)
    return path
