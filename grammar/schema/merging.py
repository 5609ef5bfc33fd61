"""Counts what an engine would have to write out to make one schema of several.

Engines merge what applies to the same value: the parts of ``allOf``, and what stands beside a
``$ref`` or alternatives. Alternatives multiply, and what a reference leads to is copied, with all
its members. The count follows the same steps, and is refused where it exceeds its budget.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from grammar.errors import GrammarTooLarge
from grammar.schema.forms import CONSTRAINTS, subschemas
from grammar.schema.paths import child

if TYPE_CHECKING:
    from grammar.schema.document import Document, Schema

MAX_PARTS = 50_000
"""Schemas that are read to merge, each as often as an engine reads it."""
MAX_ALTERNATIVES = 1_000
"""Products of alternatives."""
MAX_PATTERNS = 8
"""Patterns and formats of one string, whose automata multiply."""
_MAX_NESTING = 150
_LEADS = ("allOf", "anyOf", "oneOf", "$ref", "dependentSchemas", "patternProperties")


def is_merged(schema: dict[str, Any]) -> bool:
    """Whether several parts of this schema apply to the same value."""
    if not schema.keys().isdisjoint({"allOf", "patternProperties", "dependentSchemas"}):
        return True
    alone = schema.keys() & CONSTRAINTS
    return len(alone) > 1 and not alone.isdisjoint({"$ref", "anyOf", "oneOf"})


def check(document: Document) -> None:
    """Raise ``GrammarTooLarge`` for the first keyword that multiplies too much."""
    counted = _Count(document)
    stack: list[tuple[Schema, str]] = [(document.root, document.path)]
    while stack:
        schema, path = stack.pop()
        if not isinstance(schema, dict):
            continue
        below = list(subschemas(schema, path))
        if is_merged(schema):
            counted.place = child(path, next(lead for lead in _LEADS if lead in schema))
            counted.merge([schema])
            below = [(sub, where) for sub, where in below if ".$defs" in where[len(path) :]]
        stack += below


class _Count:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._num_parts = 0
        self._alternatives: dict[int, int] = {}
        self._open: set[frozenset[int]] = set()
        self.place = document.path
        """The keyword that merges."""

    def merge(self, schemas: list[Schema]) -> None:
        """Count the merging of schemas for one value, and for the values in it."""
        parts = self._conjuncts(schemas)
        num_patterns = sum(("pattern" in part) + ("format" in part) for part in parts)
        if num_patterns > MAX_PATTERNS:
            message = f"pattern and format: {num_patterns} for one string, over {MAX_PATTERNS}"
            raise GrammarTooLarge(self.place, message)
        factors = [self._sum(part[k]) for part in parts for k in ("anyOf", "oneOf") if k in part]
        if len(factors) > 1 and prod(factors) > MAX_ALTERNATIVES:
            message = f"its alternatives multiply to more than {MAX_ALTERNATIVES}"
            raise GrammarTooLarge(self.place, message)
        for part in parts:
            for keyword in ("anyOf", "oneOf"):
                for option in part.get(keyword, ()):
                    self._merge_copied([option])
        members: dict[str, list[Schema]] = {}
        items: list[Schema] = []
        for part in parts:
            for name, sub in part.get("properties", {}).items():
                members.setdefault(name, []).append(sub)
            items += [part[key] for key in ("items", "additionalProperties") if key in part]
        for same in (*members.values(), items):
            self._merge_copied(same)

    def _merge_copied(self, schemas: list[Schema]) -> None:
        """A lone reference stays one, all else is copied."""
        if len(schemas) == 1 and isinstance(schemas[0], dict) and schemas[0].keys() == {"$ref"}:
            self._count()
            return
        these = frozenset(map(id, schemas))
        if these in self._open:  # The engine closes the circle as well.
            return
        if len(self._open) >= _MAX_NESTING:
            raise GrammarTooLarge(self.place, "nested too deeply to merge")
        self._open.add(these)
        self.merge(schemas)
        self._open.discard(these)

    def _conjuncts(self, schemas: list[Schema]) -> list[dict[str, Any]]:
        """All schemas that apply to one value for certain."""
        found: list[dict[str, Any]] = []
        seen: set[int] = set()
        stack = list(schemas)
        while stack:
            part = stack.pop()
            self._count()
            if isinstance(part, bool) or id(part) in seen:
                continue
            seen.add(id(part))
            found.append(part)
            stack += part.get("allOf", ())
            if "$ref" in part:
                stack.append(self._document.resolve(part["$ref"], self.place)[0])
        return found

    def _count(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise GrammarTooLarge(self.place, f"more than {MAX_PARTS} schemas to merge")

    def _sum(self, options: list[Schema]) -> int:
        return sum(map(self._num_alternatives, options))

    def _num_alternatives(self, schema: Schema) -> int:
        if isinstance(schema, bool):
            return 1
        known = self._alternatives.get(id(schema))
        if known is None:
            self._alternatives[id(schema)] = 1  # for a reference back
            known = prod(self._num_alternatives(part) for part in schema.get("allOf", ()))
            if "$ref" in schema:
                target, _ = self._document.resolve(schema["$ref"], self.place)
                known *= self._num_alternatives(target)
            for keyword in ("anyOf", "oneOf"):
                if keyword in schema:
                    known *= self._sum(schema[keyword])
            known = min(known, 1 << 40)
            self._alternatives[id(schema)] = known
        return known
