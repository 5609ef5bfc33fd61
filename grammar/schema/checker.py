"""``jsonschema``'s validator of draft 2020-12, with patterns as ``ecma`` reads them."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jsonschema

from grammar.schema import ecma

_DRAFT = jsonschema.Draft202012Validator
_Errors = Iterator[jsonschema.ValidationError]


_NAMES = "patternProperties"


def _matches(keyword: str, source: str, text: str) -> bool:
    try:
        return ecma.matches(source, text)
    except TooManySteps:
        shown = source if len(source) <= 80 else f"{source[:77]}..."
        raise TooManySteps(f" against {keyword} {shown!r}") from None


def _pattern(validator: Any, source: str, value: Any, schema: Any) -> _Errors:
    if not validator.is_type(value, "string"):
        return
    try:
        if not _matches("pattern", source, value):
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
                if _matches(_NAMES, source, name):
                    yield from validator.descend(member, sub, path=name, schema_path=source)
    except ecma.Unreadable as error:
        yield jsonschema.ValidationError(f"patternProperties cannot be checked: {error}")


def _additional_properties(validator: Any, rest: Any, value: Any, schema: Any) -> _Errors:
    sources = schema.get("patternProperties", {})
    if not sources or not validator.is_type(value, "object"):
        yield from _DRAFT.VALIDATORS["additionalProperties"](validator, rest, value, schema)
        return
    try:
        matched = {name for name in value if any(_matches(_NAMES, s, name) for s in sources)}
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
    """Checks have taken more steps, or more time, than they may. Its text ends the sentence that
    they take too many."""


def give_up(*_: object) -> None:
    """The handler of SIGVTALRM where checks are to be limited in time: a pattern may take forever,
    but looks after signals."""
    raise TooManySteps


class Steps:
    """Counts the keywords that are checked, and the time that it takes."""

    def __init__(self, most: int = 50_000, most_s: float = 0.15) -> None:
        self._left = most
        self._left_s = most_s

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Raises ``TooManySteps`` in the midst of things when the processor time is used up, if
        ``give_up`` is installed."""
        if signal.getsignal(signal.SIGVTALRM) is not give_up:
            yield
            return
        if self._left_s <= 0:
            raise TooManySteps
        started = time.thread_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, self._left_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # What it has left is rounded up.
            self._left_s -= time.thread_time() - started

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
        with steps.timed():
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
