"""Translates schemas of older drafts into 2020-12.

That concerns tuples (until 2019-09), dependencies and names of places (until draft 7), exclusive
bounds and ``id`` (draft 4), and keywords that are null, which no draft allows. Generators of
schemas write all of these: the AI SDK's, those of OpenAPI 3.0, and those of languages that write
empty fields. References that are dynamic and lead to one place only become plain ones.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from grammar.schema.forms import CONSTRAINTS, IN_LIST, IN_MAP, IN_SCHEMA, REFERRED
from grammar.schema.paths import ROOT, child

OLD_SPELLING = re.compile(
    r'"items"\s*:\s*\[|"exclusive(?:Min|Max)imum"\s*:\s*(?:true|false)|:\s*null'
    r'|"dependencies"\s*:|"\$id"\s*:\s*"#|"\$schema"\s*:\s*"[^"]*draft-0[34]'
    r'|"\$(?:dynamic|recursive)Ref"\s*:'
)
"""One of these occurs in the text of every document that ``modern`` would change."""


_NAME = re.compile(r"#[A-Za-z_][-A-Za-z0-9._]*")
_MAPS = IN_MAP | {"dependencies"}
_NEVER_NULL = (CONSTRAINTS - {"const"}) | _MAPS | {"description", "examples", "title"}
_MOVED = {"items": "prefixItems", "additionalItems": "items"}
"""Keywords of a tuple, and their names in draft 2020-12."""


def modern(schema: Any) -> Any:
    """The schema in draft 2020-12; anything that is not a schema is returned unchanged."""
    return _modern(schema, schema)


def _modern(schema: Any, root: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    found = {
        keyword: _modern_value(keyword, value, root)
        for keyword, value in schema.items()
        if value is not None or keyword not in _NEVER_NULL
    }
    if _has_tuple(found):
        _respell_tuple(found)
    if isinstance(found.get("dependencies"), dict):
        _respell_dependencies(found)
    if "$id" not in found and isinstance(found.get("id"), str) and _has_plain_id(root):
        found["$id"] = found.pop("id")
    if _NAME.fullmatch(str(found.get("$id"))) is not None and "$anchor" not in found:
        found["$anchor"] = found.pop("$id")[1:]
    for keyword in ("$dynamicRef", "$recursiveRef"):
        if keyword in found and _is_plain_reference(found[keyword], root):
            _respell_reference(found, keyword)
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(found.get(exclusive), bool):
            _respell_bound(found, bound, exclusive)
    return found


ELSEWHERE = re.compile(r'"\$ref"\s*:\s*"#/(?!(?:\$defs|definitions)/[^/"]+")')
"""One of these occurs in the text of every document that ``adopt`` would change."""


def adopt(root: Any) -> Any:
    """The document, which lists the schemas that references lead to in what is no keyword of the
    standard (``REFERRED``)."""
    if not isinstance(root, dict):
        return root
    found: dict[str, Any] = {}
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += node
        if not isinstance(node, dict):
            continue
        stack += node.values()
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            _adopt(root, reference.split("/")[1:], found)
    return root | {REFERRED: found} if found else root


def _adopt(root: dict[str, Any], steps: list[str], found: dict[str, Any]) -> None:
    """Add the schema to which the steps of a pointer lead to ``found``, unless it is in a keyword
    of the standard. Older words in it are replaced in place."""
    node: Any = root
    parent: Any = None
    path = ROOT
    inside = "schema"
    key: str | int = ""
    for step in steps:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if inside == "schema":
            inside = "schema" if name in IN_SCHEMA else "values" if name in IN_LIST | IN_MAP else ""
        elif inside == "values":
            inside = "schema"
        key = int(name) if isinstance(node, list) and name.isdecimal() else name
        parent, node = node, _member(node, name)
        path = child(path, key)
    if not inside and isinstance(node, dict) and path not in found:
        parent[key] = found[path] = _modern(node, root)


def _has_plain_id(root: Any) -> bool:
    """Whether the document says that it is of a draft in which ``$id`` was ``id``."""
    draft = root.get("$schema") if isinstance(root, dict) else None
    return isinstance(draft, str) and re.search("draft-0[34]", draft) is not None


def _modern_value(keyword: str, value: Any, root: Any) -> Any:
    if keyword in IN_SCHEMA or keyword == "additionalItems":
        return (
            [_modern(sub, root) for sub in value]
            if isinstance(value, list)
            else _modern(value, root)
        )
    if keyword in IN_LIST and isinstance(value, list):
        return [_modern(sub, root) for sub in value]
    if keyword in _MAPS and isinstance(value, dict):
        return {name: _modern(sub, root) for name, sub in value.items()}
    if keyword == "$ref" and isinstance(value, str):
        return _modern_reference(value, root)
    return value


def _modern_reference(reference: str, root: Any) -> str:
    """A pointer to the same schema, which may be in a tuple or in dependencies."""
    start, *steps = reference.split("/")
    if start != "#":
        return reference
    node, moved, is_named = root, [start], False
    for step in steps:
        names = _MOVED if _has_tuple(node) else {}
        if not is_named:  # as a member of properties might be
            names = names | {"dependencies": "dependentSchemas"}
        moved.append(names.get(step, step))
        is_named = step in _MAPS and not is_named
        node = _member(node, unquote(step).replace("~1", "/").replace("~0", "~"))
    return "/".join(moved)


def _member(node: Any, key: str) -> Any:
    if isinstance(node, dict):
        return node.get(key)
    is_item = isinstance(node, list) and key.isdecimal() and int(key) < len(node)
    return node[int(key)] if is_item else None


def _has_tuple(node: Any) -> bool:
    is_schema = isinstance(node, dict) and "prefixItems" not in node
    return is_schema and isinstance(node.get("items"), list)


def _respell_tuple(schema: dict[str, Any]) -> None:
    if items := schema.pop("items"):
        schema["prefixItems"] = items
    if "additionalItems" in schema:
        schema["items"] = schema.pop("additionalItems")


def _respell_dependencies(schema: dict[str, Any]) -> None:
    """Those on names and those on schemas have a keyword each, in which they may stand already."""
    for name, needs in schema.pop("dependencies").items():
        keyword = "dependentRequired" if isinstance(needs, list) else "dependentSchemas"
        present, parts = schema.get(keyword, {}), schema.get("allOf", [])
        if isinstance(present, dict) and name not in present:
            schema[keyword] = present | {name: needs}
        elif isinstance(parts, list):
            schema["allOf"] = [*parts, {keyword: {name: needs}}]


def _is_plain_reference(reference: Any, root: Any) -> bool:
    """Whether a dynamic reference leads to one place only, wherever it is followed from: the
    document is one resource, and its anchor is there once at most."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    anchors, stack = 0, [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if node is not root and ("$id" in node or "$recursiveAnchor" in node):
                return False
            anchors += node.get("$dynamicAnchor") == reference[1:]
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    return anchors < 2


def _respell_reference(schema: dict[str, Any], keyword: str) -> None:
    reference = schema.pop(keyword)
    if "$ref" not in schema:
        schema["$ref"] = reference
    elif isinstance(schema.get("allOf", []), list):
        schema["allOf"] = [*schema.get("allOf", []), {"$ref": reference}]


def _respell_bound(schema: dict[str, Any], bound: str, exclusive: str) -> None:
    if schema[exclusive] and bound not in schema:
        return  # It says nothing of what it excludes, and is refused.
    if schema.pop(exclusive):
        schema[exclusive] = schema.pop(bound)
