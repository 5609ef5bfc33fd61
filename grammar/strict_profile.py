"""OpenAI's subset of JSON Schema for ``strict: true``, and its limits.

It is narrower than what we enforce, so that a schema that is accepted here is accepted by OpenAI as
well. Source: OpenAI's guide to structured outputs, February 2026.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grammar.errors import GrammarTooLarge, InvalidGrammar, UnsupportedKeyword
from grammar.schema.document import Schema
from grammar.schema.forms import CONSTRAINTS, subschemas
from grammar.schema.paths import ROOT, child

MAX_PROPERTIES = 5_000
MAX_LEVELS = 10
MAX_TEXT = 120_000
"""Characters of all property names, definition names, enum and const values."""
MAX_ENUM_VALUES = 1_000
MAX_LARGE_ENUM_TEXT = 15_000
"""Characters of the values of one enum of strings with more than ``LARGE_ENUM`` values."""
LARGE_ENUM = 250

KEYWORDS = frozenset(
    {
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "multipleOf",
        "pattern",
        "properties",
        "required",
        "type",
    }
)
FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)


def check(schema: Schema) -> None:
    """Check a well-formed schema. Raises ``UnsupportedKeyword`` for a keyword outside the subset,
    ``InvalidGrammar`` for an object or a root that breaks its rules, and ``GrammarTooLarge`` above
    a limit; each names the path."""
    if not isinstance(schema, dict) or schema.get("type") != "object" or "anyOf" in schema:
        raise InvalidGrammar(ROOT, "the root must have the type 'object', and no anyOf")
    counted = _Counts()
    for node, path, level in _walk(schema):
        if not isinstance(node, dict):
            raise InvalidGrammar(path, "true and false are no schemas here")
        _check_keywords(node, path)
        if "properties" in node or "object" in _types(node):
            _check_object(node, path)
        if level > MAX_LEVELS:
            raise GrammarTooLarge(path, f"objects nested deeper than {MAX_LEVELS} levels")
        counted.add(node, path)


def _walk(root: Schema) -> Iterator[tuple[Schema, str, int]]:
    """Every subschema with its path and the number of objects around and including it."""
    stack: list[tuple[Schema, str, int]] = [(root, ROOT, 0)]
    while stack:
        node, path, level = stack.pop()
        if isinstance(node, dict):
            level += "properties" in node
            stack += (
                (sub, where, level) for sub, where in subschemas(node, path) if sub is not False
            )
        yield node, path, level


def _check_keywords(node: dict[str, Any], path: str) -> None:
    for keyword in node:
        if keyword in CONSTRAINTS and keyword not in KEYWORDS:
            reason = "it is not part of the strict subset"
            raise UnsupportedKeyword(keyword, child(path, keyword), reason)
    if node.get("format", "date") not in FORMATS:
        reason = f"the strict subset knows the formats {', '.join(sorted(FORMATS))}"
        raise UnsupportedKeyword("format", child(path, "format"), reason)


def _types(node: dict[str, Any]) -> list[str]:
    declared = node.get("type", [])
    return [declared] if isinstance(declared, str) else declared


def _check_object(node: dict[str, Any], path: str) -> None:
    if node.get("additionalProperties") is not False:
        raise InvalidGrammar(path, "'additionalProperties' must be given, and false")
    missing = set(node.get("properties", ())) ^ set(node.get("required", ()))
    if missing:
        names = ", ".join(sorted(missing))
        message = f"'required' must list exactly the properties; it differs in: {names}"
        raise InvalidGrammar(path, message)


class _Counts:
    """Counts of what the limits apply to, over the whole schema."""

    def __init__(self) -> None:
        self._properties = 0
        self._enum_values = 0
        self._text = 0

    def add(self, node: dict[str, Any], path: str) -> None:
        values = [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]
        names = [*node.get("properties", ()), *node.get("$defs", ()), *node.get("definitions", ())]
        self._properties += len(node.get("properties", ()))
        self._enum_values += len(node.get("enum", ()))
        self._text += sum(map(len, names)) + sum(len(str(value)) for value in values)
        if self._properties > MAX_PROPERTIES:
            raise GrammarTooLarge(path, f"more than {MAX_PROPERTIES} properties in all")
        if self._enum_values > MAX_ENUM_VALUES:
            raise GrammarTooLarge(path, f"more than {MAX_ENUM_VALUES} enum values in all")
        if self._text > MAX_TEXT:
            raise GrammarTooLarge(path, f"names and values of more than {MAX_TEXT} characters")
        strings = [value for value in node.get("enum", ()) if isinstance(value, str)]
        if len(strings) > LARGE_ENUM and sum(map(len, strings)) > MAX_LARGE_ENUM_TEXT:
            message = f"more than {LARGE_ENUM} values of more than {MAX_LARGE_ENUM_TEXT} characters"
            raise GrammarTooLarge(child(path, "enum"), message)
