"""``type``, ``enum`` and ``const``: the possible values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from grammar.schema.forms import CONSTRAINTS
from grammar.schema.paths import child
from grammar.schema.scope import Scope

if TYPE_CHECKING:
    from grammar.schema.lowering import Dialect

# Control characters without an escape of their own, and halves of surrogate pairs.
_UNSPEAKABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f\ud800-\udfff]")

KEYWORDS = ("type", "enum", "const")


def lower(scope: Scope) -> None:
    if "enum" in scope.schema or "const" in scope.schema:
        _lower_listed(scope)
    elif "type" in scope.schema:
        scope.keep("type", scope.schema["type"])


def _lower_listed(scope: Scope) -> None:
    """Keep those of the listed values that satisfy the rest of the schema."""
    keyword = "const" if "const" in scope.schema else "enum"
    listed = [scope.schema["const"]] if keyword == "const" else scope.schema["enum"]
    others = {k: v for k, v in scope.schema.items() if k in CONSTRAINTS and k != keyword}
    # The values satisfy the list itself; with nothing beside it there is nothing to check.
    place = child(scope.path, keyword)
    admitted = [v for v in listed if not others or scope.document.is_valid(v, others, place)]
    problems = (_problem(value, scope.dialect) for value in admitted)
    problem = next(filter(None, problems), None)
    if problem is None:
        scope.settle({"enum": list(map(_spelt, admitted))} if admitted else False)
    else:
        # Not just without the value that has it: the others would be all that can be said.
        scope.drop(keyword, problem)
        if "type" in scope.schema:
            scope.keep("type", scope.schema["type"])


def is_plain(text: str) -> bool:
    """Whether the text has exactly one spelling in JSON as engines write it."""
    return _UNSPEAKABLE.search(text) is None


def _spelt(value: Any) -> Any:
    """The value in the spelling of all engines: 1, not 1.0."""
    match value:
        case float() if value == int(value):
            return int(value)
        case list():
            return [_spelt(item) for item in value]
        case dict():
            return {key: _spelt(item) for key, item in value.items()}
    return value


def _problem(value: Any, dialect: Dialect) -> str | None:
    """The reason why the value cannot be enforced literally; None if it can."""
    match value:
        case str():
            return None if is_plain(value) else "a control character without a short escape"
        case bool() | None:
            return None
        case int():
            most = dialect.max_integer
            return None if abs(value) <= most else f"an integer beyond {most}"
        case float():
            plain = value == 0 or 1e-5 <= abs(value) < 1e15
            return None if plain else "a number that takes an exponent"
        case list():
            parts = value
        case dict():
            if not all(map(dialect.listed_name.fullmatch, value)):
                return f"{dialect.name} misreads a name in it"
            parts = [*value.keys(), *value.values()]
        case _:
            raise AssertionError(value)
    problems = (_problem(part, dialect) for part in parts)
    return next(filter(None, problems), None)
