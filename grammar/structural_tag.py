"""Structural tags: free text in which tagged regions follow a grammar, tool calls above all.

The JSON form is xgrammar's: ``{"type": "structural_tag", "format": {...}}``, or its first form,
``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from grammar.errors import InvalidGrammar
from grammar.schema.document import Schema
from grammar.schema.paths import ROOT, child


@dataclass(frozen=True, slots=True)
class ConstString:
    value: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    schema: Schema
    path: str


@dataclass(frozen=True, slots=True)
class Regex:
    pattern: str


@dataclass(frozen=True, slots=True)
class AnyText:
    """Up to the end of the tag it fills, or of the output."""


@dataclass(frozen=True, slots=True)
class Sequence:
    elements: tuple[Format, ...]


@dataclass(frozen=True, slots=True)
class Or:
    elements: tuple[Format, ...]


@dataclass(frozen=True, slots=True)
class Tag:
    begin: str
    content: Format
    ends: tuple[str, ...]
    """Any one of them."""


@dataclass(frozen=True, slots=True)
class TriggeredTags:
    """Free text; once it contains a trigger, one of the tags that begin with it must follow. With
    ``at_least_one`` a tag comes first, with ``stop_after_first`` nothing follows it."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool
    stop_after_first: bool


@dataclass(frozen=True, slots=True)
class TagsWithSeparator:
    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool
    stop_after_first: bool


Format = (
    ConstString
    | JsonSchema
    | Regex
    | AnyText
    | Sequence
    | Or
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)


def parse(document: Any) -> Format:
    """Raises ``InvalidGrammar`` at what is wrong."""
    if not isinstance(document, dict):
        raise InvalidGrammar(ROOT, "a structural tag is an object")
    if "structures" in document or "triggers" in document:
        return _parse_first_form(_Fields(document, ROOT))
    fields = _Fields(document, ROOT)
    if fields.take("type", str, "structural_tag") != "structural_tag":
        raise InvalidGrammar(f"{ROOT}.type", "the type is 'structural_tag'")
    found = _format(fields.take("format", dict), child(ROOT, "format"), last=True)
    fields.close()
    return found


def schemas(tree: Format) -> Iterator[JsonSchema]:
    """The schemas in it, in order."""
    match tree:
        case JsonSchema():
            yield tree
        case Sequence(children) | Or(children):
            for element in children:
                yield from schemas(element)
        case Tag(_, content, _):
            yield from schemas(content)
        case TriggeredTags() | TagsWithSeparator():
            for tag in tree.tags:
                yield from schemas(tag)


def map_schemas(tree: Format, change: Callable[[JsonSchema], Schema]) -> Format:
    """The same with every schema replaced."""
    match tree:
        case JsonSchema():
            return replace(tree, schema=change(tree))
        case Sequence(elements) | Or(elements):
            return replace(tree, elements=tuple(map_schemas(e, change) for e in elements))
        case Tag(_, content, _):
            return replace(tree, content=map_schemas(content, change))
        case TriggeredTags() | TagsWithSeparator():
            tags = tuple(replace(t, content=map_schemas(t.content, change)) for t in tree.tags)
            return replace(tree, tags=tags)
    return tree


def to_json(tree: Format) -> dict[str, Any]:
    """The document that ``parse`` reads."""
    return {"type": "structural_tag", "format": _to_json(tree)}


def _to_json(tree: Format) -> dict[str, Any]:
    match tree:
        case ConstString(value):
            return {"type": "const_string", "value": value}
        case JsonSchema(schema):
            return {"type": "json_schema", "json_schema": schema}
        case Regex(pattern):
            return {"type": "regex", "pattern": pattern}
        case AnyText():
            return {"type": "any_text"}
        case Sequence(elements):
            return {"type": "sequence", "elements": list(map(_to_json, elements))}
        case Or(elements):
            return {"type": "or", "elements": list(map(_to_json, elements))}
        case Tag(begin, content, ends):
            return {
                "type": "tag",
                "begin": begin,
                "content": _to_json(content),
                "end": ends[0] if len(ends) == 1 else list(ends),
            }
        case TriggeredTags():
            rest: dict[str, Any] = {"type": "triggered_tags", "triggers": list(tree.triggers)}
        case TagsWithSeparator():
            rest = {"type": "tags_with_separator", "separator": tree.separator}
    return rest | {
        "tags": list(map(_to_json, tree.tags)),
        "at_least_one": tree.at_least_one,
        "stop_after_first": tree.stop_after_first,
    }


class _Fields:
    """The members of one object, each taken once and none left over."""

    def __init__(self, members: dict[str, Any], path: str) -> None:
        self._members = dict(members)
        self.path = path

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        value = self._members.pop(name, default)
        if not isinstance(value, kind):
            raise InvalidGrammar(child(self.path, name), f"'{name}' is to be {_NAMES[kind]}")
        return value

    def schema(self, name: str) -> Schema:
        if isinstance(self._members.get(name), bool):
            return bool(self._members.pop(name))
        found: dict[str, Any] = self.take(name, dict)
        return found

    def strings(self, name: str) -> tuple[str, ...]:
        values = self.take(name, list)
        if not values or not all(isinstance(value, str) and value for value in values):
            raise InvalidGrammar(child(self.path, name), f"'{name}' is to be non-empty strings")
        return tuple(values)

    def ends(self) -> tuple[str, ...]:
        if isinstance(self._members.get("end"), str):
            return (self._members.pop("end"),)
        return self.strings("end")

    def close(self) -> None:
        for name in self._members:
            raise InvalidGrammar(child(self.path, name), f"'{name}' is not supported here")


