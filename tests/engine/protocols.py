"""What engines and gateways of each version of the protocol say to each other.

    python -m tests.engine.protocols    # records the present one

``wire/N.json`` has the fields of each record of version N. Two are kept: the present one and the
last.
``Words`` has a process say and understand no more than one version: the real code, but for what
came since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from engine import messages
from engine.messages import PROTOCOL, ClientMessage, EngineMessage

FOLDER = Path(__file__).parent / "wire"

Fields = dict[str, list[str]]
"""By the name of a record: its fields, in order."""


def structs() -> list[type[msgspec.Struct]]:
    """All records, those inside of others included."""
    found: dict[type[msgspec.Struct], None] = {}

    def look(kind: Any) -> None:
        is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        if is_struct and kind not in found:
            found[kind] = None
            for inner in get_type_hints(kind).values():
                look(inner)
        for inner in get_args(kind):
            look(inner)

    look(ClientMessage)
    look(EngineMessage)
    return list(found)


def recorded(version: int) -> Fields:
    found: Fields = json.loads((FOLDER / f"{version}.json").read_text())
    return found


def present() -> Fields:
    return {kind.__name__: list(kind.__struct_fields__) for kind in structs()}


def reduced(value: Any, fields: Fields) -> Any:
    """A record as the wire has it, with no more than these fields."""
    if isinstance(value, msgspec.Struct):
        kind = type(value)
        names = [name for name in fields[kind.__name__] if name in kind.__struct_fields__]
        found = {name: reduced(getattr(value, name), fields) for name in names}
        config = kind.__struct_config__
        if config.array_like:
            return list(found.values())
        tag = {} if config.tag is None else {config.tag_field: config.tag}
        return {**tag, **found}
    if isinstance(value, list | tuple):
        return [reduced(one, fields) for one in value]
    return value


class Words:
    """What ``engine.messages`` exports, for those who speak another version."""

    def __init__(self, version: int) -> None:
        self._fields = recorded(version)

    def encode(self, message: ClientMessage | EngineMessage) -> bytes:
        return msgspec.msgpack.encode(reduced(message, self._fields))

    def decode_client_message(self, data: bytes) -> ClientMessage:
        said = messages.decode_client_message(data)
        return messages.decode_client_message(self.encode(said))

    def decode_engine_message(self, data: bytes) -> EngineMessage:
        said = messages.decode_engine_message(data)
        return messages.decode_engine_message(self.encode(said))

    def exports(self) -> Iterator[tuple[str, Any]]:
        for name in ("encode", "decode_client_message", "decode_engine_message"):
            yield name, getattr(self, name)


if __name__ == "__main__":
    (FOLDER / f"{PROTOCOL}.json").write_text(json.dumps(present(), indent=1) + "\n")
