"""What a caller asks for: a kind of grammar and its source, checked for form and size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from grammar.errors import GrammarTooLarge, InvalidGrammar

Kind = Literal["json_schema", "json_object", "regex", "choice", "ebnf", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest grammar anyone may ask for. Names as in OpenAI's structured outputs limits."""

    max_source_bytes: int = 256 * 1024
    max_depth: int = 64
    """Nesting of the JSON source."""
    max_properties: int = 5_000
    max_enum_values: int = 1_000
    """In one enum, or choices in all."""
    max_repetition: int = 100_000
    """Of any length or count bound in a schema."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One grammar.

    ``source`` by kind: ``json_schema`` a draft 2020-12 schema as JSON text · ``json_object`` empty
    · ``regex`` an expression the whole output matches · ``choice`` a JSON array of strings ·
    ``ebnf`` Lark or GBNF text · ``structural_tag`` a JSON object.
    """

    kind: Kind
    source: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidGrammar("$", f"unknown kind of grammar {self.kind!r}")

    @classmethod
    def from_schema(cls, schema: dict[str, Any] | bool) -> GrammarSpec:
        return cls("json_schema", json.dumps(schema, ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def from_choices(cls, choices: list[str]) -> GrammarSpec:
        return cls("choice", json.dumps(choices, ensure_ascii=False))

    def validate(self, limits: Limits = Limits()) -> None:
        """Raises ``InvalidGrammar`` (``GrammarTooLarge`` over a limit), naming the path."""
        size = len(self.source.encode("utf-8", "surrogatepass"))
        if size > limits.max_source_bytes:
            raise GrammarTooLarge("$", f"{size} bytes, over the limit of {limits.max_source_bytes}")
        match self.kind:
            case "json_schema":
                _check_schema(self.document(), limits)
            case "choice":
                _check_choices(self.document(), limits)
            case "ebnf" if not self.source.strip():
                raise InvalidGrammar("$", "the grammar is empty")
            case "json_object" if self.source.strip():
                raise InvalidGrammar("$", "json_object takes no source")

    def document(self) -> Any:
        """The parsed source of a JSON kind. Raises ``InvalidGrammar``."""
        try:
            return json.loads(self.source, parse_constant=_no_constant)
        except RecursionError:
            raise GrammarTooLarge("$", "nested too deeply") from None
        except ValueError as error:
            raise InvalidGrammar("$", f"not valid JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_choices(choices: Any, limits: Limits) -> None:
    if not isinstance(choices, list) or not choices:
        raise InvalidGrammar("$", "choice takes a non-empty array of strings")
    if len(choices) > limits.max_enum_values:
        raise GrammarTooLarge("$", f"{len(choices)} choices, over {limits.max_enum_values}")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise InvalidGrammar(f"$[{index}]", f"a choice is a string, got {choice!r}")


def _check_schema(schema: Any, limits: Limits) -> None:
    if not isinstance(schema, dict | bool):
        raise InvalidGrammar("$", f"a schema is an object or a boolean, got {schema!r}")
    if schema is False:
        raise InvalidGrammar("$", "the schema false accepts nothing")
    _check_size(schema, limits)


def _check_size(schema: Any, limits: Limits) -> None:
    properties = 0
    stack: list[tuple[Any, str, int]] = [(schema, "$", 0)]
    while stack:
        node, path, depth = stack.pop()
        if depth > limits.max_depth:
            raise GrammarTooLarge(path, f"nested deeper than {limits.max_depth}")
        if isinstance(node, list):
            stack += ((item, f"{path}[{i}]", depth + 1) for i, item in enumerate(node))
        if not isinstance(node, dict):
            continue
        if isinstance(node.get("properties"), dict):
            properties += len(node["properties"])
        if properties > limits.max_properties:
            raise GrammarTooLarge(path, f"more than {limits.max_properties} properties in all")
        if isinstance(node.get("enum"), list) and len(node["enum"]) > limits.max_enum_values:
            raise GrammarTooLarge(f"{path}.enum", f"more than {limits.max_enum_values} values")
        stack += ((child, f"{path}.{key}", depth + 1) for key, child in node.items())
