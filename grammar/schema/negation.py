"""Schemas for exactly the values that another schema does not allow.

Engines follow what is allowed. So what is forbidden (``not``, the alternatives of ``oneOf`` beside
one another, ``if``) is turned into what is left, type by type and keyword by keyword:

* a keyword for one type is violated by values of that type only, so its complement is the schema
  of that type and the complement of the keyword;
* several keywords are violated if one of them is, so the complement is ``anyOf`` theirs, and that
  of ``anyOf`` is ``allOf`` theirs.

Where no schema is left to say it in, ``Open`` says what it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import combinations, pairwise
from typing import Any

from grammar.schema.document import Document, Schema
from grammar.schema.forms import CONSTRAINTS, TYPES
from grammar.schema.languages import Language, TooComplex
from grammar.schema.paths import ROOT
from grammar.schema.texts import KEYWORDS as OF_STRINGS
from grammar.schema.texts import Irregular, own_language

_MAX_PARTS = 1_000
_MAX_DEPTH = 12
_MAX_MEMBER_PARTS = 200
"""Of those, for one member that an object may miss instead."""
_MAX_OPTIONAL = 4
"""Each doubles the alternatives of objects that have a name beyond those known."""
MAX_FIRST = 8
"""Places of an array at which the first item of a kind may be."""
_NUMBERS = ("integer", "number")


class Open(ValueError):
    """The complement of a keyword cannot be said in keywords that engines enforce."""


class Around:
    """What is known of a value beside a complement, so that less is left to say."""

    def __init__(self, schemas: list[Schema], document: Document) -> None:
        self.types = frozenset(TYPES)
        self.names: frozenset[str] | None = None
        """All names that an object can have, if they are few."""
        self.required: set[str] = set()
        self.members: dict[str, list[Schema]] = {}
        """What holds for the members of an object, by name."""
        stack, depth = list(schemas), 0
        while stack and depth < 100:
            schema = stack.pop()
            depth += 1
            if not isinstance(schema, dict):
                continue
            self._read(schema)
            stack += schema.get("allOf", ())
            if "$ref" in schema:
                stack.append(document.resolve(schema["$ref"], ROOT)[0])

    def only(self, types: Iterable[str]) -> Around:
        """The same of values of these types."""
        found = copy(self)
        found.types &= frozenset(types)
        return found

    def _read(self, schema: dict[str, Any]) -> None:
        self.types &= types_of(schema)
        self.required.update(schema.get("required", ()))
        for name, sub in schema.get("properties", {}).items():
            self.members.setdefault(name, []).append(sub)
        closed = schema.get("additionalProperties") is False
        if closed and not schema.get("patternProperties"):
            names = frozenset(schema.get("properties", ()))
            self.names = names if self.names is None else self.names & names


def types_of(schema: dict[str, Any]) -> frozenset[str]:
    """The types that ``type`` allows: ``integer`` with ``number``."""
    declared = schema.get("type", TYPES)
    found = frozenset([declared] if isinstance(declared, str) else declared)
    return found | {"integer"} if "number" in found else found


class Negation:
    """Complements of schemas of one document, with a limit on their size."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._num_parts = 0
        self._most = _MAX_PARTS

    def of_types(self, schema: Schema, types: frozenset[str], around: Around) -> Schema:
        """As ``of``, for a schema that allows no value around it but of ``types``, as it is known
        otherwise."""
        if types & set(_NUMBERS):
            types |= set(_NUMBERS)
        if around.types <= types:
            return self.of(schema, around)
        others = _of_types(around.types - types)
        return any_of([*others, self._among(types, schema, around, 0)])

    def _among(self, types: Iterable[str], schema: Schema, around: Around, depth: int) -> Schema:
        """The values of ``types`` that ``schema`` does not allow."""
        within = around.only(types)
        return all_of([*_of_types(within.types), self.of(schema, within, depth)])

    def of(self, schema: Schema, around: Around, depth: int = 0) -> Schema:
        """A schema for what ``schema`` does not allow; of the values that ``around`` tells about.
        Raises ``Open``."""
        self._num_parts += 1
        if self._num_parts > self._most or depth > _MAX_DEPTH:
            raise Open("its complement is too large")
        if isinstance(schema, bool):
            return not schema
        if "enum" in schema or "const" in schema:
            return self._of_values(schema, around, depth)
        own = types_of(schema)
        options: list[Schema] = []
        others = around.types - own
        if "number" in others and "integer" in own:
            # Numbers with a fraction are left out where something else is left.
            others -= {"number"}
            if depth == 0 or not others:
                raise Open("numbers that are no integers cannot be told apart")
        options += _of_types(others)
        within = own & around.types
        for read in (_of_text, _of_number, self._of_array, self._of_object):
            options += read(schema, within, around, depth)
        options += self._of_combinations(schema, around, depth)
        return _within(any_of(options), around)

    def _of_combinations(
        self, schema: dict[str, Any], around: Around, depth: int
    ) -> Iterator[Schema]:
        def not_(sub: Schema) -> Schema:
            return self.of(sub, around, depth + 1)

        for keyword in ("$dynamicRef", "unevaluatedProperties", "unevaluatedItems"):
            if keyword in schema and schema[keyword] is not True:
                raise Open(f"{keyword} cannot be complemented")
        if "$ref" in schema:
            yield not_(self._document.resolve(schema["$ref"], ROOT)[0])
        for part in schema.get("allOf", ()):
            yield not_(part)
        if "anyOf" in schema:
            yield all_of([not_(part) for part in schema["anyOf"]])
        if "oneOf" in schema:
            parts = schema["oneOf"]
            yield all_of([not_(part) for part in parts])
            for pair in combinations(parts, 2):
                yield all_of(list(pair))
        if "not" in schema:
            yield schema["not"]
        if "if" in schema:
            if "then" in schema:
                yield all_of([schema["if"], not_(schema["then"])])
            if "else" in schema:
                yield all_of([not_(schema["if"]), not_(schema["else"])])

    def _of_values(self, schema: dict[str, Any], around: Around, depth: int) -> Schema:
        keyword = "const" if "const" in schema else "enum"
        others = {k: v for k, v in schema.items() if k in CONSTRAINTS and k != keyword}
        listed = [schema["const"]] if keyword == "const" else schema["enum"]
        values = [v for v in listed if not others or self._document.is_valid(v, others, ROOT)]
        options: list[Schema] = []
        free = set(around.types)
        for kind, of_kind in _by_type(values).items():
            kinds = set(_NUMBERS if kind == "number" else (kind,))
            if kind in ("array", "object") and kind in free:
                parts = [self._among(kinds, _with_parts(v), around, depth + 1) for v in of_kind]
                options.append(all_of(parts))
            elif free & kinds:
                options += _other_values(kind if kind in free else "integer", of_kind)
            free -= kinds
        return _within(any_of([*options, *_of_types(free)]), around)

    def _of_array(
        self, schema: dict[str, Any], within: frozenset[str], around: Around, depth: int
    ) -> Iterator[Schema]:
        if "array" not in within:
            return
        anything = Around([], self._document)
        if schema.get("uniqueItems"):
            raise Open("uniqueItems cannot be complemented")
        yield from _of_count(schema, "array", "minItems", "maxItems")
        prefix = schema.get("prefixItems", [])
        for i, item in enumerate(prefix):
            other = self.of(item, anything, depth + 1)
            if other is not False:
                yield {"type": "array", **_at(i, other)}
        if schema.get("items", True) not in (True, {}):
            other = self.of(schema["items"], anything, depth + 1)
            if schema["items"] is False:
                yield {"type": "array", "minItems": len(prefix) + 1}
            elif other is not False:
                places = range(len(prefix), len(prefix) + MAX_FIRST)
                yield from ({"type": "array", **_at(place, other)} for place in places)
        if "contains" in schema:
            if schema.get("minContains", 1) != 1 or "maxContains" in schema:
                raise Open("minContains and maxContains cannot be complemented")
            other = self.of(schema["contains"], anything, depth + 1)
            yield (
                {"type": "array", "items": other}
                if other is not False
                else {
                    "type": "array",
                    "maxItems": 0,
                }
            )

    def _of_object(
        self, schema: dict[str, Any], within: frozenset[str], around: Around, depth: int
    ) -> Iterator[Schema]:
        if "object" not in within:
            return
        if schema.get("patternProperties") or schema.get("propertyNames", True) is not True:
            raise Open("patternProperties and propertyNames cannot be complemented")
        yield from _of_count(schema, "object", "minProperties", "maxProperties")
        for name in schema.get("required", ()):
            if around.names is None or name in around.names:
                yield {"type": "object", "properties": {name: False}}
            else:
                yield {"type": "object"}
        for name, sub in schema.get("properties", {}).items():
            known = around.members.get(name, [])
            # What holds for a member anyway cannot be what it violates.
            if len(_different([*known, sub])) == len(known) or (
                around.names is not None and name not in around.names
            ):
                continue
            may_miss = name in schema.get("required", ())
            other = self._of_member(sub, Around(known, self._document), depth + 1, may_miss)
            if other is not False:
                yield {"type": "object", "required": [name], "properties": {name: other}}
        for name, needs in schema.get("dependentRequired", {}).items():
            for need in needs:
                yield {"type": "object", "required": [name], "properties": {need: False}}
        for name, sub in schema.get("dependentSchemas", {}).items():
            other = self.of(sub, around, depth + 1)
            yield all_of([{"type": "object", "required": [name]}, other])
        if schema.get("additionalProperties", True) not in (True, {}):
            yield from self._of_additional(schema, around, depth)

    def _of_member(self, schema: Schema, around: Around, depth: int, may_miss: bool) -> Schema:
        """As ``of`` for a member. Where an object ``may_miss`` it as well, nothing is left of a
        complement that cannot be said, or is large."""
        if not may_miss:
            return self.of(schema, around, depth)
        most = self._most
        self._most = min(most, self._num_parts + _MAX_MEMBER_PARTS)
        try:
            return self.of(schema, around, depth)
        except Open:
            return False
        finally:
            self._most = most

    def _of_additional(
        self, schema: dict[str, Any], around: Around, depth: int
    ) -> Iterator[Schema]:
        known = schema.get("properties", {})
        rest = schema["additionalProperties"]
        if rest is False and any(name not in known for name in around.required):
            yield {"type": "object"}
            return
        if around.names is None:
            if rest is not False:
                text = "additionalProperties can only be complemented where all names are known"
                raise Open(text)
            yield from _with_another(known, schema.get("required", ()))
            return
        other = self.of(rest, Around([], self._document), depth + 1)
        for name in sorted(around.names - known.keys()):
            yield {"type": "object", "required": [name], "properties": {name: other}}


