"""A schema as a document, in which references are resolved. Nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from grammar.errors import InvalidGrammar
from grammar.schema import format_checks
from grammar.schema.checker import Checker
from grammar.schema.forms import CONSTRAINTS, IN_LIST, IN_MAP, IN_SCHEMA, subschemas
from grammar.schema.paths import ROOT, child

Schema = dict[str, Any] | bool


# Keywords whose subschemas apply to the same value as the schema that contains them.
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})


class Document:
    """A well-formed root schema.

    Raises ``InvalidGrammar`` for a reference that leads nowhere, or back to itself without a member
    or an item in between: no value could ever be checked against it.
    """

    def __init__(self, root: Schema, path: str = ROOT) -> None:
        if isinstance(root, dict):
            root = _without_draft(root)
        uri = DRAFT202012.create_resource(root).id() or ""
        if any("$id" in schema or "$schema" in schema for schema in _below(root)):
            root = _as_one(root, uri, is_root=True)
        self.root: Schema = root
        self.path = path
        self.merges = False
        """Whether an engine will have to merge several schemas into one."""
        self._schemas: dict[int, str] = {}
        resource = DRAFT202012.create_resource(root)
        # An explicit registry, because the default one fetches what it does not know.
        registry: Registry[Any] = Registry().with_resource(uri, resource)
        self._resolver = registry.resolver(base_uri=uri)
        self._validator = Checker(
            root,
            registry=registry,
            format_checker=format_checks.CHECKER,
        )

        if self._collect():
            self._check_cycles()

    def _collect(self) -> bool:
        """Collect the subschemas; returns whether there are references, without which there are no
        cycles."""
        refers = False
        stack: list[tuple[Schema, str]] = [(self.root, self.path)]
        while stack:
            schema, path = stack.pop()
            self._schemas[id(schema)] = path
            if isinstance(schema, dict):
                self.merges = self.merges or _is_merged(schema)
                refers = refers or "$ref" in schema
                stack += subschemas(schema, path)
        return refers

    def _check_cycles(self) -> None:
        done: set[int] = set()
        stack = [(self.root, self.path)]
        while stack:
            schema, path = stack.pop()
            if isinstance(schema, dict):
                self._visit(schema, path, done, set())
                stack += subschemas(schema, path)

    def _visit(self, schema: Schema, path: str, done: set[int], above: set[int]) -> None:
        if isinstance(schema, bool) or id(schema) in done:
            return
        if id(schema) in above:
            raise InvalidGrammar(path, "the reference leads back to itself")
        above.add(id(schema))
        for sub, where in subschemas(schema, path, _IN_PLACE):
            self._visit(sub, where, done, above)
        if "$ref" in schema:
            target, where = self.resolve(schema["$ref"], child(path, "$ref"))
            self._visit(target, where, done, above)
        above.discard(id(schema))
        done.add(id(schema))

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
        return found, self._path_of(reference, found)

    def is_valid(self, value: Any, schema: Schema) -> bool:
        """Whether ``value`` satisfies a subschema of this document, formats included."""
        return bool(self._validator.evolve(schema=schema).is_valid(value))

    def errors(self, value: Any) -> list[jsonschema.ValidationError]:
        """How ``value`` violates the document, formats included."""
        return list(self._validator.iter_errors(value))

    def _path_of(self, reference: str, found: Schema) -> str:
        if not isinstance(found, bool):
            return self._schemas[id(found)]
        # true and false are no objects of their own: follow the pointer to them.
        uri, _, fragment = reference.partition("#")
        node = self._resolver.lookup(uri).contents
        path = self._schemas[id(node)]
        for part in unquote(fragment).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            key = int(name) if isinstance(node, list) else name
            node, path = node[key], child(path, key)
        return path


def _below(root: Schema) -> Iterator[dict[str, Any]]:
    """The schema objects in ``root``, without itself."""
    stack = [root]
    while stack:
        schema = stack.pop()
        if isinstance(schema, dict):
            if schema is not root:
                yield schema
            stack += (sub for sub, _ in subschemas(schema, ROOT))


def _as_one(schema: Schema, base: str, *, is_root: bool = False) -> Schema:
    """``schema``, in which references are relative to ``base``, as part of one document that is
    read from its root: references are written in full, and no part is of another draft."""
    if not isinstance(schema, dict):
        return schema
    if "$id" in schema and not is_root:
        base = urldefrag(urljoin(base, schema["$id"])).url
    found = _without_draft(schema)
    for keyword, value in found.items():
        if keyword in IN_SCHEMA:
            found[keyword] = _as_one(value, base)
        elif keyword in IN_LIST:
            found[keyword] = [_as_one(sub, base) for sub in value]
        elif keyword in IN_MAP:
            found[keyword] = {name: _as_one(sub, base) for name, sub in value.items()}
        elif keyword == "$ref":
            found[keyword] = base + value if value.startswith("#") else urljoin(base, value)
    return found


def _without_draft(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy without the draft that it names, if ``jsonschema`` would change to a class of its own
    where a reference leads to it."""
    changes = jsonschema.validators.validator_for(schema, default=Checker) is not Checker
    return {k: v for k, v in schema.items() if k != "$schema" or not changes}


def _is_merged(schema: dict[str, Any]) -> bool:
    """Whether several parts of this schema apply to the same value."""
    if not schema.keys().isdisjoint({"allOf", "patternProperties", "dependentSchemas"}):
        return True
    alone = schema.keys() & CONSTRAINTS
    return len(alone) > 1 and not alone.isdisjoint({"$ref", "anyOf", "oneOf"})
