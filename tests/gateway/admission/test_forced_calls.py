"""Calls that a grammar asks for, in the format of every family of models: random walks under the
mask, token by token, read back by that family's parser."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import tokenizers
from tokenizers import AddedToken

from engine.text.tokenizer import Tokenizer
from gateway.admission import tool_use
from gateway.admission.tool_use import Tools, ToolUse
from gateway.errors import InvalidRequestError
from gateway.parsers.base import ToolFormat
from gateway.parsers.deepseek import DEEPSEEK, DEEPSEEK_V31
from gateway.parsers.harmony import HARMONY
from gateway.parsers.hermes import HERMES
from gateway.parsers.llama import LLAMA
from gateway.parsers.mistral import MISTRAL, MISTRAL_V11
from gateway.parsers.qwen import QWEN
from gateway.schemas.chat import ChatCompletionRequest
from grammar.compiler import CompiledGrammar, GrammarCompiler
from grammar.errors import GrammarError
from grammar.matcher import Matcher
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary
from tests.gateway import tiny_model
from tests.gateway.parsers.replay import replay
from tests.gateway.serving import chat_body
from tests.grammar.walks import allowed_ids

FORMATS = [HERMES, QWEN, LLAMA, MISTRAL, MISTRAL_V11, DEEPSEEK, DEEPSEEK_V31, HARMONY]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"], "type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "note": {"anyOf": [{"$ref": "#/$defs/note"}, {"type": "null"}]},
    },
    "required": ["city", "days", "unit", "tags", "note"],
    "additionalProperties": False,
    "$defs": {
        "note": {
            "type": "object",
            "properties": {"a": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": False,
        }
    },
}
NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
SCHEMAS = {"weather": WEATHER, "ping": NOTHING}
CLOSERS = ['"', "}", "]", ", ", "\n</parameter>\n", "</function>", "</tool_call>"]
DEMANDS: list[dict[str, Any]] = [
    {"tool_choice": "required"},
    {"tool_choice": "required", "parallel_tool_calls": False},
    {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
]


def body(**fields: Any) -> ChatCompletionRequest:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
        for name, schema in SCHEMAS.items()
    ]
    return msgspec.convert(chat_body(**{"tools": tools, **fields}), ChatCompletionRequest)


class Model:
    """A tokenizer of bytes that has the marks of one family as tokens of their own."""

    def __init__(self, format: ToolFormat, folder: Path, *, special: bool) -> None:
        self.format = format
        tiny_model.build(folder)
        path = str(folder / "tokenizer.json")
        backend = tokenizers.Tokenizer.from_file(path)
        marks = [mark for mark in format.marks if "CALL_ID" not in mark]
        backend.add_tokens([AddedToken(mark, special=special) for mark in marks])
        backend.save(path)
        self.tokenizer = Tokenizer.load(folder)
        self.tools = Tools(format, self.tokenizer)
        self.vocabulary = Vocabulary(
            self.tokenizer.vocabulary(),
            self.tokenizer.eos_token_ids,
            self.tokenizer.special_ids,
            512,
        )
        self.compiler = GrammarCompiler(self.vocabulary, num_workers=0)

    def use(self, **fields: Any) -> ToolUse:
        use = self.tools.read(body(**fields))
        assert use is not None
        return use

    def compile(self, use: ToolUse) -> CompiledGrammar:
        spec = self.tools.grammar(use, None)
        assert spec is not None
        compiled = self.compiler.compile(spec)
        assert compiled.unenforced == ()
        return compiled

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_byte(self, byte: int) -> int:
        return self.vocabulary.tokens.index(bytes([byte]))

    def walk(self, matcher: Matcher, seed: int) -> list[int] | None:
        """Random tokens under the mask up to EOS, or None. Now and then it closes something, or
        ends, or most walks would not."""
        rng, eos = random.Random(seed), min(self.vocabulary.eos_token_ids)
        closers = [self.encode(text) for text in CLOSERS]
        taken: list[int] = []
        while len(taken) < 1_000:
            forced = matcher.forced_tokens()
            assert matcher.legal_prefix(forced) == forced
            if rng.random() < 0.3:
                legal = [ids for ids in closers if matcher.legal_prefix(ids) == ids]
                found = rng.choice(legal) if legal else []
            else:
                found = [rng.choice(allowed_ids(matcher, self.vocabulary))]
            if found != [eos] and matcher.legal_prefix([eos]) and rng.random() < 0.3:
                found = [eos]
            assert all(matcher.accept(token_id) for token_id in found)
            if matcher.is_terminated:
                return taken
            taken += found
        return None

    def read(self, ids: list[int], use: ToolUse) -> tuple[str, list[tuple[str, Any]]]:
        """The text and the calls that a client gets."""
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        said, calls = replay(self.tools.make_parser(use)(), [text]).plain
        return said, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.fixture(scope="module", params=[True, False], ids=["special", "plain"])
def special(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module", params=FORMATS, ids=lambda format: format.name)
def model(
    request: pytest.FixtureRequest, special: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    model = Model(request.param, tmp_path_factory.mktemp("model"), special=special)
    yield model
    model.compiler.close()


def check(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize("demand", DEMANDS)
def test_calls_that_are_required_are_made_and_valid(model: Model, demand: dict[str, Any]) -> None:
    use = model.use(**demand)
    compiled = model.compile(use)
    num_calls = []
    for seed in range(6):
        ids = model.walk(compiled.matcher(), seed)
        if ids is None:
            continue
        said, calls = model.read(ids, use)
        assert said == ""
        assert calls
        check(calls)
        num_calls.append(len(calls))
    assert len(num_calls) >= 3
    if demand != DEMANDS[0]:
        assert set(num_calls) == {1}


def test_where_nothing_is_required_text_is_free_and_calls_are_valid(model: Model) -> None:
    use = model.use()
    compiled = model.compile(use)
    assert completes(
        compiled, model, model.encode(model.format.answer + "Just a <text> { of ] words.")
    )
    num_calls = 0
    for seed in range(6):
        matcher = compiled.matcher()
        begun = model.encode(("Well, " if model.format.mark else "") + opening(model.format))
        assert follow(matcher, begun, model) == len(begun)
        ids = model.walk(matcher, seed)
        if ids is None:
            continue
        said, calls = model.read(begun + ids, use)
        assert said.startswith("Well,") or not model.format.mark
        check(calls)
        num_calls += len(calls)
    assert num_calls >= 3


def opening(format: ToolFormat) -> str:
    return format.mark or format.begin.partition("%s")[0]


def test_no_call_escapes_its_schema(model: Model) -> None:
    """Whatever the parser would read as a call is one that the grammar knows, however it is
    spelt."""
    use, format = model.use(), model.format
    compiled = model.compile(use)
    loose = {
        HERMES.name: '<tool_call>{"arguments": {}, "name": "weather"}</tool_call>',
        QWEN.name: "<tool_call><function=weather></function></tool_call>",
        LLAMA.name: ' { "parameters": {}, "name": "weather"}',
        MISTRAL.name: "[TOOL_CALLS]weather[ARGS]{}",
        DEEPSEEK.name: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        HARMONY.name: "<|channel|>commentary to=functions.weather<|message|>{}<|call|>",
    }[format.name]
    assert model.read(model.encode(loose), use)[1]  # it is one, to the parser
    matcher = compiled.matcher()
    assert follow(matcher, model.encode(loose), model) < len(model.encode(loose))
    # Nor with the marks spelt in bytes, of which the mask knows nothing.
    spelt = [model.encode_byte(byte) for byte in loose.encode()]
    assert follow(compiled.matcher(), spelt, model) < len(spelt)


def completes(compiled: CompiledGrammar, model: Model, ids: list[int]) -> bool:
    matcher = compiled.matcher()
    return follow(matcher, ids, model) == len(ids) and matcher.accept(
        min(model.vocabulary.eos_token_ids)
    )


def follow(matcher: Matcher, ids: list[int], model: Model) -> int:
    """How many are accepted; mask and ``accept`` must agree all the way."""
    for taken, token_id in enumerate(ids):
        legal = token_id in allowed_ids(matcher, model.vocabulary)
        assert matcher.accept(token_id) == legal
        if not legal:
            return taken
    return len(ids)


def test_a_call_or_a_document(model: Model) -> None:
    use = model.use()
    spec = model.tools.grammar(use, GrammarSpec.from_schema(NOTHING))
    assert spec is not None
    compiled = model.compiler.compile(spec)
    assert completes(compiled, model, model.encode(model.format.answer + "{}"))
    assert not completes(compiled, model, model.encode(model.format.answer + "text"))
    matcher = compiled.matcher()
    begun = model.encode(opening(model.format))
    assert follow(matcher, begun, model) == len(begun)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "string", "pattern": "^a$"}, "/properties/x/pattern"),
        ({"type": "string", "format": "date"}, "/properties/x/format"),
        ({"type": "string", "enum": ["</parameter>"]}, "/properties/x/enum"),
        ({"type": "string", "const": "a\n"}, "/properties/x/const"),
        ({"type": "array", "items": {"$ref": "#"}}, "/properties/x/items/$ref"),
        ({"type": "number", "multipleOf": 0.1}, "/properties/x/multipleOf"),
    ],
)
def test_what_arguments_outside_of_json_cannot_be_held_to(
    tmp_path: Path, schema: dict[str, Any], path: str
) -> None:
    model = Model(QWEN, tmp_path, special=False)
    parameters = {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    use = model.use(tools=[tool])
    try:
        spec = model.tools.grammar(use, None)
        assert spec is not None
        with pytest.raises(GrammarError) as refused:
            model.compiler.compile(spec)
        error = tool_use.refusal(refused.value, use.callable)
    except InvalidRequestError as found:
        error = found
    finally:
        model.compiler.close()
    assert error.param == "tools"
    keyword = path.rpartition("/")[2]
    assert f"schema of f cannot be used: keyword '{keyword}' at {path}" in error.message