def _with_another(known: Iterable[str], required: Iterable[str]) -> Iterator[Schema]:
    """The objects that have all ``required`` names, and another one than the known. Raises
    ``Open``."""
    needed = sorted(required)
    optional = sorted(set(known) - set(needed))
    if len(optional) > _MAX_OPTIONAL or not set(needed) <= set(known):
        raise Open("additionalProperties can only be complemented where few names are optional")
    for size in range(len(optional) + 1):
        for present in combinations(optional, size):
            yield {
                "type": "object",
                "required": [*needed, *present],
                "properties": dict.fromkeys((n for n in optional if n not in present), False),
                "minProperties": len(needed) + size + 1,
            }


def _with_parts(value: list[Any] | dict[str, Any]) -> dict[str, Any]:
    """What only ``value`` satisfies, in keywords for its parts."""
    if isinstance(value, list):
        parts = [{"const": item} for item in value]
        return {
            "type": "array",
            "minItems": len(value),
            "items": False,
            **({"prefixItems": parts} if parts else {}),
        }
    return {
        "type": "object",
        "required": list(value),
        "properties": {name: {"const": part} for name, part in value.items()},
        "additionalProperties": False,
    }


def _at(place: int, item: Schema) -> dict[str, Any]:
    """What arrays satisfy that have ``item`` at a place."""
    return {"minItems": place + 1, "prefixItems": [*[True] * place, item]}


