"""A grammar as a caller asks for it: its kind and its source, checked for form and size."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from grammar import ebnf, structural_tag
from grammar.errors import GrammarTooLarge, InvalidGrammar
from grammar.regex_size import expanded_size
from grammar.schema import drafts, forms

Kind = Literal["json_schema", "json_object", "regex", "choice", "ebnf", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the size of a grammar."""

    max_source_bytes: int = 256 * 1024
    max_depth: int = 64
    """Nesting of subschemas."""
    max_properties: int = 5_000
    """Properties of a whole schema."""
    max_optional: int = 500
    """Optional properties of one object. Each could come next at every step; this many take 5 ms
    for a mask, and all others in the batch must wait for it."""
    max_enum_values: int = 5_000
    """Values of one enum, or choices in total."""
    max_regex_size: int = 5_000
    """Items of a regex with its counted repetitions written out."""
    max_choice_chars: int = 10_000
    """Characters of one choice."""
    max_count: int = 65_536
    """The largest length or number of items that a schema may name."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One grammar.

    ``source`` by kind: ``json_schema`` a schema as JSON text, in the words of draft 2020-12 or in
    older ones (``grammar.schema.drafts``) · ``json_object`` empty · ``regex`` an expression that
    the whole output matches · ``choice`` a JSON array of strings · ``ebnf`` Lark or GBNF text ·
    ``structural_tag`` a JSON object, see ``grammar.structural_tag``.

    ``strict`` is about schemas: a keyword that no backend enforces exactly is refused, instead of
    left to ``grammar.validation`` at the end. ``any_whitespace`` too: without it documents have no
    blanks but those inside of strings.
    """

    kind: Kind
    source: str = ""
    strict: bool = True
    any_whitespace: bool = True

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidGrammar("$", f"unknown kind of grammar {self.kind!r}")
        if not self.any_whitespace and self.kind in ("regex", "choice", "ebnf"):
            raise InvalidGrammar("$", "blanks can be left out of JSON only")
        if (place := _lone_surrogate(self.source)) is not None:
            raise InvalidGrammar("$", f"half of a surrogate pair at {place} is no character")

    @classmethod
    def from_schema(cls, schema: dict[str, Any] | bool, *, strict: bool = True) -> GrammarSpec:
        source = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        return cls("json_schema", source, strict)

    @classmethod
    def from_choices(cls, choices: list[str]) -> GrammarSpec:
        return cls("choice", json.dumps(choices, ensure_ascii=False))

    def validate(self, limits: Limits | None = None) -> None:
        """Check form and size, but not whether a backend can enforce it.

        Raises ``InvalidGrammar`` (``GrammarTooLarge`` over a limit), naming the path.
        """
        limits = limits or Limits()
        size = len(self.source.encode())
        if size > limits.max_source_bytes:
            raise GrammarTooLarge("$", f"{size} bytes, over the limit of {limits.max_source_bytes}")
        match self.kind:
            case "json_schema":
                _check_schema(self.document(), limits)
            case "structural_tag":
                for part in structural_tag.walk(structural_tag.parse(self.document())):
                    if isinstance(part, structural_tag.JsonSchema):
                        _check_schema(part.schema, limits, part.path)
                    elif isinstance(part, structural_tag.Regex):
                        _check_regex(part.pattern, limits, part.path)
            case "regex":
                _check_regex(self.source, limits)
            case "choice":
                _check_choices(self.document(), limits)
            case "ebnf":
                _check_ebnf(self.source, limits)
            case "json_object" if self.source.strip():
                raise InvalidGrammar("$", "json_object takes no source")

    def document(self) -> Any:
        """The parsed source of a JSON kind. Raises ``InvalidGrammar``."""
        try:
            document = json.loads(self.source, parse_constant=no_constant, parse_float=_double)
            if self.kind == "json_schema" and drafts.OLD_SPELLING.search(self.source) is not None:
                document = drafts.modern(document)
            if self.kind == "json_schema" and drafts.ELSEWHERE.search(self.source) is not None:
                document = drafts.adopt(document)
        except RecursionError:
            raise GrammarTooLarge("$", "nested too deeply") from None
        except ValueError as error:
            is_digits = not isinstance(error, json.JSONDecodeError) and "digits" in str(error)
            message = "a number with too many digits" if is_digits else f"not valid JSON: {error}"
            raise InvalidGrammar("$", message) from None
        if "\\ud" in self.source.lower():  # an escape may make what the text itself must not hold
            place = _lone_surrogate(json.dumps(document, ensure_ascii=False))
            if place is not None:
                raise InvalidGrammar("$", "half of a surrogate pair is no character")
        return document


def _lone_surrogate(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def no_constant(name: str) -> None:
    """What ``json`` reads beyond JSON, NaN and infinities; raises ``ValueError``."""
    raise ValueError(f"{name} is not JSON")


def _double(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is beyond the largest double")
    return value


def _check_schema(schema: Any, limits: Limits, path: str = "$") -> None:
    if schema is False:
        raise InvalidGrammar(path, "the schema false accepts nothing")
    forms.check(
        schema,
        path,
        max_depth=limits.max_depth,
        max_properties=limits.max_properties,
        max_optional=limits.max_optional,
        max_enum_values=limits.max_enum_values,
        max_count=limits.max_count,
    )


def _check_regex(source: str, limits: Limits, path: str = "$") -> None:
    size = expanded_size(source)
    if size > limits.max_regex_size:
        message = f"its repetitions expand to {size}, over {limits.max_regex_size} items"
        raise GrammarTooLarge(path, message)


# Attributes of a rule that do not affect what it matches, and that no backend uses.
_UNHEEDED = re.compile(r"^[ \t]*[\w-]+[ \t]*\[[^\]\n]*\b(temperature|capture)\b", re.MULTILINE)


# Options that would make an engine lenient about a schema in the grammar, or about the bytes it
# allows.
_OPTIONS = re.compile(r"x-guidance|allow_invalid_utf8")


def _check_ebnf(source: str, limits: Limits) -> None:
    if not source.strip():
        raise InvalidGrammar("$", "the grammar is empty")
    if (found := _UNHEEDED.search(source)) is not None:
        line = source.count("\n", 0, found.start(1)) + 1
        raise InvalidGrammar("$", f"line {line}: the attribute '{found[1]}' is not supported")
    if (found := _OPTIONS.search(source)) is not None:
        line = source.count("\n", 0, found.start()) + 1
        raise InvalidGrammar("$", f"line {line}: '{found[0]}' is not supported")
    ebnf.check(source, max_size=limits.max_regex_size, max_text=limits.max_choice_chars)


def _check_choices(choices: Any, limits: Limits) -> None:
    if not isinstance(choices, list) or not choices:
        raise InvalidGrammar("$", "choice takes a non-empty array of strings")
    if len(choices) > limits.max_enum_values:
        raise GrammarTooLarge("$", f"{len(choices)} choices, over {limits.max_enum_values}")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise InvalidGrammar(f"$[{index}]", f"a choice is a string, got {choice!r}")
        if len(choice) > limits.max_choice_chars:
            message = f"{len(choice)} characters, over {limits.max_choice_chars}"
            raise GrammarTooLarge(f"$[{index}]", message)
