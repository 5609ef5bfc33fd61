"""Proofs that two schemas have no value in common: what turns ``oneOf`` into ``anyOf``.

Sound, not complete: True is a proof, False means only that none was found.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from grammar.errors import GrammarTooLarge
from grammar.schema.document import Document, Schema
from grammar.schema.forms import TYPES
from grammar.schema.languages import TooComplex
from grammar.schema.paths import ROOT
from grammar.schema.texts import Irregular, language_of

_MAX_STEPS = 5_000
_MAX_DEPTH = 8
_ALL = frozenset(TYPES)  # here "number" means: a number that is not an integer
_NUMBERS = frozenset(("integer", "number"))
_LITERALS = re.compile(r"\^(?:\((?:\?:)?([\w-]+(?:\|[\w-]+)*)\)|([\w-]+))\$", re.ASCII)
"""A pattern that lists what a string may be."""


def overlapping(
    schemas: Sequence[Schema], document: Document
) -> dict[int, dict[int, frozenset[str]]]:
    """The places of those of ``schemas`` that may have a value in common, each with the places of
    the others and the types that such a value may have. The effort is bounded: raises
    ``TooComplex``."""
    prover = _Prover(document)
    if prover.are_told_apart(schemas):
        return {}
    found: dict[int, dict[int, frozenset[str]]] = {}
    for one, two in itertools.combinations(range(len(schemas)), 2):
        common = prover.common_types(schemas[one], schemas[two], _MAX_DEPTH)
        if common:
            found.setdefault(one, {})[two] = common
            found.setdefault(two, {})[one] = common
        if prover.is_exhausted:
            raise TooComplex(f"{len(schemas)} alternatives take too much to compare")
    return found


class _Facts:
    """What a schema requires at its top level, including its references and ``allOf``."""

    def __init__(self, schema: Schema, document: Document) -> None:
        self.schema = schema
        self.parts = list(_conjuncts(schema, document))
        self.types = _ALL
        self.required: set[str] = set()
        for part in self.parts:
            self.types &= _types(part)
            self.required.update(part.get("required", ()))

    def property_schemas(self, key: str) -> Iterator[Schema]:
        for part in self.parts:
            if key in part.get("properties", {}):
                yield part["properties"][key]
            elif "patternProperties" not in part:
                yield part.get("additionalProperties", True)

    def values(self) -> list[Any] | None:
        """All possible values, if they are few enough to list; else None."""
        for part in self.parts:
            if "const" in part:
                return [part["const"]]
            if "enum" in part:
                return list(part["enum"])
            if self.types == {"string"} and (
                listed := _LITERALS.fullmatch(part.get("pattern", ""))
            ):
                return str(listed[1] or listed[2]).split("|")
        if self.types <= {"null", "boolean"}:
            return [None] * ("null" in self.types) + [False, True] * ("boolean" in self.types)
        return None

    def bounds(self, low: str, high: str) -> tuple[float, float]:
        lows = [part[low] for part in self.parts if low in part]
        highs = [part[high] for part in self.parts if high in part]
        return max(lows, default=float("-inf")), min(highs, default=float("inf"))


class _Prover:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._steps = 0
        self._facts: dict[int, _Facts] = {}

    @property
    def is_exhausted(self) -> bool:
        return self._steps > _MAX_STEPS

    def are_told_apart(self, schemas: Sequence[Schema]) -> bool:
        """Whether each lists values of its own, for itself or for a member that all require."""
        facts = [self._facts_of(schema) for schema in schemas if schema is not False]
        if _are_all_different([one.values() for one in facts]):
            return True
        keys = set.intersection(*(one.required for one in facts)) if facts else set()
        return any(
            all(one.types == {"object"} for one in facts)
            and _are_all_different([self._values_of(one, key) for one in facts])
            for key in sorted(keys)
        )

    def _values_of(self, facts: _Facts, key: str) -> list[Any] | None:
        for sub in facts.property_schemas(key):
            values = self._facts_of(sub).values()
            if values is not None:
                return values
        return None

    def _facts_of(self, schema: Schema) -> _Facts:
        found = self._facts.get(id(schema))
        if found is None:
            found = self._facts[id(schema)] = _Facts(schema, self._document)
        return found

    def disjoint(self, first: Schema, second: Schema, depth: int) -> bool:
        return not self.common_types(first, second, depth)

    def common_types(self, first: Schema, second: Schema, depth: int) -> frozenset[str]:
        """The types of which both schemas may have a value."""
        self._steps += 1
        one, two = self._facts_of(first), self._facts_of(second)
        both = one.types & two.types
        if depth == 0 or self._steps > _MAX_STEPS:
            return both
        if False in (first, second) or self._no_value(one, two) or self._no_value(two, one):
            return frozenset()
        common = frozenset(kind for kind in both if not self._no_common(kind, one, two, depth))
        if common and (self._no_branch(one, second, depth) or self._no_branch(two, first, depth)):
            return frozenset()
        return common

    def _no_value(self, one: _Facts, two: _Facts) -> bool:
        values = one.values()
        if values is None or self._steps + len(values) > _MAX_STEPS:
            return False
        self._steps += len(values)
        try:
            return not any(self._document.is_valid(value, two.schema, ROOT) for value in values)
        except GrammarTooLarge:
            return False

    def _no_common(self, kind: str, one: _Facts, two: _Facts, depth: int) -> bool:
        match kind:
            case "integer" | "number":
                return _no_common_number(one, two)
            case "string":
                return _no_common_count(one, two, "minLength", "maxLength") or (
                    self._no_common_text(one, two)
                )
            case "array":
                return _no_common_count(one, two, "minItems", "maxItems")
            case "object":
                return self._no_common_object(one, two, depth)
        return False

    def _no_common_text(self, one: _Facts, two: _Facts) -> bool:
        try:
            first = language_of(one.schema, self._document)
            return first.is_disjoint(language_of(two.schema, self._document))
        except (Irregular, TooComplex):
            return False

    def _no_common_object(self, one: _Facts, two: _Facts, depth: int) -> bool:
        keys = sorted(one.required | two.required)
        return any(
            _are_all_different([self._values_of(facts, key) for facts in (one, two)])
            for key in keys
        ) or any(
            self.disjoint(a, b, depth - 1)
            for key in keys
            for a in one.property_schemas(key)
            for b in two.property_schemas(key)
        )

    def _no_branch(self, one: _Facts, second: Schema, depth: int) -> bool:
        return any(
            all(self.disjoint(option, second, depth - 1) for option in part[keyword])
            for part in one.parts
            for keyword in ("anyOf", "oneOf")
            if keyword in part
        )


def _are_all_different(lists: Sequence[list[Any] | None]) -> bool:
    """Whether no value is in two of the lists, which are all given; 1 is not ``true``, but 1.0."""
    seen: set[object] = set()
    for values in lists:
        if values is None:
            return False
        kinds = {
            (isinstance(value, bool), value)
            for value in values
            if not isinstance(value, list | dict)
        }
        if seen & kinds or any(isinstance(value, list | dict) for value in values):
            return False
        seen |= kinds
    return True


def _conjuncts(schema: Schema, document: Document) -> Iterator[dict[str, Any]]:
    """All schema objects that apply to the value: the schema itself, what it refers to, and its
    ``allOf``."""
    seen: set[int] = set()
    stack: list[Schema] = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, bool) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        stack += part.get("allOf", ())
        if "$ref" in part:
            stack.append(document.resolve(part["$ref"], ROOT)[0])


def _types(part: dict[str, Any]) -> frozenset[str]:
    if "type" not in part:
        return _ALL
    names = frozenset([part["type"]] if isinstance(part["type"], str) else part["type"])
    return names | _NUMBERS if "number" in names else names


def _no_common_number(one: _Facts, two: _Facts) -> bool:
    low, high = _common(one, two, "minimum", "maximum")
    above, below = _common(one, two, "exclusiveMinimum", "exclusiveMaximum")
    return low > high or low >= below or above >= high or above >= below


def _no_common_count(one: _Facts, two: _Facts, least: str, most: str) -> bool:
    low, high = _common(one, two, least, most)
    return low > high


def _common(one: _Facts, two: _Facts, low: str, high: str) -> tuple[float, float]:
    low_one, high_one = one.bounds(low, high)
    low_two, high_two = two.bounds(low, high)
    return max(low_one, low_two), min(high_one, high_two)
