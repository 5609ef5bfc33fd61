"""A schema as a document, in which references are resolved. Nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from grammar.errors import GrammarTooLarge, InvalidGrammar
from grammar.schema import format_checks, merging
from grammar.schema.checker import Checker, Steps, TooManySteps, counted
from grammar.schema.forms import IN_LIST, IN_MAP, IN_SCHEMA, REFERRED, subschemas
from grammar.schema.paths import ROOT, child

Schema = dict[str, Any] | bool


_NOWHERE = "https://document.invalid/"
"""Where a document is that does not say so, if its parts do: what these refer to is absolute."""

_MAX_DEPTH = 400
"""Schemas on a path through subschemas and references: engines recurse along it."""

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
            uri = urldefrag(_joined(_NOWHERE, uri, child(path, "$id"))).url
            root = _AsOne(root, uri).of(root, uri, path)
        self.root: Schema = root
        self.path = path
        self.merges = False
        """Whether an engine will have to merge several schemas into one."""
        self._uri = uri
        self._schemas: dict[int, str] = {}
        self._resolved: dict[str, tuple[Schema, str]] = {}
        self._steps = Steps()
        if self._collect():
            self._check_depth()
            self._check_cycles()
        if self.merges:
            merging.check(self)

    @cached_property
    def _registry(self) -> Registry[Any]:
        # An explicit one, because the default one fetches what it does not know.
        resource = DRAFT202012.create_resource(self.root)
        found: Registry[Any] = Registry().with_resource(self._uri, resource).crawl()
        return found

    @cached_property
    def _validator(self) -> Checker:
        return Checker(self.root, registry=self._registry, format_checker=format_checks.CHECKER)

    def _collect(self) -> bool:
        """Collect the subschemas; returns whether there are references, without which there are no
        cycles."""
        refers = False
        stack: list[tuple[Schema, str]] = [(self.root, self.path)]
        while stack:
            schema, path = stack.pop()
            self._schemas[id(schema)] = path
            if isinstance(schema, dict):
                self.merges = self.merges or merging.is_merged(schema)
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
        done.add(id(schema))

    def _check_depth(self) -> None:
        """Follow subschemas and references as an engine does: each schema once, at the first place
        that leads to it."""
        seen: set[int] = set()
        stack: list[tuple[Schema, str, int]] = [(self.root, self.path, 0)]
        while stack:
            schema, path, depth = stack.pop()
            if isinstance(schema, bool) or id(schema) in seen:
                continue
            if depth > _MAX_DEPTH:
                raise GrammarTooLarge(path, f"$ref: more than {_MAX_DEPTH} schemas deep")
            seen.add(id(schema))
            below = [
                (sub, where, depth + 1)
                for sub, where in subschemas(schema, path)
                if not where.startswith((child(path, "$defs"), child(path, "definitions")))
            ]
            if "$ref" in schema:
                below.append((*self.resolve(schema["$ref"], child(path, "$ref")), depth + 1))
            stack += reversed(below)

    def resolve(self, reference: str, path: str) -> tuple[Schema, str]:
        """The schema that a ``$ref`` at ``path`` leads to, and that schema's own path.

        Raises ``InvalidGrammar`` if it leads outside the document or nowhere.
        """
        known = self._resolved.get(reference)
        if known is not None:
            return known
        try:
            found = self._lookup(reference)
        except (Unresolvable, TypeError, ValueError, LookupError):
            written = reference.removeprefix(_NOWHERE)
            raise InvalidGrammar(path, f"'{written}' leads nowhere in this document") from None
        if not isinstance(found, bool) and id(found) not in self._schemas:
            raise InvalidGrammar(path, f"'{reference}' does not lead to a schema")
        known = self._resolved[reference] = found, self._path_of(reference, found)
        return known

    def _lookup(self, reference: str) -> Any:
        if reference[:2] not in ("#", "#/"):
            return self._registry.resolver(base_uri=self._uri).lookup(reference).contents
        found: Any = self.root
        for _, found in _steps(self.root, reference[1:]):  # noqa: B007
            pass
        return found

    def is_valid(self, value: Any, schema: Schema, place: str = ROOT) -> bool:
        """Whether ``value`` satisfies a subschema of this document, formats included.

        Raises ``GrammarTooLarge`` at ``place``, the keyword that wants to know it, once all that
        was asked of this document has taken too many steps.
        """
        try:
            with counted(self._steps):
                return bool(self._validator.evolve(schema=schema).is_valid(value))
        except TooManySteps as error:
            keyword = place.rpartition(".")[2]
            message = f"{keyword}: its values take too many steps to check{error}"
            raise GrammarTooLarge(place, message) from None

    def errors(self, value: Any) -> list[jsonschema.ValidationError]:
        """How ``value`` violates the document, formats included."""
        return list(self._validator.iter_errors(value))

    def _path_of(self, reference: str, found: Schema) -> str:
        if not isinstance(found, bool):
            return self._schemas[id(found)]
        # true and false are no objects of their own: follow the pointer to them.
        uri, _, fragment = reference.partition("#")
        node = self._lookup(uri)
        path = self._schemas[id(node)]
        for key, _ in _steps(node, fragment):
            path = child(path, key)
        return path


def _steps(node: Any, pointer: str) -> Iterator[tuple[str | int, Any]]:
    """The steps of a JSON pointer, as in a URI, each with where it leads."""
    for part in unquote(pointer).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        key = int(name) if isinstance(node, list) else name
        node = node[key]
        yield key, node


def _below(root: Schema) -> Iterator[dict[str, Any]]:
    """The schema objects in ``root``, without itself. In every schema, so without paths, which take
    longer than all else."""
    stack = [root]
    while stack:
        schema = stack.pop()
        if not isinstance(schema, dict):
            continue
        if schema is not root:
            yield schema
        for keyword, value in schema.items():
            if keyword in IN_SCHEMA:
                stack.append(value)
            elif keyword in IN_LIST:
                stack += value
            elif keyword in IN_MAP or keyword == REFERRED:
                stack += value.values()


class _AsOne:
    """Makes one document of a schema that has identifiers below its root, so that everything can be
    read from there: references are written in full, and no part is of another draft."""

    def __init__(self, root: Schema, uri: str) -> None:
        self._root = root
        self._uri = uri
        self._identified = {uri: root}

    def of(self, schema: Schema, base: str, path: str) -> Schema:
        """``schema`` at ``path``, in which references are relative to ``base``. Raises
        ``InvalidGrammar`` for an identifier that is none, or that of two different schemas."""
        if not isinstance(schema, dict):
            return schema
        found = _without_draft(schema)
        if schema is self._root:
            found["$id"] = self._uri
        elif "$id" in found:
            if urldefrag(found["$id"]).url:
                base = self._identify(schema, base, child(path, "$id"))
            else:  # It only says where it stands.
                del found["$id"]
        for keyword, value in found.items():
            where = child(path, keyword)
            if keyword in IN_SCHEMA:
                found[keyword] = self.of(value, base, where)
            elif keyword in IN_LIST:
                found[keyword] = [self.of(s, base, child(where, i)) for i, s in enumerate(value)]
            elif keyword in IN_MAP:
                found[keyword] = {k: self.of(s, base, child(where, k)) for k, s in value.items()}
            elif keyword == "$ref" and base != self._uri:
                found[keyword] = _joined(base, value, where)
        return found

    def _identify(self, schema: dict[str, Any], base: str, path: str) -> str:
        """What references are relative to in ``schema``, whose identifier is at ``path``."""
        uri = urldefrag(_joined(base, schema["$id"], path)).url
        if self._identified.setdefault(uri, schema) != schema and self._is_referred(uri):
            shown = uri.removeprefix(_NOWHERE)
            raise InvalidGrammar(path, f"'{shown}' identifies another schema as well")
        return uri

    def _is_referred(self, uri: str) -> bool:
        """Whether a reference could mean this identifier, by the last part of it."""
        name = uri.rstrip("/#").rpartition("/")[2]
        return any(
            name in schema["$ref"].partition("#")[0] or schema["$ref"].startswith("#")
            for schema in (self._root, *_below(self._root))
            if isinstance(schema, dict) and isinstance(schema.get("$ref"), str)
        )


def _joined(base: str, reference: str, path: str) -> str:
    try:
        uri = base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError as error:
        raise InvalidGrammar(path, f"'{reference}' is no URI: {error}") from None
    if not urlsplit(uri).scheme:
        raise InvalidGrammar(path, f"'{reference}' cannot be relative to '{base}'")
    return uri


def _without_draft(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy without the draft that it names, if ``jsonschema`` would change to a class of its own
    where a reference leads to it."""
    changes = jsonschema.validators.validator_for(schema, default=Checker) is not Checker
    return {k: v for k, v in schema.items() if k != "$schema" or not changes}
