from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.text.tokenizer import Tokenizer
from gateway.admission import tool_use
from gateway.admission.tool_use import Tools, ToolUse
from gateway.errors import InvalidRequestError, UnsupportedParameter
from gateway.parsers.base import ToolFormat
from gateway.parsers.hermes import HERMES
from gateway.parsers.llama import LLAMA
from gateway.parsers.mistral import MISTRAL
from gateway.parsers.qwen import QWEN
from gateway.schemas.chat import ChatCompletionRequest
from grammar import structural_tag
from grammar.errors import UnsupportedKeyword
from grammar.spec import GrammarSpec
from tests.gateway.serving import chat_body

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **fields}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


class Fixture:
    def __init__(self, tokenizer: Tokenizer, format: ToolFormat | None = HERMES) -> None:
        self.tools = Tools(format, tokenizer)

    def use(self, *functions: dict[str, Any], **fields: Any) -> ToolUse:
        body = chat_body(tools=list(functions) or [function("f"), function("g")], **fields)
        found = self.tools.read(msgspec.convert(body, ChatCompletionRequest))
        assert found is not None
        return found

    def grammar(self, *functions: dict[str, Any], **fields: Any) -> Any:
        spec = self.tools.grammar(self.use(*functions, **fields), None)
        if spec is None:
            return None
        spec.validate()
        structural_tag.parse(spec.document())
        return json.loads(spec.source)["format"]


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


@pytest.fixture
def fixture(tokenizer: Tokenizer) -> Fixture:
    return Fixture(tokenizer)


def names(grammar: Any) -> list[str]:
    return [json.loads(tag["begin"].partition("\n")[2] + "0}")["name"] for tag in grammar["tags"]]


def test_without_demands_the_model_is_free(fixture: Fixture) -> None:
    assert fixture.grammar() is None
    assert fixture.grammar(tool_choice="auto", parallel_tool_calls=True) is None
    use = fixture.use(parallel_tool_calls=False)
    assert not use.is_parallel
    assert use.is_free  # the parser stops after the first


def test_none_and_no_tools_show_nothing(fixture: Fixture) -> None:
    unused: list[dict[str, Any]] = [
        {},
        {"tools": [function("f")], "tool_choice": "none"},
        {"tools": []},
        # OpenAI's own agents and the AI SDK send it also where there is nothing to call.
        {"parallel_tool_calls": False},
    ]
    for fields in unused:
        body = msgspec.convert(chat_body(**fields), ChatCompletionRequest)
        assert fixture.tools.read(body) is None


def test_required_is_one_call_at_least(fixture: Fixture) -> None:
    grammar = fixture.grammar(tool_choice="required")
    assert grammar["type"] == "tags_with_separator"
    assert grammar["at_least_one"]
    assert not grammar["stop_after_first"]
    assert names(grammar) == ["f", "g"]
    assert grammar["tags"][0]["content"]["json_schema"] == SCHEMA
    assert fixture.grammar(tool_choice="required", parallel_tool_calls=False)["stop_after_first"]


def test_a_named_function_is_called_once(fixture: Fixture) -> None:
    grammar = fixture.grammar(tool_choice=named("g"))
    assert names(grammar) == ["g"]
    assert grammar["stop_after_first"]


def test_allowed_tools_are_all_shown_and_some_called(fixture: Fixture) -> None:
    use = fixture.use(tool_choice=allowed("auto", "g"))
    assert [tool["function"]["name"] for tool in use.for_template()] == ["f", "g"]
    grammar = fixture.grammar(tool_choice=allowed("auto", "g"))
    assert grammar["type"] == "triggered_tags"
    assert names(grammar) == ["g"]
    assert fixture.grammar(tool_choice=allowed("required", "f"))["type"] == "tags_with_separator"


def test_one_strict_tool_binds_its_own_arguments(fixture: Fixture) -> None:
    use = fixture.use(function("f", strict=True), function("g", parameters={"not": {}}))
    spec = fixture.tools.grammar(use, None)
    assert spec is not None
    assert spec.strict
    strict, loose = json.loads(spec.source)["format"]["tags"]
    assert strict["content"]["json_schema"] == SCHEMA
    assert loose["content"]["json_schema"] == {"type": "object"}


def test_loose_tools_are_held_to_what_can_be(fixture: Fixture) -> None:
    spec = fixture.tools.grammar(fixture.use(tool_choice="required"), None)
    assert spec is not None
    assert not spec.strict


def test_a_function_without_parameters_takes_none(fixture: Fixture) -> None:
    use = fixture.use(function("f", parameters=None), function("g", parameters={}))
    calls = fixture.tools.grammar(use._replace(is_required=True), None)
    assert calls is not None
    none, any_object = json.loads(calls.source)["format"]["tags"]
    assert none["content"]["json_schema"]["additionalProperties"] is False
    assert any_object["content"]["json_schema"] == {"type": "object"}


def test_a_call_or_a_document(fixture: Fixture) -> None:
    spec = fixture.tools.grammar(fixture.use(), GrammarSpec("json_object"))
    assert spec is not None
    calls, document = json.loads(spec.source)["format"]["elements"]
    assert calls["type"] == "tags_with_separator"
    assert document["json_schema"] == {"type": "object"}


def test_other_formats_of_calls(tokenizer: Tokenizer) -> None:
    llama = Fixture(tokenizer, LLAMA).grammar(function("f"), tool_choice="required")
    assert llama["tags"][0]["begin"] == '{"name": "f", "parameters": '
    mistral = Fixture(tokenizer, MISTRAL).grammar(tool_choice="required")
    assert (mistral["begin"], mistral["end"]) == ("[TOOL_CALLS][", "]")
    assert mistral["content"]["type"] == "tags_with_separator"
    qwen = Fixture(tokenizer, QWEN).grammar(function("f"), tool_choice="required")
    assert qwen["tags"][0]["content"] == {"type": "any_text"}


def test_a_model_without_tools(tokenizer: Tokenizer) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        Fixture(tokenizer, None).use()
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [function("f"), function("f")]}, "tools[1].function.name"),
        ({"tools": [function(f"f{i}") for i in range(129)]}, "tools"),
        ({"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        (
            {"tool_choice": allowed("auto", "f", "z")},
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"tools": [function("f", strict=True, parameters=None)]}, "tools[0].function.parameters"),
        (
            {"tools": [function("f", strict=True, parameters={"type": "array"})]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_what_is_wrong_is_named(fixture: Fixture, fields: dict[str, Any], param: str) -> None:
    body = msgspec.convert(
        chat_body(**({"tools": [function("f")]} | fields)), ChatCompletionRequest
    )
    with pytest.raises(InvalidRequestError) as caught:
        fixture.tools.read(body)
    assert caught.value.param == param


def test_an_error_of_the_grammar_names_the_tool(fixture: Fixture) -> None:
    use = fixture.use()
    path = "$.format.tags[1].content.json_schema.properties.a.not"
    error = tool_use.refusal(UnsupportedKeyword("not", path), use.callable)
    assert "schema of g" in error.message
    assert "at /properties/a/not cannot" in error.message
    assert "tags" not in error.message
