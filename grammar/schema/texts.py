"""The strings that a schema allows, as a language."""

from __future__ import annotations

from typing import Any

from grammar.schema import formats
from grammar.schema.document import Document, Schema
from grammar.schema.languages import ANYTHING, NOTHING, Language, all_but
from grammar.schema.paths import ROOT
from grammar.schema.patterns import Pattern, PatternError

ANY_CHAR = Language.of_chars(all_but(()))
KEYWORDS = frozenset({"pattern", "format", "minLength", "maxLength"})
_MAX_DEPTH = 20


class Irregular(ValueError):
    """Which strings a schema allows cannot be said by a language."""


def language_of(schema: Schema, document: Document, depth: int = 0) -> Language:
    """Exactly the strings that satisfy the schema. Raises ``Irregular``."""
    if isinstance(schema, bool):
        return ANYTHING if schema else NOTHING
    if depth > _MAX_DEPTH:
        raise Irregular("it is nested too deeply")
    found = own_language(schema)
    if "$dynamicRef" in schema:
        raise Irregular("$dynamicRef leads to several schemas")
    if "$ref" in schema:
        target, _ = document.resolve(schema["$ref"], ROOT)
        found &= language_of(target, document, depth + 1)
    for part in schema.get("allOf", ()):
        found &= language_of(part, document, depth + 1)
    if "anyOf" in schema:
        options = NOTHING
        for part in schema["anyOf"]:
            options |= language_of(part, document, depth + 1)
        found &= options
    if "oneOf" in schema:
        once = several = NOTHING
        for part in schema["oneOf"]:
            option = language_of(part, document, depth + 1)
            once, several = (once | option), several | (once & option)
        found &= once - several
    if "not" in schema:
        found -= language_of(schema["not"], document, depth + 1)
    if "if" in schema:
        condition = language_of(schema["if"], document, depth + 1)
        then = language_of(schema.get("then", True), document, depth + 1)
        otherwise = language_of(schema.get("else", True), document, depth + 1)
        found &= (condition & then) | (otherwise - condition)
    return found


def own_language(schema: dict[str, Any]) -> Language:
    """The strings that the keywords of this schema allow, without its subschemas. Raises
    ``Irregular``."""
    found = ANYTHING
    types = schema.get("type", "string")
    if "string" not in ([types] if isinstance(types, str) else types):
        return NOTHING
    for keyword in ("enum", "const"):
        if keyword in schema:
            values = schema["enum"] if keyword == "enum" else [schema["const"]]
            found &= Language.of_texts(value for value in values if isinstance(value, str))
    if "pattern" in schema:
        try:
            found &= Pattern.parse(schema["pattern"]).language
        except PatternError as error:
            raise Irregular(f"pattern: {error}") from None
    format_ = formats.lookup(schema.get("format", ""))
    if format_ is not None:
        if not format_.is_exact:
            raise Irregular(f"the format '{schema['format']}' is no regular language")
        found &= format_.language
    if "minLength" in schema or "maxLength" in schema:
        most = int(schema["maxLength"]) if "maxLength" in schema else None
        found &= ANY_CHAR.repeated(int(schema.get("minLength", 0)), most)
    return found
