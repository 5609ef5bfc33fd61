"""What older drafts spelled otherwise: tuples (until 2019-09) and exclusive bounds (draft 4); and
keywords that are null, which no draft knows.

Generators of schemas write them all: the AI SDK's, those of OpenAPI 3.0, and those of languages
that leave out no empty fields.
"""

from __future__ import annotations

import re
from typing import Any

from grammar.schema.forms import CONSTRAINTS, IN_LIST, IN_MAP, IN_SCHEMA

OLD_SPELLING = re.compile(
    r'"items"\s*:\s*\[|"exclusive(?:Min|Max)imum"\s*:\s*(?:true|false)|:\s*null'
)
"""Found in the text of every document that ``modern`` would change."""


_NEVER_NULL = (CONSTRAINTS - {"const"}) | IN_MAP | {"description", "examples", "title"}


def modern(schema: Any) -> Any:
    """The same schema in the words of draft 2020-12; what is no schema is left as it is."""
    if not isinstance(schema, dict):
        return schema
    found = {
        keyword: _modern_value(keyword, value)
        for keyword, value in schema.items()
        if value is not None or keyword not in _NEVER_NULL
    }
    if isinstance(found.get("items"), list) and "prefixItems" not in found:
        _respell_tuple(found)
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(found.get(exclusive), bool):
            _respell_bound(found, bound, exclusive)
    return found


def _modern_value(keyword: str, value: Any) -> Any:
    if keyword in IN_SCHEMA or keyword == "additionalItems":
        return [*map(modern, value)] if isinstance(value, list) else modern(value)
    if keyword in IN_LIST and isinstance(value, list):
        return [*map(modern, value)]
    if keyword in IN_MAP and isinstance(value, dict):
        return {name: modern(sub) for name, sub in value.items()}
    return value


def _respell_tuple(schema: dict[str, Any]) -> None:
    if items := schema.pop("items"):
        schema["prefixItems"] = items
    if "additionalItems" in schema:
        schema["items"] = schema.pop("additionalItems")


def _respell_bound(schema: dict[str, Any], bound: str, exclusive: str) -> None:
    is_exclusive = schema.pop(exclusive)
    if is_exclusive and bound in schema:
        schema[exclusive] = schema.pop(bound)
