"""Decodes a message into a checked struct, or raises an error that names the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from engine.field_hints import hint, names, one_of
from gateway.errors import ApiError, InvalidRequestError
from tenants.errors import InvalidValue

T = TypeVar("T")

_SOME_KEY = "[...]"
"""What msgspec writes in a path for the key of a mapping's value."""
_GOT = re.compile("got `(.*)`")
_JSON_TYPES: dict[type, str] = {
    **{str: "str", int: "int", float: "float", bool: "bool", type(None): "null"},
    **{list: "array", dict: "object"},
}

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


def decode(decoder: msgspec.json.Decoder[T], data: bytes, *, what: str = "body") -> T:
    """Decode JSON. Raises ``InvalidRequestError``, whose ``param`` is the path of the field at
    fault.

    ``what``: the word for ``data`` in errors that concern all of it.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as exc:
        cause = exc.__cause__ if isinstance(exc.__cause__, InvalidValue) else None
        raise _invalid(str(exc), what, cause, data, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequestError(
            f"The {what} is not valid JSON: {exc}", code="invalid_json"
        ) from None
    except RecursionError:
        raise InvalidRequestError(
            f"The {what} is nested too deeply.", code="invalid_json"
        ) from None


def _invalid(
    message: str, what: str, cause: InvalidValue | None, data: bytes, kind: Any
) -> ApiError:
    """Translate an error of msgspec's: ``<rule> - at `$.path```, or ``<rule>`` alone at the root.

    ``cause``: set if the struct at that path has refused one of its fields itself. ``kind``: the
    type that was expected.
    """
    rule, _, at = message.partition(" - at `$")
    path = at.rstrip("`").lstrip(".")
    if path.endswith(_SOME_KEY):
        path = _with_key(path.removesuffix(_SOME_KEY), rule, data)
    if cause is not None:
        path, rule = _join(path, cause.field), cause.reason
    if (found := _UNKNOWN.fullmatch(rule)) is not None:
        param = _join(path, found[1])
        mend = hint(found[1], names(kind, path))
        end = "" if mend.endswith("?") else "."
        return InvalidRequestError(
            f"Unknown parameter: {param}{mend}{end}", param=param, code="unknown_parameter"
        )
    if (found := _MISSING.fullmatch(rule)) is not None:
        param = _join(path, found[1])
        return InvalidRequestError(
            f"Missing required parameter: {param}.",
            param=param,
            code="missing_required_parameter",
        )
    return InvalidRequestError(
        f"Invalid value for {path or f'the {what}'}: {rule[:1].lower()}{rule[1:]}"
        f"{one_of(kind, path)}.",
        param=path or None,
        code="invalid_value",
    )


def _with_key(path: str, rule: str, data: bytes) -> str:
    """The path of the value that broke ``rule`` in the mapping at ``path``. msgspec does not name
    its key; if it cannot be found, the mapping's own path is returned."""
    try:
        found: object = msgspec.json.decode(data)
    # The error may be followed by text that is not JSON.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return path
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    got = _GOT.search(rule)
    if isinstance(found, dict) and got is not None:
        for key, value in found.items():
            if _JSON_TYPES[type(value)] == got[1]:
                return _join(path, key)
    return path


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
