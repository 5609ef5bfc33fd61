"""Determines which keywords of a schema each backend enforces exactly.

Exactly means that no invalid document is ever generated, and that no valid one is excluded except
for its spelling (the order of members, ``1.0`` for ``1``, needless escapes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grammar import structural_tag
from grammar.errors import GrammarTooLarge
from grammar.schema.dialects import DIALECTS
from grammar.schema.document import Document, Schema
from grammar.schema.lowering import Lowered, lower
from grammar.schema.paths import ROOT
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec

BACKENDS = tuple(DIALECTS)
"""All backends, in order of preference."""
_DROPPED_AROUND = "what it stands in is not enforced"


@dataclass(frozen=True, slots=True)
class KeywordAudit:
    """One keyword at one place."""

    keyword: str
    path: str
    enforced_by: tuple[str, ...]
    reasons: Mapping[str, str]
    """For each backend that does not enforce it, why not."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit: the findings of each backend."""

    lowered: Mapping[str, Lowered]

    @property
    def keywords(self) -> tuple[KeywordAudit, ...]:
        """Every constraint that some backend enforces or refuses, by path."""
        findings = [(b, f) for b, lowered in self.lowered.items() for f in lowered.findings]
        places = sorted({(finding.path, finding.keyword) for _, finding in findings})
        # A backend that was not given this place has dropped a schema around it.
        reasons = {place: dict.fromkeys(self.lowered, _DROPPED_AROUND) for place in places}
        for backend, finding in findings:
            reasons[finding.path, finding.keyword].pop(backend, None)
        for backend, finding in findings:
            if not finding.enforced:
                reasons[finding.path, finding.keyword][backend] = finding.reason
        return tuple(
            KeywordAudit(keyword, path, tuple(b for b in self.lowered if b not in why), why)
            for (path, keyword), why in reasons.items()
        )

    def unenforced(self, backend: str) -> tuple[Finding, ...]:
        return self.lowered[backend].unenforced


def audit(schema: Schema, backends: Sequence[str] = BACKENDS, *, path: str = ROOT) -> Audit:
    """Audit a well-formed schema (``GrammarSpec.validate``) at ``path``. Raises ``InvalidGrammar``
    for a reference that leads nowhere or back to itself."""
    try:
        document = Document(schema, path)
        return Audit({backend: lower(document, DIALECTS[backend]) for backend in backends})
    except RecursionError:
        raise GrammarTooLarge(path, "nested too deeply") from None


def schemas_of(spec: GrammarSpec) -> list[structural_tag.JsonSchema]:
    """The schemas in a grammar, each with its path."""
    if spec.kind == "json_schema":
        return [structural_tag.JsonSchema(spec.document(), ROOT)]
    if spec.kind == "structural_tag":
        return list(structural_tag.schemas(structural_tag.parse(spec.document())))
    return []
