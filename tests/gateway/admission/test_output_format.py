from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from engine.sampling_params import StructuredOutputs
from gateway.admission import output_format
from gateway.admission.output_format import OutputFormat
from gateway.errors import InvalidRequestError
from gateway.schemas.chat import ChatCompletionRequest
from tests.gateway.serving import chat_body

STRICT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
_decoder = msgspec.json.Decoder(ChatCompletionRequest)


def read(**fields: Any) -> OutputFormat | None:
    return output_format.read(_decoder.decode(json.dumps(chat_body(**fields))))


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **fields}}


def test_any_text_needs_no_grammar() -> None:
    assert read() is None
    assert read(response_format={"type": "text"}) is None
    assert read(guided_json=None) is None


@pytest.mark.parametrize(
    "wanted", [{"type": "json_object"}, json_schema(STRICT, strict=False), json_schema(STRICT)]
)
def test_what_promises_no_whole_document_may_be_cut(wanted: dict[str, Any]) -> None:
    assert read(response_format=wanted, stop=["}"], stop_token_ids=[3]) is not None
    assert read(response_format=json_schema(STRICT, strict=True), stop=[]) is not None


@pytest.mark.parametrize("strict", [None, False, True])
def test_a_schema_is_strict_only_when_it_says_so(strict: bool | None) -> None:
    found = read(response_format=json_schema(STRICT, strict=strict))
    assert found is not None
    assert found.spec.strict is bool(strict)
    assert json.loads(found.spec.source) == STRICT


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", "response_format"),
        ({"structured_outputs": {"json": STRICT}}, "json_schema", "structured_outputs.json"),
        ({"structured_outputs": {"json": "{}"}}, "json_schema", "structured_outputs.json"),
        (
            {"structured_outputs": {"json_object": True}},
            "json_object",
            "structured_outputs.json_object",
        ),
        ({"structured_outputs": {"regex": "a"}}, "regex", "structured_outputs.regex"),
        ({"guided_choice": ["a", "b"]}, "choice", "guided_choice"),
        ({"guided_grammar": "start: /a/"}, "ebnf", "guided_grammar"),
        ({"guided_json": STRICT}, "json_schema", "guided_json"),
    ],
)
def test_each_way_to_ask(fields: dict[str, Any], kind: str, param: str) -> None:
    found = read(**fields)
    assert found is not None
    assert (found.spec.kind, found.param) == (kind, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": json_schema([], strict=True)}, "response_format"),
        ({"response_format": json_schema(STRICT, strict=True), "stop": "}"}, "stop"),
        (
            {"response_format": json_schema(STRICT, strict=True), "stop_token_ids": [3]},
            "stop_token_ids",
        ),
        ({"response_format": json_schema({"type": "row"}, strict=True)}, "response_format"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (
            {"properties": {"a/b": {"anyOf": [True, {"type": "row"}]}}},
            "/properties/a~1b/anyOf/1/type",
        ),
        ({"items": {"minItems": -1}}, "/items/minItems"),
        ([], "$"),
    ],
)
def test_the_place_in_the_schema_is_a_json_pointer(schema: Any, place: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(response_format=json_schema(schema, strict=True))
    assert caught.value.message.endswith(f"(at {place})")


@pytest.mark.parametrize("wanted", [{"json": STRICT}, {"json_object": True}])
def test_blanks_can_be_left_out_of_json(wanted: dict[str, Any]) -> None:
    for disable, blanks in ((True, False), (False, True), (None, True)):
        found = read(structured_outputs=wanted | {"disable_any_whitespace": disable})
        assert found is not None
        assert found.spec.any_whitespace is blanks


@pytest.mark.parametrize("wanted", [{"regex": "a"}, {"choice": ["a"]}, {"grammar": 'start: "a"'}])
def test_blanks_cannot_be_left_out_of_what_is_no_json(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="JSON only") as caught:
        read(structured_outputs=wanted | {"disable_any_whitespace": True})
    assert caught.value.param == "structured_outputs.disable_any_whitespace"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"json": {"type": "object"}}, {"json": '{"type": "object"}'}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choice": ["a", "b"]}, {"choice": ("a", "b")}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ],
)
def test_the_engine_gets_each_kind_in_its_field(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    wanted = output_format.for_engine(read(structured_outputs=fields), (7,))
    assert wanted == StructuredOutputs(reasoning_end_token_ids=(7,), **expected)
    assert output_format.for_engine(None) is None
