"""Structural tags: free text with tagged regions that follow a grammar, such as tool calls.

The JSON form is xgrammar's: ``{"type": "structural_tag", "format": {...}}``, or its older form,
``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``. Tokens are named by their id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from grammar.errors import GrammarTooLarge, InvalidGrammar
from grammar.schema import drafts
from grammar.schema.document import Schema
from grammar.schema.paths import ROOT, child


@dataclass(frozen=True, slots=True)
class Token:
    """One specific token. A special token can only be named in this way, because it has no text."""

    id: int
    path: str = field(default=ROOT, compare=False)


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
    path: str = field(default=ROOT, compare=False)


@dataclass(frozen=True, slots=True)
class AnyText:
    """Any text, up to the end of its tag or of the output."""

    excludes: tuple[str, ...] = ()
    """Strings that must not stand in it."""


@dataclass(frozen=True, slots=True)
class Sequence:
    elements: tuple[Format, ...]


@dataclass(frozen=True, slots=True)
class Or:
    elements: tuple[Format, ...]


@dataclass(frozen=True, slots=True)
class Tag:
    begin: str | Token
    content: Format
    ends: tuple[str | Token, ...]
    """The possible ends, any one of which ends the tag; a token must be the only one."""

    @property
    def end_texts(self) -> tuple[str, ...]:
        return tuple(end for end in self.ends if isinstance(end, str))


@dataclass(frozen=True, slots=True)
class TriggeredTags:
    """Free text; once it contains a trigger, one of the tags that begin with it must follow. With
    ``at_least_one`` a tag comes first, with ``stop_after_first`` nothing follows it. The triggers
    are all strings or all tokens."""

    triggers: tuple[str | Token, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool
    stop_after_first: bool
    excludes: tuple[str, ...] = ()
    """Strings that must not stand in the free text."""


@dataclass(frozen=True, slots=True)
class TagsWithSeparator:
    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool
    stop_after_first: bool


Format = (
    Token
    | ConstString
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
    """Parse a document. Raises ``InvalidGrammar`` naming the path."""
    if not isinstance(document, dict):
        raise InvalidGrammar(ROOT, "a structural tag is an object")
    try:
        return _parse(document)
    except RecursionError:
        raise GrammarTooLarge(ROOT, "nested too deeply") from None


def _parse(document: dict[str, Any]) -> Format:
    if "structures" in document or "triggers" in document:
        return _parse_first_form(_Fields(document, ROOT))
    fields = _Fields(document, ROOT)
    if fields.take("type", str, "structural_tag") != "structural_tag":
        raise InvalidGrammar(f"{ROOT}.type", "the type is 'structural_tag'")
    found = _format(fields.take("format", dict), child(ROOT, "format"), last=True)
    fields.close()
    return found


def walk(tree: Format) -> Iterator[Format]:
    """The tree and all its parts, in order."""
    yield tree
    match tree:
        case Sequence(children) | Or(children):
            for element in children:
                yield from walk(element)
        case Tag(begin, content, ends):
            yield from (edge for edge in (begin, *ends) if isinstance(edge, Token))
            yield from walk(content)
        case TriggeredTags() | TagsWithSeparator():
            for tag in tree.tags:
                yield from walk(tag)


def schemas(tree: Format) -> Iterator[JsonSchema]:
    return (node for node in walk(tree) if isinstance(node, JsonSchema))


def tokens(tree: Format) -> Iterator[Token]:
    return (node for node in walk(tree) if isinstance(node, Token))


def map_schemas(tree: Format, change: Callable[[JsonSchema], Schema]) -> Format:
    """The same tree with every schema replaced by ``change``."""
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
        case Token(token_id):
            return {"type": "token", "token": token_id}
        case ConstString(value):
            return {"type": "const_string", "value": value}
        case JsonSchema(schema):
            return {"type": "json_schema", "json_schema": schema}
        case Regex(pattern):
            return {"type": "regex", "pattern": pattern}
        case AnyText(excludes):
            return {"type": "any_text"} | _excludes(excludes)
        case Sequence(elements):
            return {"type": "sequence", "elements": list(map(_to_json, elements))}
        case Or(elements):
            return {"type": "or", "elements": list(map(_to_json, elements))}
        case Tag(begin, content, ends):
            return {
                "type": "tag",
                "begin": _edge(begin),
                "content": _to_json(content),
                "end": _edge(ends[0]) if len(ends) == 1 else list(ends),
            }
        case TriggeredTags():
            rest = _triggers_to_json(tree.triggers) | _excludes(tree.excludes)
        case TagsWithSeparator():
            rest = {"type": "tags_with_separator", "separator": tree.separator}
    return rest | {
        "tags": list(map(_to_json, tree.tags)),
        "at_least_one": tree.at_least_one,
        "stop_after_first": tree.stop_after_first,
    }


def _edge(edge: str | Token) -> Any:
    return edge if isinstance(edge, str) else _to_json(edge)


def _excludes(texts: tuple[str, ...]) -> dict[str, Any]:
    return {"excludes": list(texts)} if texts else {}


def _triggers_to_json(triggers: tuple[str | Token, ...]) -> dict[str, Any]:
    texts = [trigger for trigger in triggers if isinstance(trigger, str)]
    if texts:
        return {"type": "triggered_tags", "triggers": texts}
    ids = [trigger.id for trigger in triggers if isinstance(trigger, Token)]
    return {"type": "token_triggered_tags", "trigger_tokens": ids}


class _Fields:
    """The members of one JSON object. Each is taken once; members that are left are an error."""

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
        found: dict[str, Any] = drafts.modern(self.take(name, dict))
        return found

    def strings(self, name: str) -> tuple[str, ...]:
        values = self.take(name, list)
        if not values or not all(isinstance(value, str) and value for value in values):
            raise InvalidGrammar(child(self.path, name), f"'{name}' is to be non-empty strings")
        return tuple(values)

    def begin(self) -> str | Token:
        edge = self._edge("begin")
        return str(self.take("begin", str)) if edge is None else edge

    def ends(self) -> tuple[str | Token, ...]:
        edge = self._edge("end")
        return self.strings("end") if edge is None else (edge,)

    def excludes(self) -> tuple[str, ...]:
        if self._members.get("excludes", []) == []:
            self._members.pop("excludes", None)
            return ()
        return self.strings("excludes")

    def _edge(self, name: str) -> str | Token | None:
        """A text or a token; None for anything else."""
        match self._members.get(name):
            case str(text):
                del self._members[name]
                return text
            case dict(value):
                del self._members[name]
                return _token_at(value, child(self.path, name))
        return None

    def token(self, name: str) -> Token:
        value, path = self._members.pop(name, None), child(self.path, name)
        return Token(_token_id(value, path), path)

    def tokens(self, name: str) -> tuple[Token, ...]:
        values, path = self.take(name, list), child(self.path, name)
        if not values:
            raise InvalidGrammar(path, f"'{name}' is empty")
        paths = [child(path, index) for index in range(len(values))]
        return tuple(
            Token(_token_id(value, at), at) for value, at in zip(values, paths, strict=True)
        )

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


def _token_id(value: Any, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidGrammar(path, f"a token is to be named by its id, got {value!r}")
    return value


def _token_at(value: dict[str, Any], path: str) -> Token:
    fields = _Fields(value, path)
    if fields.take("type", str) != "token":
        raise InvalidGrammar(child(path, "type"), "this is to be a text or a token")
    found = fields.token("token")
    fields.close()
    return found


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidGrammar(path, "this is to be an object")
    return value


def _format(value: Any, path: str, *, last: bool) -> Format:
    """``last``: whether nothing follows, so that text may extend to the end of the output."""
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
    return Regex(fields.take("pattern", str), child(fields.path, "pattern"))


def _any_text(fields: _Fields, last: bool) -> Format:
    if not last:
        raise InvalidGrammar(fields.path, "any_text must fill a tag, or come last")
    return AnyText(fields.excludes())


def _token(fields: _Fields, last: bool) -> Format:
    return fields.token("token")


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
    begin, ends = fields.begin(), fields.ends()
    value = fields.take("content", dict)
    # Free text in a tag ends where the tag's end begins, so that must not be empty.
    free = value.get("type") == "any_text" and all(ends)
    content = _format(value, child(fields.path, "content"), last=free)
    return Tag(begin, content, ends)


def _tags(fields: _Fields) -> tuple[Tag, ...]:
    path = child(fields.path, "tags")
    tags = []
    for index, value in enumerate(fields.take("tags", list)):
        member = _object(value, child(path, index))
        tag = _format({"type": "tag"} | member, child(path, index), last=False)
        if not isinstance(tag, Tag):
            raise InvalidGrammar(child(path, index), "this is to be a tag")
        tags.append(tag)
    if not tags:
        raise InvalidGrammar(path, "'tags' is empty")
    return tuple(tags)


def _triggered_tags(fields: _Fields, last: bool, *, by_token: bool) -> Format:
    if not last:
        raise InvalidGrammar(fields.path, "triggered tags must come last: their text never ends")
    tree = TriggeredTags(
        fields.tokens("trigger_tokens") if by_token else fields.strings("triggers"),
        _tags(fields),
        fields.take("at_least_one", bool, False),
        fields.take("stop_after_first", bool, False),
        fields.excludes(),
    )
    return _triggered(tree, child(fields.path, "tags"))


def _triggered(tree: TriggeredTags, path: str) -> TriggeredTags:
    for index, tag in enumerate(tree.tags):
        if not any(_begins(tag, trigger) for trigger in tree.triggers):
            where = child(child(path, index), "begin")
            raise InvalidGrammar(where, f"{_shown(tag.begin)} begins with none of the triggers")
    for trigger in tree.triggers:
        if not any(_begins(tag, trigger) for tag in tree.tags):
            raise InvalidGrammar(path, f"no tag begins with the trigger {_shown(trigger)}")
    return tree


def _begins(tag: Tag, trigger: str | Token) -> bool:
    if isinstance(trigger, str) and isinstance(tag.begin, str):
        return tag.begin.startswith(trigger)
    return tag.begin == trigger


def _shown(edge: str | Token) -> str:
    return f"'{edge}'" if isinstance(edge, str) else f"the token {edge.id}"


def _tags_with_separator(fields: _Fields, last: bool) -> Format:
    return TagsWithSeparator(
        _tags(fields),
        fields.take("separator", str),
        fields.take("at_least_one", bool, False),
        fields.take("stop_after_first", bool, False),
    )


_READERS: dict[str, Callable[[_Fields, bool], Format]] = {
    "token": _token,
    "const_string": _const_string,
    "json_schema": _json_schema,
    "regex": _regex,
    "any_text": _any_text,
    "sequence": lambda fields, last: Sequence(_elements(fields, last, ordered=True)),
    "or": lambda fields, last: Or(_elements(fields, last, ordered=False)),
    "tag": _tag,
    "triggered_tags": lambda fields, last: _triggered_tags(fields, last, by_token=False),
    "token_triggered_tags": lambda fields, last: _triggered_tags(fields, last, by_token=True),
    "tags_with_separator": _tags_with_separator,
}