def _within(schema: Schema, around: Around) -> Schema:
    """The same, or true if it allows all types that a value can have."""
    types = set(_whole_types(schema))
    is_all = bool(types) and around.types <= types | ({"integer"} if "number" in types else set())
    return True if is_all else schema


def any_of(options: list[Schema]) -> Schema:
    """The disjunction, without what is said twice."""
    if True in options or {} in options:
        return True
    whole = {kind for option in options for kind in _whole_types(option)}
    kept: list[Schema] = [{"type": sorted(whole)}] if whole else []
    kept += [o for o in options if isinstance(o, dict) and not _is_in(o, whole)]
    kept = _different(kept)
    if len(kept) < 2:
        return kept[0] if kept else False
    return {"anyOf": kept}


def _different(schemas: list[Schema]) -> list[Schema]:
    """Each once. They are compared as JSON, in which 1 is not ``true``."""
    if len(schemas) < 2:
        return schemas
    return list({json.dumps(schema, sort_keys=True): schema for schema in schemas}.values())


def _whole_types(option: Schema) -> list[str]:
    if not isinstance(option, dict) or option.keys() != {"type"}:
        return []
    return [option["type"]] if isinstance(option["type"], str) else option["type"]


def _is_in(option: dict[str, Any], types: set[str]) -> bool:
    return "type" in option and types_of(option) <= types | (
        {"integer"} if "number" in types else set()
    )


