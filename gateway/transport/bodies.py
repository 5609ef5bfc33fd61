"""Decodes a message into a checked struct, or raises an error that names the field."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from engine.field_hints import Fault, hint, join, names, one_of, value_at
from gateway.errors import ApiError, InvalidRequestError
from tenants.errors import InvalidValue

T = TypeVar("T")

MAX_SECOND_LOOK = 32_768
"""The longest text that is decoded once more to describe its fault better."""
_SOME_KEY = "[...]"
"""What msgspec writes in a path for the key of a mapping's value."""
_JSON_TYPES: dict[type, str] = {
    **{str: "str", int: "int", float: "float", bool: "bool", type(None): "null"},
    **{list: "array", dict: "object"},
}


def decode(decoder: msgspec.json.Decoder[T], data: bytes, *, what: str = "body") -> T:
    """Decode JSON. Raises ``InvalidRequestError``, whose ``param`` is the path of the field at
    fault.

    ``what``: the word for ``data`` in errors that concern all of it.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as exc:
        raise _invalid(exc, what, data, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequestError(
            f"The {what} is not valid JSON: {exc}", code="invalid_json"
        ) from None
    except RecursionError:
        raise InvalidRequestError(
            f"The {what} is nested too deeply.", code="invalid_json"
        ) from None


def _invalid(exc: msgspec.ValidationError, what: str, data: bytes, kind: Any) -> ApiError:
    """Translate an error of msgspec's. ``kind``: the type that was expected."""
    fault = Fault.of(exc)
    path, rule = fault.path, fault.rule
    # A large body is not decoded again, which would take the event loop milliseconds: then the
    # error names the place only.
    document = _decoded(data) if len(data) <= MAX_SECOND_LOOK else None
    if path.endswith(_SOME_KEY):
        path = _with_key(path.removesuffix(_SOME_KEY), rule, document)
    if isinstance(exc.__cause__, InvalidValue):  # The struct at that path refused a field itself.
        path, rule = join(path, exc.__cause__.field), exc.__cause__.reason
    elif fault.unknown is not None:
        param = join(path, fault.unknown)
        known = names(kind, path, value_at(document, path))
        # A name that another kind of object has, which is all that a large body tells of it.
        mend = "" if fault.unknown in known else hint(fault.unknown, known)
        end = "" if mend.endswith("?") else "."
        return InvalidRequestError(
            f"Unknown parameter: {param}{mend}{end}", param=param, code="unknown_parameter"
        )
    elif fault.missing is not None:
        param = join(path, fault.missing)
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


def _decoded(data: bytes) -> object:
    """The text without a schema; None if its fault is followed by what is not JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _with_key(path: str, rule: str, document: object) -> str:
    """The path of the value that broke ``rule`` in the mapping at ``path``. msgspec does not name
    its key; if it cannot be found, the mapping's own path is returned."""
    found, got = value_at(document, path), rule.rpartition("got `")[2].rstrip("`")
    if isinstance(found, dict):
        for key, value in found.items():
            if _JSON_TYPES[type(value)] == got:
                return join(path, key)
    return path
