"""Checks whether a finished document satisfies its schema, for keywords that are not enforced."""

from __future__ import annotations

import json
from dataclasses import dataclass

import jsonschema

from grammar.audit import schemas_of
from grammar.schema.document import Document
from grammar.schema.paths import ROOT, child
from grammar.spec import GrammarSpec, no_constant

_MAX_VIOLATIONS = 10


@dataclass(frozen=True, slots=True)
class Violation:
    path: str
    """Path of the value in the document."""
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    violations: tuple[Violation, ...]
    """The first ten violations."""

    @property
    def passed(self) -> bool:
        return not self.violations


def validate(spec: GrammarSpec, text: str) -> Report:
    """Check ``text`` against the schema of a ``json_schema`` or ``json_object`` grammar, formats
    included, as of draft 2020-12.

    A pattern can take exponential time on a hostile text. If either is a client's, use a worker
    (``GrammarCompiler.validate``).
    """
    assert spec.kind in ("json_schema", "json_object")
    try:
        value = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        return Report((Violation(ROOT, f"not JSON: {error}"),))
    schemas = [part.schema for part in schemas_of(spec)] or [{"type": "object"}]
    try:
        errors = Document(schemas[0]).errors(value)
        return Report(tuple(map(_violation, errors[:_MAX_VIOLATIONS])))
    except (RecursionError, OverflowError) as error:
        return Report((Violation(ROOT, f"cannot be checked: {error}"),))


def _violation(error: jsonschema.ValidationError) -> Violation:
    path = ROOT
    for step in error.absolute_path:
        path = child(path, step)
    message = error.message if len(error.message) <= 300 else f"{error.message[:297]}..."
    return Violation(_encodable(path), _encodable(message))


def _encodable(text: str) -> str:
    """``text`` with lone surrogates of the document escaped, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()