def all_of(parts: list[Schema]) -> Schema:
    """The conjunction, without what is said twice."""
    if False in parts:
        return False
    kept = _different([part for part in parts if part is not True and part != {}])
    if len(kept) < 2:
        return kept[0] if kept else {}
    return {"allOf": kept}


def _of_text(
    schema: dict[str, Any], within: frozenset[str], around: Around, depth: int
) -> Iterator[Schema]:
    if "string" not in within or OF_STRINGS.isdisjoint(schema):
        return
    yield from _of_count(schema, "string", "minLength", "maxLength")
    for keyword in ("pattern", "format"):
        if keyword not in schema:
            continue
        try:
            language = own_language({keyword: schema[keyword]})
            yield from _texts(~language)
        except Irregular as error:
            raise Open(str(error)) from None


def _texts(language: Language) -> Iterator[Schema]:
    """The strings of a language. Raises ``Open``."""
    try:
        if not language.is_empty():
            yield {"type": "string", "pattern": f"^(?:{language.regex()})$"}
    except TooComplex as error:
        raise Open(f"its complement takes too much: {error}") from None


def _of_number(
    schema: dict[str, Any], within: frozenset[str], around: Around, depth: int
) -> Iterator[Schema]:
    kinds = within & set(_NUMBERS)
    if not kinds:
        return
    kind = "number" if "number" in kinds else "integer"
    if "multipleOf" in schema:
        raise Open("multipleOf cannot be complemented")
    for keyword, other in (
        ("minimum", "exclusiveMaximum"),
        ("maximum", "exclusiveMinimum"),
        ("exclusiveMinimum", "maximum"),
        ("exclusiveMaximum", "minimum"),
    ):
        if keyword in schema:
            yield {"type": kind, other: schema[keyword]}


def _of_count(schema: dict[str, Any], kind: str, least: str, most: str) -> Iterator[Schema]:
    if schema.get(least, 0) > 0:
        yield {"type": kind, most: int(schema[least]) - 1}
    if most in schema:
        yield {"type": kind, least: int(schema[most]) + 1}


def _by_type(values: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for value in values:
        match value:
            case None:
                kind = "null"
            case bool():
                kind = "boolean"
            case int() | float():
                kind = "number"
            case str():
                kind = "string"
            case list():
                kind = "array"
            case _:
                kind = "object"
        found.setdefault(kind, []).append(value)
    return found


def _of_types(types: Iterable[str]) -> list[Schema]:
    names = set(types) - ({"integer"} if "number" in types else set())
    return [{"type": sorted(names)}] if names else []


def _other_values(kind: str, values: list[Any]) -> Iterator[Schema]:
    match kind:
        case "boolean":
            rest = [value for value in (False, True) if value not in values]
            if rest:
                yield {"enum": rest}
        case "string":
            yield from _texts(~Language.of_texts(values))
        case "number" | "integer":
            bounds = sorted(set(values))
            yield {"type": kind, "exclusiveMaximum": bounds[0]}
            yield {"type": kind, "exclusiveMinimum": bounds[-1]}
            for low, high in pairwise(bounds):
                yield {"type": kind, "exclusiveMinimum": low, "exclusiveMaximum": high}
