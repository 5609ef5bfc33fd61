"""Turns ``response_format`` and similar fields into a grammar for the answer.

``strict: true`` means no document outside the schema ever: a keyword that cannot be enforced is
refused by name. Without it a schema may say anything that JSON Schema knows: what cannot be
enforced while the answer is generated is checked when it has ended, and the answer says so
(``schemas.common.Compliance``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from engine.sampling_params import StructuredOutputs
from gateway.errors import InvalidRequestError
from gateway.schemas.output_format import (
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    StructuredOutputsField,
    TextFormat,
)
from gateway.schemas.sampling import SamplingFields
from grammar.errors import GrammarError, GrammarTooLarge
from grammar.schema.paths import ROOT, pointer
from grammar.spec import GrammarSpec

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ENGINE_NAMES: Mapping[str, str] = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
"""The field of ``StructuredOutputs`` for each kind of grammar whose source it takes as it is."""


class OutputFormat(NamedTuple):
    """A grammar, and the request's field that asked for it."""

    spec: GrammarSpec
    param: str
    answer: GrammarSpec | None = None
    """What an answer without calls must look like, where ``spec`` allows calls in its place."""


def read(fields: SamplingFields) -> OutputFormat | None:
    """The format that a request asks for; None for free text. Raises ``InvalidRequestError`` naming
    the field."""
    asked = _asked(fields)
    if len(asked) > 1:
        raise InvalidRequestError(
            f"Only one of {', '.join(asked)} may be set.", param=next(reversed(asked))
        )
    return next(iter(asked.values()), None)


def refusal(error: GrammarError, param: str) -> InvalidRequestError:
    """The error for a client whose grammar cannot be used, with the field that has it."""
    return InvalidRequestError(f"The output format cannot be used: {told(error)}", param=param)


def told(error: GrammarError, path: str | None = None) -> str:
    """What an error says, with its place as a JSON pointer into the client's schema, in which it
    may have another ``path``."""
    place = getattr(error, "path", ROOT)
    found = place if path is None else path
    return str(error).replace(place, pointer(found) or ROOT) if place != ROOT else str(error)


def for_engine(
    output: OutputFormat | None, reasoning_end: tuple[int, ...] = ()
) -> StructuredOutputs | None:
    """A format as the engine takes it. reasoning_end: the token ids after which it applies; empty
    if it applies from the start."""
    if output is None:
        return None
    spec = output.spec
    match spec.kind:
        case "json_object":
            source: dict[str, Any] = {"json_object": True}
        case "choice":
            source = {"choice": tuple(spec.document())}
        case kind:
            source = {_ENGINE_NAMES[kind]: spec.source}
    return StructuredOutputs(
        strict=spec.strict,
        disable_any_whitespace=not spec.any_whitespace,
        reasoning_end_token_ids=reasoning_end,
        **source,
    )


def check_strict(spec: GrammarSpec, param: str) -> None:
    """Check a schema that is to be enforced: that it is well formed and not too large. Whether all
    of its keywords can be enforced is found out by compiling it. Raises ``InvalidRequestError``."""
    try:
        spec.validate()
    except GrammarError as error:
        raise refusal(error, param) from None


def check_form(spec: GrammarSpec, param: str) -> None:
    """Check a schema that need not be small enough for a grammar, but must be well formed. Raises
    ``InvalidRequestError``."""
    try:
        spec.validate()
    except GrammarTooLarge:
        return
    except GrammarError as error:
        raise refusal(error, param) from None


def _asked(fields: SamplingFields) -> dict[str, OutputFormat]:
    """What each of the request's fields asks for."""
    found: dict[str, OutputFormat] = {}
    if fields.response_format is not None and not isinstance(fields.response_format, TextFormat):
        found["response_format"] = wanted = _response_format(fields.response_format)
        if wanted.spec.kind == "json_schema" and wanted.spec.strict:
            _refuse_cuts(fields)
    if fields.structured_outputs is not None:
        found["structured_outputs"] = _structured_outputs(fields.structured_outputs)
    older = StructuredOutputsField(
        json=fields.guided_json,
        regex=fields.guided_regex,
        choice=fields.guided_choice,
        grammar=fields.guided_grammar,
    )
    for name, spec in _specs(older, "guided_{}").items():
        found[f"guided_{name}"] = OutputFormat(spec, f"guided_{name}")
    return found


def _refuse_cuts(fields: SamplingFields) -> None:
    for name in ("stop", "stop_token_ids"):
        if getattr(fields, name):
            raise InvalidRequestError(
                f"{name} could end the answer inside its document; leave it out, or the "
                "response_format's strict.",
                param=name,
            )


def _response_format(wanted: JsonObjectFormat | JsonSchemaFormat) -> OutputFormat:
    if isinstance(wanted, JsonObjectFormat):
        return OutputFormat(GrammarSpec("json_object"), "response_format")
    schema: JsonSchema = wanted.json_schema
    if _NAME.fullmatch(schema.name) is None:
        raise InvalidRequestError(
            "Must be 1 to 64 characters of a-z, A-Z, 0-9, _ and -.",
            param="response_format.json_schema.name",
        )
    source = _text_of(schema.schema, "response_format.json_schema.schema")
    spec = GrammarSpec("json_schema", source, strict=bool(schema.strict))
    if spec.strict:
        check_strict(spec, "response_format")
    return OutputFormat(spec, "response_format")


def _structured_outputs(wanted: StructuredOutputsField) -> OutputFormat:
    specs = _specs(wanted, "structured_outputs.{}")
    if len(specs) != 1:
        raise InvalidRequestError(
            "Must have exactly one of json, json_object, regex, choice, grammar and "
            f"structural_tag, got {len(specs)}.",
            param="structured_outputs",
        )
    ((name, spec),) = specs.items()
    if wanted.disable_any_whitespace:
        try:
            spec = replace(spec, any_whitespace=False)
        except GrammarError as error:
            param = "structured_outputs.disable_any_whitespace"
            raise InvalidRequestError(f"Not with {name}: {error}", param=param) from None
    return OutputFormat(spec, f"structured_outputs.{name}")


def _specs(wanted: StructuredOutputsField, path: str) -> dict[str, GrammarSpec]:
    """The grammars of the fields that are set."""
    found: dict[str, GrammarSpec] = {}
    if _is_set(wanted.json):
        found["json"] = GrammarSpec("json_schema", _document(wanted.json, path.format("json")))
    if wanted.json_object:
        found["json_object"] = GrammarSpec("json_object")
    if wanted.regex is not None:
        found["regex"] = GrammarSpec("regex", wanted.regex)
    if wanted.choice is not None:
        found["choice"] = GrammarSpec.from_choices(wanted.choice)
    if wanted.grammar is not None:
        found["grammar"] = GrammarSpec("ebnf", wanted.grammar)
    if _is_set(wanted.structural_tag):
        source = _document(wanted.structural_tag, path.format("structural_tag"))
        found["structural_tag"] = GrammarSpec("structural_tag", source)
    return found


def _is_set(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null")


def _document(raw: msgspec.Raw, param: str) -> str:
    """JSON text, whether sent as a document or as text."""
    text = _text_of(raw, param)
    return str(json.loads(text)) if text.startswith('"') else text


def _text_of(raw: msgspec.Raw, param: str) -> str:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("Must be UTF-8.", param=param) from None
