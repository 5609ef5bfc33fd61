"""Lowers an author's schema to one that a backend enforces exactly.

Each keyword is either passed to the backend in a form that it is known to enforce exactly, or
dropped and reported with the reason. So the lowered schema admits every document that the author's
does, up to spelling (the order of members, ``1.0`` for ``1``, escapes that JSON does not need). If
nothing was dropped, it admits no others. Keywords that the standard does not define are
annotations, and are dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from grammar.schema import arrays, combinators, identity, numbers, objects, strings, values
from grammar.schema.document import Document, Schema
from grammar.schema.negation import Negation
from grammar.schema.patterns import Pattern
from grammar.schema.scope import Finding, Scope


@dataclass(frozen=True)
class Dialect:
    """How one backend interprets a JSON schema."""

    name: str
    merges: bool
    """Whether it takes the conjunction of all keywords and of ``allOf``, or one family only."""
    refusals: Callable[[Mapping[str, Any]], dict[str, str]]
    """The keywords of a subschema that the backend ignores or misreads beside the others, with the
    reasons. It is not called if values are listed, because those are checked here."""
    pattern: Callable[[Pattern], list[str] | None]
    """The pattern in the backend's notation, where several hold together if it merges; None if it
    cannot take it."""
    anything: dict[str, Any] = field(default_factory=dict)
    """The backend's notation for the schema that allows anything."""
    max_integer: int = 2**63 - 1
    """The largest integer, of either sign, that it writes as it stands in ``enum``."""
    listed_name: re.Pattern[str] = re.compile(r"(?s:.*)")
    """The names of members that it writes as they stand in ``enum``."""


class Lowered(NamedTuple):
    schema: Schema
    findings: tuple[Finding, ...]
    merges: bool
    """Whether the engine has to make one schema of several, which can multiply them."""
    num_divisor_states: int
    """Total states of the automata with which the engine follows ``multipleOf``."""

    @property
    def unenforced(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.enforced)


_LONG = 60
"""Characters of the patterns of a string above which they are written once for all places."""


def _pattern_size(lowered: dict[str, Any]) -> int:
    others = (part for part in lowered.get("allOf", ()) if isinstance(part, dict))
    return sum(len(part.get("pattern", "")) for part in (lowered, *others))


def _without(references: set[str], schema: Any) -> Any:
    """The schema where ``references`` lead to what nothing satisfies: engines take an alternative
    that is impossible for a contradiction."""
    if isinstance(schema, list):
        return [_without(references, part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "enum" in schema:
        return schema
    found = {keyword: _without(references, value) for keyword, value in schema.items()}
    if found.get("$ref") in references or False in found.get("allOf", ()):
        return False
    if "anyOf" in found:
        found["anyOf"] = [option for option in found["anyOf"] if option is not False]
    return found if found.get("anyOf", True) else False


_FAMILIES = tuple(
    (frozenset(family.KEYWORDS), family)
    for family in (identity, values, numbers, strings, arrays, objects, combinators)
)
"""The families in order, each with the keywords that it handles."""


def lower(document: Document, dialect: Dialect) -> Lowered:
    """Raises ``InvalidGrammar`` for a reference that leads nowhere."""
    lowering = Lowering(document, dialect)
    schema = lowering.run()
    return Lowered(
        schema,
        tuple(lowering.findings),
        document.merges or lowering.merges,
        sum(numbers.num_states([divisor]) for divisor in lowering.divisors),
    )


class Lowering:
    """The state of one pass over a document."""

    def __init__(self, document: Document, dialect: Dialect) -> None:
        self.document = document
        self.dialect = dialect
        self.findings: list[Finding] = []
        self.divisors: list[Fraction] = []
        self.negation = Negation(document)
        self.merges = False
        """Whether the backend is given several schemas for one value where the author wrote one."""
        self._names: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._shared: dict[str, Schema] = {}
        self._pending: list[tuple[str, Schema, str]] = []

    def run(self) -> Schema:
        root = self.subschema(self.document.root, self.document.path)
        definitions: dict[str, Schema] = {}
        while self._pending:
            name, schema, path = self._pending.pop()
            definitions[name] = self.subschema(schema, path)
        definitions |= self._shared
        while impossible := {f"#/$defs/{name}" for name, d in definitions.items() if d is False}:
            definitions = {
                name: _without(impossible, schema)
                for name, schema in definitions.items()
                if schema is not False
            }
            root = _without(impossible, root)
        return root | {"$defs": definitions} if definitions and isinstance(root, dict) else root

    def subschema(self, schema: Schema, path: str) -> Schema:
        if isinstance(schema, bool):
            return self.dialect.anything if schema else False
        scope = Scope(self, schema, path)
        for keywords, family in _FAMILIES:
            if not scope.is_settled and not keywords.isdisjoint(scope.schema):
                family.lower(scope)
        result = scope.result()
        if self.dialect.merges and isinstance(result, dict) and _pattern_size(result) > _LONG:
            return self._once(result)
        return self.dialect.anything if result == {} else result

    def _once(self, lowered: dict[str, Any]) -> Schema:
        """A reference to what is lowered: engines read a pattern each time that it occurs."""
        key = json.dumps(lowered)
        if key not in self._places:
            self._places[key] = f"s{len(self._places)}"
            self._shared[self._places[key]] = lowered
        return {"$ref": f"#/$defs/{self._places[key]}"}

    def reference(self, reference: str, path: str) -> str:
        """The reference to use in the lowered schema, in which all definitions are siblings."""
        schema, target = self.document.resolve(reference, path)
        if target not in self._names:
            self._names[target] = f"d{len(self._names)}"
            self._pending.append((self._names[target], schema, target))
        return f"#/$defs/{self._names[target]}"
