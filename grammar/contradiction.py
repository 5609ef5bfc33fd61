"""Finds the contradiction in a schema that nothing satisfies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from grammar.errors import Unsatisfiable
from grammar.schema.document import Schema
from grammar.schema.paths import ROOT, child

_MAX_TRIALS = 100


def locate(
    root: dict[str, Any], found: Unsatisfiable, compile_: Callable[[Schema], object]
) -> Unsatisfiable:
    """The error of the innermost required part of ``root`` that no value satisfies. If each part
    can be satisfied alone, it is ``found``, the error of ``root`` itself.

    ``compile_``: raises ``Unsatisfiable`` for a schema that no value satisfies. It is called at
    most a hundred times.
    """
    definitions = {"$defs": root["$defs"]} if "$defs" in root else {}
    trials = iter(range(_MAX_TRIALS))
    node: Schema = root
    place = ROOT
    while isinstance(node, dict):
        for part, where in _needed(node, place):
            if next(trials, None) is None:
                return found
            try:
                compile_(part | definitions if isinstance(part, dict) else part)
            except Unsatisfiable as error:
                found = Unsatisfiable(where, error.message)
                node, place = part, where
                break
        else:
            break
    return found


def _needed(node: dict[str, Any], path: str) -> Iterator[tuple[Schema, str]]:
    """The parts of ``node`` that must be satisfied for ``node`` to be satisfied."""
    properties = node.get("properties", {})
    for name in node.get("required", ()):
        if name in properties:
            yield properties[name], child(child(path, "properties"), name)
    least = node.get("minItems", 0)
    prefix = node.get("prefixItems", [])
    for index, part in enumerate(prefix[:least]):
        yield part, child(child(path, "prefixItems"), index)
    if least > len(prefix) and "items" in node:
        yield node["items"], child(path, "items")
    for index, part in enumerate(node.get("allOf", ())):
        yield part, child(child(path, "allOf"), index)
