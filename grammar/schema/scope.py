"""One subschema that is lowered: what the author wrote, and what the backend will get."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grammar.schema.document import Document, Schema
from grammar.schema.forms import CONSTRAINTS, TYPES
from grammar.schema.negation import Open, all_of
from grammar.schema.paths import child

if TYPE_CHECKING:
    from grammar.schema.lowering import Dialect, Lowering


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether one backend enforces one keyword."""

    keyword: str
    path: str
    """Path of the keyword itself."""
    enforced: bool
    reason: str = ""
    """Why it is not enforced."""


class Scope:
    """One subschema: ``schema`` as the author wrote it, ``lowered`` as the backend will get it.

    Every constraint must be reported once, by ``enforce``, ``keep`` or ``drop``. To drop one never
    excludes a document.
    """

    def __init__(self, lowering: Lowering, schema: dict[str, Any], path: str) -> None:
        self.lowering = lowering
        self.path = path
        self.lowered: dict[str, Any] = {}
        self._also: list[Schema] = []
        self._settled: Schema | None = None
        listed = "enum" in schema or "const" in schema
        refusals = {} if listed else lowering.dialect.refusals(schema)
        self.schema = {key: value for key, value in schema.items() if key not in refusals}
        for keyword, reason in refusals.items():
            self.drop(keyword, reason)

    @property
    def dialect(self) -> Dialect:
        return self.lowering.dialect

    @property
    def document(self) -> Document:
        return self.lowering.document

    @property
    def types(self) -> frozenset[str]:
        """The types that a value can have here, as far as ``type`` says."""
        declared = self.schema.get("type", TYPES)
        return frozenset([declared] if isinstance(declared, str) else declared)

    def present(self, keywords: Iterable[str]) -> list[str]:
        return [keyword for keyword in keywords if keyword in self.schema]

    def enforce(self, *keywords: str) -> None:
        """Report those of ``keywords`` that are present as enforced."""
        for keyword in self.present(keywords):
            self.lowering.findings.append(Finding(keyword, child(self.path, keyword), True))

    def keep(self, keyword: str, value: Any) -> None:
        """Pass ``keyword: value`` to the backend, and report it as enforced."""
        self.lowered[keyword] = value
        self.enforce(keyword)

    def drop(self, keyword: str, reason: str) -> None:
        """Report ``keyword`` as not enforced."""
        finding = Finding(keyword, child(self.path, keyword), False, reason)
        self.lowering.findings.append(finding)

    def also(self, schema: Schema) -> None:
        """Pass another schema for the same value to the backend; for a dialect that merges."""
        assert self.dialect.merges
        self.lowering.merges = True
        self._also.append(schema)

    def settle(self, schema: Schema) -> None:
        """Pass ``schema`` and nothing else to the backend, and report all keywords as enforced."""
        self.enforce(*(keyword for keyword in self.schema if keyword in CONSTRAINTS))
        self._settled = schema

    def rule_out(self, kind: str) -> None:
        """Exclude all values of this type."""
        types = sorted(self.types - {kind})
        self.lowered["type"] = types
        if not types:
            self._settled = False

    @property
    def is_settled(self) -> bool:
        return self._settled is not None

    def sub(self, schema: Schema, *steps: str | int) -> Schema:
        """A subschema lowered; ``steps`` lead to it from here."""
        path = self.path
        for step in steps:
            path = child(path, step)
        return self.lowering.subschema(schema, path)

    def instead(self, schema: Schema, keyword: str) -> Schema:
        """Lower a schema that is equivalent to ``keyword``. Raises ``Open`` if it cannot be
        enforced whole."""
        findings, self.lowering.findings = self.lowering.findings, []
        try:
            lowered = self.lowering.subschema(schema, child(self.path, keyword))
            dropped = [finding for finding in self.lowering.findings if not finding.enforced]
        finally:
            self.lowering.findings = findings
        if dropped:
            raise Open(f"it would take {dropped[0].keyword}: {dropped[0].reason}")
        return lowered

    def around(self, *keywords: str) -> Schema:
        """The schema without ``keywords``."""
        return {key: value for key, value in self.schema.items() if key not in keywords}

    def result(self) -> Schema:
        if self._settled is not None:
            return self._settled
        parts = [*self.lowered.pop("allOf", ()), *self._also]
        merged = all_of([self.lowered, *parts])
        if isinstance(merged, bool) or not self.lowered:
            return merged
        return self.lowered | ({"allOf": rest} if (rest := merged.get("allOf", [])[1:]) else {})
