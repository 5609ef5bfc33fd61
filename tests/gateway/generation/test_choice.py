from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.client.stream import RequestStream
from engine.messages import RequestOutput, TokenLogprobs
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from gateway.admission.admitted import Admitted
from gateway.errors import ApiError, GenerationFailed, InvalidRequestError, Overloaded
from gateway.generation.choice import Choice, engine_error
from gateway.generation.delta import Delta
from gateway.generation.events import Text
from gateway.parsers.answer import AnswerParser
from gateway.parsers.hermes import HERMES
from gateway.parsers.reasoning import ThinkParser

make_tools = partial(HERMES.make_parser, {})

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


class Stream:
    """Of an engine: only whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Fixture:
    def __init__(self, model_dir: Path) -> None:
        self.tokenizer = Tokenizer.load(model_dir)
        self.stream = Stream()
        self.pieces: dict[int, Text] = {}

    def choice(
        self, *, stop: tuple[str, ...] = (), skip_special_tokens: bool = True, **fields: Any
    ) -> Choice:
        make_parser = fields.pop("make_parser", None)
        # Only these are looked at.
        admitted = cast(
            Admitted,
            _Fields(
                params=SamplingParams(**fields),
                stop=stop,
                skip_special_tokens=skip_special_tokens,
                make_parser=make_parser,
                unenforced=None,
                loose_calls=None,
                image_places=(),
            ),
        )
        return Choice(0, cast(RequestStream, self.stream), admitted, self.tokenizer, self.pieces)

    def output(self, text: str, **fields: Any) -> RequestOutput:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return RequestOutput("r", ids, **fields)


class _Fields:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


@pytest.fixture
def fixture(model_dir: Path) -> Fixture:
    return Fixture(model_dir)


def test_the_end_of_text_is_no_text(fixture: Fixture) -> None:
    output = fixture.output("Hi<|im_end|>", finish_reason="stop")
    for shown in (True, False):
        delta = fixture.choice(skip_special_tokens=shown).advance(output)
        assert (delta.content, delta.finish_reason) == ("Hi", "stop")


def test_a_stop_token_is_text_only_when_asked_for(fixture: Fixture) -> None:
    output = fixture.output(
        "ab", finish_reason="stop", stop_reason=fixture.output("b").new_token_ids[0]
    )
    assert fixture.choice().advance(output).content == "a"
    assert fixture.choice(include_stop_str_in_output=True).advance(output).content == "ab"


def test_a_stop_string_ends_it_and_stops_the_engine(fixture: Fixture) -> None:
    choice = fixture.choice(stop=("c",))
    assert choice.advance(fixture.output("ab")).content == "ab"
    delta = choice.advance(fixture.output("cd"))
    assert (delta.content, delta.finish_reason) == ("", "stop")
    assert fixture.stream.closed


def _thinks_and_calls() -> AnswerParser:
    return AnswerParser(reasoning=ThinkParser(has_begun=False), tools=make_tools())


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "content", "arguments", "reason"),
    [
        (f"<think>hm}}</think>{CALL}", "", ["{}"], "length"),
        (f"a}}b{CALL}", "a", [], "stop"),
        (f"a{CALL}b}}c{CALL}", "ab", ["{}"], "tool_calls"),
        ("a}", "a", [], "stop"),
        ("a {", "a {", [], "length"),
    ],
)
def test_stop_strings_are_looked_for_in_the_content(
    fixture: Fixture, text: str, content: str, arguments: list[str], reason: str, size: int
) -> None:
    choice = fixture.choice(stop=("}",), make_parser=_thinks_and_calls)
    deltas = []
    for start in range(0, len(text), size):
        deltas.append(choice.advance(fixture.output(text[start : start + size])))
        if choice.finish_reason is not None:
            break
    else:
        deltas.append(choice.advance(RequestOutput("r", [], finish_reason="length")))
    assert "".join(delta.content for delta in deltas) == content
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert "".join(str(call.function.arguments) for call in calls) == "".join(arguments)
    assert choice.finish_reason == reason
    assert fixture.stream.closed == (reason != "length")


def test_a_stop_string_at_the_very_end_counts(fixture: Fixture) -> None:
    choice = fixture.choice(stop=("\n",), make_parser=_thinks_and_calls)
    delta = choice.advance(fixture.output("a\n", finish_reason="length"))
    assert (delta.content, delta.finish_reason) == ("a", "stop")
    choice = fixture.choice(stop=("\nb",), make_parser=_thinks_and_calls)
    delta = choice.advance(fixture.output("a\n", finish_reason="length"))
    assert (delta.content, delta.finish_reason) == ("a\n", "length")


@pytest.mark.parametrize("make_parser", [None, _thinks_and_calls])
def test_stop_strings_do_not_count_before_min_tokens(
    fixture: Fixture, make_parser: Callable[[], AnswerParser] | None
) -> None:
    choice = fixture.choice(stop=("a",), min_tokens=3, make_parser=make_parser)
    assert choice.advance(fixture.output("aaa")).finish_reason is None
    assert choice.advance(fixture.output("a")).finish_reason == "stop"


def test_logprobs_end_with_the_text(fixture: Fixture) -> None:
    output = fixture.output("abcd")
    logprobs = [TokenLogprobs(i, -1.0, 1) for i in output.new_token_ids]
    output = fixture.output("abcd", logprobs=logprobs)
    choice = fixture.choice(stop=("b",), logprobs=0)
    assert [token.token for token in choice.advance(output).logprobs] == ["a", "b"]


def test_reasoning_tokens_are_counted_whatever_the_outputs(fixture: Fixture) -> None:
    def parser() -> AnswerParser:
        return AnswerParser(reasoning=ThinkParser(has_begun=True))

    for cuts in (["hm</think>yes"], list("hm</think>yes"), ["hm</th", "ink>yes"]):
        choice = fixture.choice(make_parser=parser)
        deltas = [choice.advance(fixture.output(text)) for text in cuts]
        assert choice.num_reasoning_tokens == len("hm</think>")
        assert "".join(delta.content for delta in deltas) == "yes"


def test_a_call_too_many_stops_the_engine(fixture: Fixture) -> None:
    choice = fixture.choice(make_parser=lambda: AnswerParser(tools=make_tools(), max_calls=1))
    assert choice.advance(fixture.output(CALL)).finish_reason is None
    delta: Delta = choice.advance(fixture.output(CALL))
    assert (delta.finish_reason, list(delta.tool_calls)) == ("tool_calls", [])
    assert choice.has_calls
    assert fixture.stream.closed


def test_a_cluster_is_not_cut(fixture: Fixture) -> None:
    choice = fixture.choice()
    deltas = [choice.advance(fixture.output(text)) for text in "a\N{MAN}\u200d\N{WOMAN}"]
    deltas.append(choice.advance(RequestOutput("r", [], finish_reason="stop")))
    assert [d.content for d in deltas if d.content] == ["a", "\N{MAN}\u200d\N{WOMAN}"]


_PARTS = [
    "a",
    '"',
    "\\",
    "\n",
    "é",
    "e\u0301",
    "\N{MAN}\u200d\N{WOMAN}",
    "\N{THAI CHARACTER KO KAI}",
]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answers=st.lists(st.lists(st.sampled_from(_PARTS), max_size=12), min_size=1, max_size=3))
def test_known_pieces_are_what_the_choice_would_say(
    fixture: Fixture, answers: list[list[str]]
) -> None:
    """Of one answer after the other, each token by itself."""
    fixture.pieces.clear()
    for parts in answers:
        choice, told = fixture.choice(), fixture.choice()
        text = shown = ""
        for token_id in fixture.output("".join(parts)).new_token_ids:
            output = RequestOutput("r", [token_id])
            text += told.advance(output).content
            piece = fixture.pieces.get(token_id) if choice.is_settled else None
            if piece is None:
                shown += choice.advance(output).content
            else:
                shown += json.loads(b'"' + piece + b'"')
            assert shown == text
        assert choice.is_settled == told.is_settled


def test_what_is_known_of_special_tokens_holds_for_one_choice_only(fixture: Fixture) -> None:
    (special, *_) = fixture.tokenizer.special_ids - fixture.tokenizer.eos_token_ids
    choice = fixture.choice(skip_special_tokens=False)
    choice.advance(RequestOutput("r", [special]))
    choice.advance(fixture.output("a"))
    assert special not in fixture.pieces


@pytest.mark.parametrize("fields", [{"stop": ("x",)}, {"make_parser": AnswerParser}])
def test_text_that_is_looked_at_is_never_settled(fixture: Fixture, fields: Any) -> None:
    assert not fixture.choice(**fields).is_settled
    assert fixture.choice().is_settled


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_request", InvalidRequestError),
        ("queue_full", Overloaded),
        ("internal", GenerationFailed),
    ],
)
def test_errors_of_the_engine(fixture: Fixture, code: str, kind: type[ApiError]) -> None:
    output = RequestOutput("r", [], finish_reason="error", error="no", error_code=code)
    assert type(engine_error(output)) is kind
    with pytest.raises(kind, match="no"):
        fixture.choice().advance(output)
