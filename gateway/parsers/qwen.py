"""Calls of Qwen3-Coder, with one tag for each argument.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

A value is text if the function's schema says that it is a string. Otherwise it is JSON, or text if
it is not valid JSON.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from gateway.parsers.base import (
    CallName,
    MarkedParser,
    Schemas,
    ToolFormat,
    encodable,
)
from gateway.parsers.blocks import BlockRegion
from grammar.errors import UnsupportedKeyword
from grammar.schema.document import Schema
from grammar.schema.paths import ROOT, child
from grammar.structural_tag import (
    AnyText,
    ConstString,
    Format,
    JsonSchema,
    Or,
    Sequence,
    Tag,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"


class _Call(BlockRegion):
    def __init__(self, schemas: Schemas) -> None:
        super().__init__()
        self._schemas = schemas
        self._types: dict[str, Any] = {}
        self._key = ""
        self._begun = ""  # a JSON value so far, in which the closing tag is data
        self._comma = ""

    def _begin(self) -> bool:
        if (found := self._before(_FUNCTION, CLOSE)) is None:
            return False
        if found[1] == CLOSE:
            self.closed = True
        else:
            self._read = self._function
        return True

    def _function(self) -> bool:
        if (found := self._before(">")) is None:
            return False
        if not (name := found[0].strip()):
            self._read = self._begin
            return True
        properties = self._schemas.get(name, {}).get("properties", {})
        self._types = properties if isinstance(properties, dict) else {}
        self._comma = ""
        self._found += [CallName(name), "{"]
        self._read = self._between
        return True

    def _between(self) -> bool:
        if (found := self._before(_PARAMETER, _END_FUNCTION, CLOSE)) is None:
            return False
        if found[1] == _PARAMETER:
            self._read = self._parameter
        else:
            self._found.append("}")
            self._read = self._begin
            self.closed = found[1] == CLOSE  # ``_END_FUNCTION`` may be missing.
        return True

    def _parameter(self) -> bool:
        if (found := self._before(">")) is None:
            return False
        self._key = found[0].strip()
        self._read = self._value
        return True

    def _value(self) -> bool:
        if (found := self._before(_END_PARAMETER)) is None:
            return False
        if self._is_json() and _is_open(self._begun + found[0]):
            self._begun += found[0] + _END_PARAMETER  # inside of a JSON string
            return True
        text = (self._begun + found[0]).removeprefix("\n").removesuffix("\n")
        self._begun = ""
        key, value = json.dumps(self._key, ensure_ascii=False), self._json(text)
        self._found.append(f"{self._comma}{key}: {value}")
        self._comma = ", "
        self._read = self._between
        return True

    def _is_json(self) -> bool:
        """Whether the schema says that the value is JSON."""
        return self._key in self._types and not _is_text(self._types[self._key])

    def _json(self, text: str) -> str:
        if not _is_text(self._types.get(self._key)):
            try:
                value = json.loads(text)
                return encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
            except (ValueError, RecursionError):
                pass
        return json.dumps(text, ensure_ascii=False)


def _is_text(schema: object) -> bool:
    """Whether values of this schema are written as plain text, and not as JSON."""
    return isinstance(schema, dict) and schema.get("type") == "string"


def _is_open(text: str) -> bool:
    """Whether ``text`` is the beginning of a JSON value, and ends within a string."""
    if text.lstrip()[:1] not in ("[", "{", '"'):
        return False
    return len(re.sub(r"\\.", "", text).split('"')) % 2 == 0


def spell(schema: Schema) -> Format:
    """The format of arguments: one tag for each property, in the schema's order."""
    assert isinstance(schema, dict)
    properties: dict[str, Any] = schema["properties"]
    if not properties:
        return ConstString("")
    definitions: dict[str, Any] = {
        name: schema[name] for name in ("$defs", "definitions") if name in schema
    }
    _check_references(definitions, ROOT)
    return Sequence(tuple(_tag(key, sub, definitions) for key, sub in properties.items()))


def _tag(key: str, schema: dict[str, Any], definitions: dict[str, Any]) -> Tag:
    path = child(child(ROOT, "properties"), key)
    if ">" in key or key != key.strip():
        raise UnsupportedKeyword("properties", path, "no tag of this model can have this name")
    if _is_text(schema):
        content = _text(schema, path)
    else:
        _check_references(schema, path)
        content = JsonSchema({**definitions, **schema}, ROOT)
    return Tag(f"{_PARAMETER}{key}>\n", content, (f"\n{_END_PARAMETER}\n",))


def _text(schema: dict[str, Any], path: str) -> Format:
    for keyword in ("pattern", "format"):
        if keyword in schema:
            reason = "this model writes texts outside of JSON, which can be held to no pattern"
            raise UnsupportedKeyword(keyword, child(path, keyword), reason)
    if "enum" not in schema and "const" not in schema:
        return AnyText(excludes=(_END_PARAMETER,))
    values = schema.get("enum", [schema.get("const")])
    texts = [v for v in values if isinstance(v, str) and v == schema.get("const", v)]
    if not texts or not all(map(_is_plain, texts)):
        keyword = "enum" if "enum" in schema else "const"
        reason = "a tag of this model cannot hold one of the values"
        raise UnsupportedKeyword(keyword, child(path, keyword), reason)
    return Or(tuple(map(ConstString, texts)))


def _is_plain(value: str) -> bool:
    """Whether the parser reads the value back unchanged."""
    return _END_PARAMETER not in value and not value.startswith("\n") and not value.endswith("\n")


def _check_references(schema: Any, path: str) -> None:
    """Raise ``UnsupportedKeyword`` for references other than to definitions: each property has a
    grammar of its own, which contains nothing else of the schema."""
    match schema:
        case {"$ref": str(target)} if not target.startswith(("#/$defs/", "#/definitions/")):
            reason = "arguments of this model can refer to definitions only"
            raise UnsupportedKeyword("$ref", child(path, "$ref"), reason)
        case dict():
            for name, sub in schema.items():
                _check_references(sub, child(path, name))
        case list():
            for index, sub in enumerate(schema):
                _check_references(sub, child(path, index))


QWEN = ToolFormat(
    name="qwen",
    signs=(_FUNCTION,),
    make_parser=lambda schemas: MarkedParser(OPEN, partial(_Call, schemas)),
    marks=(OPEN, CLOSE),
    mark=OPEN,
    begin=f"{OPEN}\n{_FUNCTION}%s>\n",
    end=f"{_END_FUNCTION}\n{CLOSE}",
    separator="\n",
    spell=spell,
    has_json_arguments=False,
)
