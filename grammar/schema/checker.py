"""``jsonschema``'s validator of draft 2020-12, with patterns as ``ecma`` reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
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


class TooManySteps(Exception):
    """Checks have taken more steps than they may."""


class Steps:
    """Counts the keywords that are checked, for a second of an old machine at most."""

    def __init__(self, most: int = 50_000) -> None:
        self._left = most

    def take(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise TooManySteps


_steps: ContextVar[Steps | None] = ContextVar("steps", default=None)


@contextmanager
def counted(steps: Steps) -> Iterator[None]:
    """Count all checks inside; they raise ``TooManySteps``."""
    before = _steps.set(steps)
    try:
        yield
    finally:
        _steps.reset(before)


def _counting(keyword: str, check: Callable[..., _Errors | None]) -> Callable[..., _Errors | None]:
    def counting(validator: Any, expected: Any, value: Any, schema: Any) -> _Errors | None:
        steps = _steps.get()
        if steps is not None:
            # Each item is compared with each other, and the value with each that is listed.
            pairs = len(value) ** 2 if keyword == "uniqueItems" and isinstance(value, list) else 1
            steps.take(len(expected) if keyword == "enum" else pairs)
        return check(validator, expected, value, schema)

    return counting


_OURS = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "unevaluatedProperties": _unevaluated_properties,
}
Checker = jsonschema.validators.extend(
    _DRAFT, {k: _counting(k, check) for k, check in (_DRAFT.VALIDATORS | _OURS).items()}
)
"""Checks as the library's own class does, formats included if it is given a checker of them."""
