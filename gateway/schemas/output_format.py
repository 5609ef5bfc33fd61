"""The fields for the format of an answer: OpenAI's ``response_format``, vLLM's
``structured_outputs``."""

from __future__ import annotations

import msgspec

from gateway.schemas.common import Typed


class TextFormat(Typed, frozen=True, tag="text", omit_defaults=True):
    json_schema: None = None
    """Some clients send all names that a format can have."""


class JsonObjectFormat(Typed, frozen=True, tag="json_object", omit_defaults=True):
    json_schema: None = None


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Typed, frozen=True, tag="json_schema"):
    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputsField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sent through ``extra_body``; exactly one of the first six is set. Names and meanings as in
    vLLM."""

    json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """A JSON schema, as an object or as text."""
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """A Lark or GBNF grammar."""
    structural_tag: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """An object, or the same as text."""
    disable_any_whitespace: bool | None = None
    """JSON without blanks between its parts."""
