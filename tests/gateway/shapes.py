"""Bodies of any size and shape, made from the structs that requests are decoded into: a new field
or a new route has some without anybody writing them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from gateway.routes.table import OPERATIONS
from gateway.schemas.operation import Operation
from tests.gateway.serving import MODEL

WITH_BODY = [
    operation
    for operation in OPERATIONS
    if operation.body is not None
    and operation.method == "POST"
    and operation.path.startswith("/v1/")
]
MAX_DEPTH = 5

_HOLE, _NAME = "\0hole", "\0name"

VALUES: Mapping[str, Callable[[int], str]] = {
    "text": lambda size: '"' + "a" * size + '"',
    "escapes": lambda size: '"' + "\\n" * (size // 2) + '"',
    "characters": lambda size: '"' + "😀" * (size // 4) + '"',
    "surrogates": lambda size: '"' + "\\ud800" * (size // 6) + '"',
    "blanks": lambda size: '"' + " " * size + '"',
    "digits": lambda size: "9" * size,
    "name": lambda size: '{"' + "a" * size + '":1}',
    "depth": lambda size: '{"a":' * min(size // 6, 900) + "1" + "}" * min(size // 6, 900),
    "brackets": lambda size: "[" * min(size // 2, 16_000) + "]" * min(size // 2, 16_000),
    "names": lambda size: "{" + ",".join(f'"k{i}":1' for i in range(min(size // 10, 80_000))) + "}",
    "texts": lambda size: "[" + ",".join(['"' + "a" * 40 + '"'] * min(size // 43, 80_000)) + "]",
    "numbers": lambda size: "[" + ",".join(["1"] * min(size // 2, 520_000)) + "]",
    "objects": lambda size: "[" + ",".join(['{"type":"object"}'] * min(size // 18, 16_000)) + "]",
}
"""Large values, as JSON, within what ``transport.body_shape`` lets through."""

NAMES: Mapping[str, Callable[[int], str]] = {
    "letters": lambda size: "a" * size,
    "parentheses": lambda size: "(" * size,
    "dots": lambda size: "a." * (size // 2),
    "brackets": lambda size: "[]" * (size // 2),
    "escapes": lambda size: "\\n" * (size // 2),
    "characters": lambda size: "😀" * (size // 4),
}
"""Names of fields that there are not."""


class Body(NamedTuple):
    """What is large stands last in the name."""

    operation: Operation
    name: str
    text: bytes


def bodies(
    operation: Operation, size: int, *, values: Collection[str] = VALUES.keys()
) -> Iterator[Body]:
    """One of about so many bytes for each place in a request's body and each of the ``values``
    there; for each kind of object one of each of ``NAMES``; and long lists. Few are valid."""
    info = inspect.type_info(operation.body)
    for path, document in _holes(info, 0):
        if not isinstance(document, dict):
            continue
        if "model" in document and document["model"] == "a":
            document = document | {"model": MODEL}
        text = msgspec.json.encode(document).decode()
        hole, name = (msgspec.json.encode(mark).decode() for mark in (_HOLE, _NAME))
        if name in text:
            for kind, make in NAMES.items():
                yield Body(
                    operation, f"{path}: {kind}", text.replace(name, f'"{make(size)}"').encode()
                )
        elif hole in text:
            for kind in values:
                value = VALUES[kind](size)
                yield Body(operation, f"{path}: {kind}", text.replace(hole, value).encode())
        else:
            yield Body(operation, path, text.encode())


def minimal(struct: inspect.Type) -> Any:
    """A small value of the type, with what is required."""
    kind = next((each for each in _kinds(struct) if not isinstance(each, inspect.NoneType)), struct)
    match kind:
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            required = {each.encode_name: minimal(each.type) for each in fields if each.required}
            return required if tag_field is None else {tag_field: tag, **required}
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.CollectionType(item_type=item_type):
            return [minimal(item_type)]
        case inspect.DictType(value_type=value_type):
            return {"1": minimal(value_type)}
        case inspect.AnyType() | inspect.RawType():
            return {"type": "object"}
        case inspect.NoneType():
            return None
        case _:
            return "a"


def _holes(info: inspect.Type, depth: int) -> Iterator[tuple[str, Any]]:
    """Values of the type with a mark at one place, and the path of that place."""
    yield "", _HOLE
    if depth > MAX_DEPTH:
        return
    for kind in _kinds(info):
        match kind:
            case inspect.StructType(fields=fields, tag=tag):
                plain, begin = minimal(kind), "." if tag is None else f".<{tag}>"
                for each in fields:
                    for path, value in _holes(each.type, depth + 1):
                        yield begin + each.encode_name + path, {**plain, each.encode_name: value}
                yield f"{begin}?", {**plain, _NAME: 1}
            case inspect.CollectionType(item_type=item_type):
                for path, value in _holes(item_type, depth + 1):
                    yield f"[0]{path}", [value]
                yield "[many]", [minimal(item_type)] * 2_000
            case inspect.DictType(value_type=value_type):
                for path, value in _holes(value_type, depth + 1):
                    yield f"[...]{path}", {"1": value}


def _kinds(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.UnionType):
        for each in info.types:
            yield from _kinds(each)
    elif isinstance(info, inspect.Metadata):
        yield from _kinds(info.type)
    else:
        yield info
