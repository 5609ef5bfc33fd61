"""``jsonschema``'s validator of draft 2020-12, with patterns as ``ecma`` reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

from grammar.schema import ecma

_DRAFT = jsonschema.Draft202012Validator
_Errors = Iterator[jsonschema.ValidationError]


def _pattern(validator: Any, source: str, value: Any, schema: Any) -> _Errors:
    if not validator.is_type(value, "string"):
        return
    try:
        if not ecma.matches(source, value):
            yield jsonschema.ValidationError(f"{value!r} does not match {source!r}")
    except ecma.Unreadable as error:
        yield jsonschema.ValidationError(f"pattern cannot be checked: {error}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], value: Any, schema: Any
) -> _Errors:
    if not validator.is_type(value, "object"):
        return
    try:
        for source, sub in patterns.items():
            for name, member in value.items():
                if ecma.matches(source, name):
                    yield from validator.descend(member, sub, path=name, schema_path=source)
    except ecma.Unreadable as error:
        yield jsonschema.ValidationError(f"patternProperties cannot be checked: {error}")


def _additional_properties(validator: Any, rest: Any, value: Any, schema: Any) -> _Errors:
    sources = schema.get("patternProperties", {})
    if not sources or not validator.is_type(value, "object"):
        yield from _DRAFT.VALIDATORS["additionalProperties"](validator, rest, value, schema)
        return
    try:
        matched = {name for name in value if any(ecma.matches(s, name) for s in sources)}
    except ecma.Unreadable:  # said of patternProperties
        return
    for name, member in value.items():
        if name in schema.get("properties", {}) or name in matched:
            continue
        if rest is False:
            listed = ", ".join(map(repr, sources))
            message = f"{name!r} does not match any of the regexes: {listed}"
            yield jsonschema.ValidationError(message)
        else:
            yield from validator.descend(member, rest, path=name)


def _unevaluated_properties(validator: Any, rest: Any, value: Any, schema: Any) -> _Errors:
    try:
        yield from _DRAFT.VALIDATORS["unevaluatedProperties"](validator, rest, value, schema)
    except re.error as error:  # the library searches for names by itself
        message = f"unevaluatedProperties cannot be checked: {error}"
        yield jsonschema.ValidationError(message)


Checker = jsonschema.validators.extend(
    _DRAFT,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
    },
)
"""Checks as the library's own class does, formats included if it is given a checker of them."""