_NAMES = {str: "a string", dict: "an object", list: "an array", bool: "true or false"}


def _parse_first_form(fields: _Fields) -> TriggeredTags:
    fields.take("type", str, "structural_tag")
    triggers = fields.strings("triggers")
    path = child(fields.path, "structures")
    tags = []
    for index, structure in enumerate(fields.take("structures", list)):
        inner = _Fields(_object(structure, child(path, index)), child(path, index))
        schema = JsonSchema(inner.schema("schema"), child(inner.path, "schema"))
        tags.append(Tag(inner.take("begin", str), schema, inner.ends()))
        inner.close()
    fields.close()
    return _triggered(TriggeredTags(triggers, tuple(tags), False, False), path)


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidGrammar(path, "this is to be an object")
    return value


def _format(value: Any, path: str, *, last: bool) -> Format:
    """``last``: whether nothing follows, so that it may run to the end of the output."""
    fields = _Fields(_object(value, path), path)
    kind = fields.take("type", str)
    reader = _READERS.get(kind)
    if reader is None:
        known = ", ".join(_READERS)
        raise InvalidGrammar(child(path, "type"), f"unknown format '{kind}'; known are {known}")
    found = reader(fields, last)
    fields.close()
    return found


def _const_string(fields: _Fields, last: bool) -> Format:
    return ConstString(fields.take("value", str))


def _json_schema(fields: _Fields, last: bool) -> Format:
    return JsonSchema(fields.schema("json_schema"), child(fields.path, "json_schema"))


def _regex(fields: _Fields, last: bool) -> Format:
    return Regex(fields.take("pattern", str))


def _any_text(fields: _Fields, last: bool) -> Format:
    if not last:
        raise InvalidGrammar(fields.path, "any_text must fill a tag, or come last")
    return AnyText()


def _elements(fields: _Fields, last: bool, *, ordered: bool) -> tuple[Format, ...]:
    path = child(fields.path, "elements")
    values = fields.take("elements", list)
    if not values:
        raise InvalidGrammar(path, "'elements' is empty")
    return tuple(
        _format(value, child(path, i), last=last and (not ordered or i == len(values) - 1))
        for i, value in enumerate(values)
    )


def _tag(fields: _Fields, last: bool) -> Tag:
    begin, ends = fields.take("begin", str), fields.ends()
    value = fields.take("content", dict)
    # Free text that fills a tag runs up to its end, which must be something then.
    free = value.get("type") == "any_text" and all(ends)
    content = _format(value, child(fields.path, "content"), last=free)
    return Tag(begin, content, ends)


def _tags(fields: _Fields) -> tuple[Tag, ...]:
    path = child(fields.path, "tags")
    tags = []
    for index, value in enumerate(fields.take("tags", list)):
        tag = _format(value, child(path, index), last=False)
        if not isinstance(tag, Tag):
            raise InvalidGrammar(child(path, index), "this is to be a tag")
        tags.append(tag)
    if not tags:
        raise InvalidGrammar(path, "'tags' is empty")
    return tuple(tags)


def _triggered_tags(fields: _Fields, last: bool) -> Format:
    if not last:
        raise InvalidGrammar(fields.path, "triggered_tags must come last: its text never ends")
    tree = TriggeredTags(
        fields.strings("triggers"),
        _tags(fields),
        fields.take("at_least_one", bool, False),
        fields.take("stop_after_first", bool, False),
    )
    return _triggered(tree, child(fields.path, "tags"))


def _triggered(tree: TriggeredTags, path: str) -> TriggeredTags:
    for index, tag in enumerate(tree.tags):
        if not any(tag.begin.startswith(trigger) for trigger in tree.triggers):
            where = child(child(path, index), "begin")
            raise InvalidGrammar(where, f"'{tag.begin}' begins with none of the triggers")
    for trigger in tree.triggers:
        if not any(tag.begin.startswith(trigger) for tag in tree.tags):
            raise InvalidGrammar(path, f"no tag begins with the trigger '{trigger}'")
    return tree


def _tags_with_separator(fields: _Fields, last: bool) -> Format:
    return TagsWithSeparator(
        _tags(fields),
        fields.take("separator", str),
        fields.take("at_least_one", bool, False),
        fields.take("stop_after_first", bool, False),
    )


_READERS: dict[str, Callable[[_Fields, bool], Format]] = {
    "const_string": _const_string,
    "json_schema": _json_schema,
    "regex": _regex,
    "any_text": _any_text,
    "sequence": lambda fields, last: Sequence(_elements(fields, last, ordered=True)),
    "or": lambda fields, last: Or(_elements(fields, last, ordered=False)),
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "tags_with_separator": _tags_with_separator,
}
