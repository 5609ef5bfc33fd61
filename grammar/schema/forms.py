"""Checks whether a document is a JSON schema: the form of each keyword (draft 2020-12), and its
size.

``jsonschema`` could check the form, too, but takes a hundred times as long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from grammar.errors import GrammarTooLarge, InvalidGrammar
from grammar.regex_size import expanded_size
from grammar.schema import ecma
from grammar.schema.paths import ROOT, child

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

# The keywords that can make a document invalid.
CONSTRAINTS = frozenset(
    {
        "$dynamicRef",
        "$ref",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "contains",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "if",
        "items",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "oneOf",
        "pattern",
        "patternProperties",
        "prefixItems",
        "properties",
        "propertyNames",
        "required",
        "then",
        "type",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)

MAX_PATTERN_PROPERTIES = 100
MAX_PATTERN_ITEMS = 1_000_000
MAX_ALTERNATIVES = 250
"""Schemas that an engine follows side by side until the output tells which one it is."""

# Keywords of older drafts that would constrain, and what to write now.
_FORMER = {
    "divisibleBy": "multipleOf",
    "disallow": "not",
    "extends": "allOf",
    "$recursiveRef": "$ref",
}

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

# Where subschemas are.
IN_SCHEMA = frozenset(
    {
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
IN_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
IN_MAP = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
REFERRED = "\0referred"
"""In a root, the schemas to which references lead and which stand in no keyword of the standard, by
their paths. No document has such a keyword of its own."""
APPLICATORS = IN_SCHEMA | IN_LIST | IN_MAP


def check(
    schema: Any,
    root: str = ROOT,
    *,
    max_depth: int,
    max_properties: int,
    max_optional: int,
    max_enum_values: int,
    max_count: int,
) -> None:
    """Raise ``InvalidGrammar`` for the first keyword whose value has the wrong form, and
    ``GrammarTooLarge`` above a limit: ``max_depth`` limits the nesting of subschemas,
    ``max_properties`` the properties of the whole schema and the required names beside them,
    ``max_optional`` the properties of one object that are not required, ``max_enum_values`` the
    values of one enum, and ``max_count`` every length and number of items. Paths begin with
    ``root``."""
    properties = pattern_items = 0
    named = ""
    """Where there is an ``id``, to which a reference may be."""
    by_name = False
    """Whether there is a reference that is no pointer from the root."""
    stack: list[tuple[Any, str, int]] = [(schema, root, 0)]
    while stack:
        node, path, depth = stack.pop()
        if depth > max_depth:
            raise GrammarTooLarge(path, f"schemas nested deeper than {max_depth}")
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise InvalidGrammar(path, f"a schema is an object or a boolean, got {_short(node)}")
        _check_forms(node, path)
        _check_alternatives(node, path)
        by_name = by_name or not node.get("$ref", "#/").startswith("#/")
        if depth and isinstance(node.get("id"), str) and "$id" not in node:
            named = named or child(path, "id")
        properties += len(node.get("properties", {}).keys() | node.get("required", ()))
        if properties > max_properties:
            raise GrammarTooLarge(path, f"more than {max_properties} properties in all")
        if len(node.get("properties", {}).keys() - node.get("required", ())) > max_optional:
            raise GrammarTooLarge(path, f"more than {max_optional} optional properties at once")
        for pattern in (node.get("pattern", ""), *node.get("patternProperties", ())):
            pattern_items += expanded_size(pattern)
        if pattern_items > MAX_PATTERN_ITEMS:
            message = f"all patterns expand to more than {MAX_PATTERN_ITEMS} items"
            raise GrammarTooLarge(child(path, "pattern"), message)
        if len(node.get("patternProperties", ())) > MAX_PATTERN_PROPERTIES:
            message = (
                f"more than {MAX_PATTERN_PROPERTIES} patterns, each to be told from all others"
            )
            raise GrammarTooLarge(child(path, "patternProperties"), message)
        if len(node.get("enum", ())) > max_enum_values:
            raise GrammarTooLarge(child(path, "enum"), f"more than {max_enum_values} values")
        for keyword in _COUNTS:  # but for the most that a string may have, which takes no work
            if keyword != "maxLength" and node.get(keyword, 0) > max_count:
                raise GrammarTooLarge(child(path, keyword), f"more than {max_count}")
        stack += ((sub, where, depth + 1) for sub, where in subschemas(node, path))
    if by_name and named:
        message = "id is of draft 4, and may move references: write $id, or name the draft"
        raise InvalidGrammar(named, f"{message} in $schema")


def _check_alternatives(node: dict[str, Any], path: str) -> None:
    for keyword in ("anyOf", "oneOf"):
        options = node.get(keyword, ())
        if len(options) <= MAX_ALTERNATIVES:
            continue
        listed = {"const", "enum"}
        open_ = [o for o in options if not isinstance(o, dict) or listed.isdisjoint(o)]
        if len(open_) > MAX_ALTERNATIVES:
            message = f"{keyword}: more than {MAX_ALTERNATIVES} alternatives without const or enum"
            raise GrammarTooLarge(child(path, keyword), message)


def _check_forms(node: dict[str, Any], path: str) -> None:
    if isinstance(node.get("items"), list):
        raise InvalidGrammar(child(path, "items"), "a list of schemas is called prefixItems now")
    for keyword, value in node.items():
        if keyword in _FORMER:
            message = f"{keyword} is of an older draft: write {_FORMER[keyword]}"
            raise InvalidGrammar(child(path, keyword), message)
        expected = _FORMS.get(keyword, _any)(value)
        if expected is not None:
            raise InvalidGrammar(
                child(path, keyword), f"{keyword} must be {expected}, got {_short(value)}"
            )


def subschemas(
    node: dict[str, Any], path: str, keywords: frozenset[str] = APPLICATORS
) -> Iterator[tuple[Any, str]]:
    """The direct subschemas of a well-formed schema object under ``keywords``, with their paths."""
    for keyword, value in node.items():
        if keyword == REFERRED:
            yield from ((sub, path + where.removeprefix(ROOT)) for where, sub in value.items())
        if keyword not in keywords:
            continue
        if keyword in IN_SCHEMA:
            yield value, child(path, keyword)
        elif keyword in IN_LIST:
            yield from ((sub, child(child(path, keyword), i)) for i, sub in enumerate(value))
        else:
            yield from ((sub, child(child(path, keyword), key)) for key, sub in value.items())


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# Each form returns None, or what was expected.
_Form = Callable[[Any], str | None]


def _any(value: Any) -> str | None:
    return None


def _of(kind: type | tuple[type, ...], expected: str) -> _Form:
    def form(value: Any) -> str | None:
        return None if isinstance(value, kind) else expected

    return form


def _number(value: Any) -> str | None:
    return None if isinstance(value, int | float) and not isinstance(value, bool) else "a number"


def _positive(value: Any) -> str | None:
    return None if _number(value) is None and value > 0 else "a number above 0"


def _count(value: Any) -> str | None:
    good = _number(value) is None and value >= 0 and value == int(value)
    return None if good else "a whole number of at least 0"


def _strings(value: Any) -> str | None:
    good = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return None if good and len(set(value)) == len(value) else "an array of different strings"


def _type(value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    good = all(isinstance(name, str) and name in TYPES for name in names)
    if good and names and len(set(names)) == len(names):
        return None
    return f"one or several of {', '.join(TYPES)}"


def _regex(value: Any) -> str | None:
    if not isinstance(value, str):
        return "a regular expression"
    try:
        ecma.check(value)
    except ecma.Unreadable as error:
        return f"a regular expression ({error})"
    return None


def _regex_map(value: Any) -> str | None:
    good = isinstance(value, dict) and all(_regex(key) is None for key in value)
    return None if good else "an object whose keys are regular expressions"


def _dependencies(value: Any) -> str | None:
    good = isinstance(value, dict) and all(_strings(names) is None for names in value.values())
    return None if good else "an object of arrays of different strings"


def _schemas(value: Any) -> str | None:
    return None if isinstance(value, list) and value else "a non-empty array of schemas"


def _anchor(value: Any) -> str | None:
    good = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][-A-Za-z0-9._]*", value)
    return None if good else "a name"


_string = _of(str, "a string")
_boolean = _of(bool, "a boolean")
_object = _of(dict, "an object")

_FORMS: dict[str, _Form] = {
    "$anchor": _anchor,
    "$comment": _string,
    "$dynamicAnchor": _anchor,
    "$dynamicRef": _string,
    "$id": _string,
    "$ref": _string,
    "$schema": _string,
    "$vocabulary": _object,
    "contentEncoding": _string,
    "contentMediaType": _string,
    "dependencies": _object,
    "dependentRequired": _dependencies,
    "deprecated": _boolean,
    "description": _string,
    "enum": _of(list, "an array"),
    "examples": _of(list, "an array"),
    "exclusiveMaximum": _number,
    "exclusiveMinimum": _number,
    "format": _string,
    "maxContains": _count,
    "maxItems": _count,
    "maxLength": _count,
    "maxProperties": _count,
    "maximum": _number,
    "minContains": _count,
    "minItems": _count,
    "minLength": _count,
    "minProperties": _count,
    "minimum": _number,
    "multipleOf": _positive,
    "pattern": _regex,
    "readOnly": _boolean,
    "required": _strings,
    "title": _string,
    "type": _type,
    "uniqueItems": _boolean,
    "writeOnly": _boolean,
    **dict.fromkeys(IN_LIST, _schemas),
    **dict.fromkeys(IN_MAP, _object),
    "patternProperties": _regex_map,
}
