"""The official JSON-Schema-Test-Suite (MIT licence, in the archive): its tests of drafts 2020-12
and 7, as they are in the folder ``json`` of the source distribution of ``jsonschema`` 4.26.0.

https://github.com/json-schema-org/JSON-Schema-Test-Suite
"""

from __future__ import annotations

import itertools
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_ARCHIVE = Path(__file__).with_name("suite.tar.xz")
_SCHEMA_URIS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
DRAFTS = tuple(_SCHEMA_URIS)


@dataclass(frozen=True)
class Instance:
    name: str
    value: Any
    is_valid: bool


@dataclass(frozen=True)
class Group:
    """A schema and documents for it."""

    name: str
    schema: Any
    instances: tuple[Instance, ...]


@cache
def load() -> dict[str, dict[str, list[Group]]]:
    """The groups of each file of each draft. Files are named as in ``optional/format/date.json``;
    every schema says of which draft it is."""
    found: dict[str, dict[str, list[Group]]] = {draft: {} for draft in DRAFTS}
    with tarfile.open(_ARCHIVE) as archive:
        for member in archive:
            if not member.name.startswith("tests/"):
                continue
            _, draft, name = member.name.split("/", 2)
            content = archive.extractfile(member)
            assert content is not None
            groups = json.load(content)
            found[draft][name] = [_group(group, _SCHEMA_URIS[draft]) for group in groups]
    return found


def _group(group: dict[str, Any], uri: str) -> Group:
    schema = group["schema"]
    if isinstance(schema, dict):
        schema = {"$schema": uri, **schema}
    instances = [Instance(t["description"], t["data"], t["valid"]) for t in group["tests"]]
    return Group(group["description"], schema, tuple(instances))


def orders(value: Any) -> Iterator[Any]:
    """The value with the members of its objects in every order."""
    if isinstance(value, list):
        yield from map(list, itertools.product(*map(orders, value)))
    elif isinstance(value, dict):
        for names in itertools.permutations(value):
            for members in itertools.product(*(orders(value[name]) for name in names)):
                yield dict(zip(names, members, strict=True))
    else:
        yield value
