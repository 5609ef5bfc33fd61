from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.field_hints import MAX_NAME
from gateway.errors import InvalidRequestError
from gateway.schemas import ws
from gateway.schemas.chat import ChatCompletionRequest
from gateway.transport import bodies
from tenants.errors import InvalidValue


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    value: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: list[Inner]
    names: dict[str, int] = {}
    anything: Any = None


class Bounded(msgspec.Struct):
    count: int = 0

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InvalidValue("count", "must not be negative")


_decoder = msgspec.json.Decoder(Outer)


def test_a_good_body() -> None:
    assert bodies.decode(_decoder, b'{"inner": [{"value": 1}]}') == Outer([Inner(1)])


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"{}", "inner", "missing_required_parameter"),
        (b'{"inner": [{}]}', "inner[0].value", "missing_required_parameter"),
        (b'{"inner": [], "x": 1}', "x", "unknown_parameter"),
        (b'{"inner": [{"value": 1, "y`z": 1}]}', "inner[0].y`z", "unknown_parameter"),
        (b'{"inner": [{"value": "1"}]}', "inner[0].value", "invalid_value"),
        (b'{"inner": [{"value": 1e400}]}', "inner[0].value", "invalid_value"),
        (b"3", None, "invalid_value"),
        (b"", None, "invalid_json"),
        (b'{"inner": [', None, "invalid_json"),
        (b'{"inner": []} trailing', None, "invalid_json"),
        (b'{"inner": [], "names": {"\xff": 1}}', None, "invalid_json"),
        (b'{"inner": [], "anything": ' + b"[" * 100_000, None, "invalid_json"),
    ],
)
def test_a_bad_body_names_the_field(body: bytes, param: str | None, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        bodies.decode(_decoder, body)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.message.endswith((".", "?")) or code == "invalid_json"


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [(Bounded, b'{"count": -1}', "count"), (list[Bounded], b'[{"count": -1}]', "[0].count")],
)
def test_a_field_that_its_struct_refuses_is_named(kind: Any, body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        bodies.decode(msgspec.json.Decoder(kind), body)
    assert (caught.value.param, caught.value.code) == (param, "invalid_value")
    assert caught.value.message == f"Invalid value for {param}: must not be negative."


@pytest.mark.parametrize("data", [b"{", b"3", b"[" * 100_000])
def test_errors_call_the_whole_what_it_is(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="message") as caught:
        bodies.decode(_decoder, data, what="message")
    assert "body" not in caught.value.message


@pytest.mark.parametrize(
    ("names", "param"),
    [
        ('{"a": 1, "b c": "x"}', "names.b c"),
        ('{"a": null, "b": "x"}', "names.a"),
        ('{"a": [], "b": {}}', "names.a"),
        ('{"a": true}', "names.a"),
        ('{"a": 1.5}', "names.a"),
    ],
)
def test_the_key_of_a_mapping_is_named(names: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        bodies.decode(_decoder, b'{"inner": [], "names": %s}' % names.encode())
    assert caught.value.param == param
    assert caught.value.message.startswith(f"Invalid value for {param}: expected `int`, got ")


def test_a_body_that_is_broken_behind_the_value_at_fault() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        bodies.decode(_decoder, b'{"names": {"a": "x"}, "inner": [}')
    assert caught.value.param == "names"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"inner": [], "naems": {}}', "Unknown parameter: naems; did you mean names?"),
        (b'{"inner": [{"valeu": 1}]}', "Unknown parameter: inner[0].valeu; did you mean value?"),
        (b'{"inner": [], "x": 1}', "Unknown parameter: x; known are anything, inner, names."),
    ],
)
def test_an_unknown_field_is_told_what_it_may_have_meant(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        bodies.decode(_decoder, body)
    assert caught.value.message == message


def test_a_misspelt_field_of_a_chat() -> None:
    with pytest.raises(InvalidRequestError, match="maxtokens; did you mean max_tokens"):
        bodies.decode(msgspec.json.Decoder(ChatCompletionRequest), b'{"maxtokens": 1}')


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"type": "cancel", "id": "t", "stream_id": "s"}', "stream_id; known are id."),
        (b'{"type": "cancel", "id": "t", "messages": []}', "messages; known are id."),
        (b'{"type": "ping", "dtaa": "x"}', "dtaa; did you mean data?"),
        (b'{"type": "chat", "temprature": 1}', "temprature; did you mean temperature?"),
        # Too large to look for its type: no name is better than a wrong one.
        (b'{"type": "cancel", "id": "%s", "messages": []}' % (b"t" * 40_000), "messages."),
    ],
)
def test_a_hint_is_a_field_of_the_same_kind_of_message(body: bytes, message: str) -> None:
    decoder: msgspec.json.Decoder[ws.ClientMessage] = msgspec.json.Decoder(ws.ClientMessage)
    with pytest.raises(InvalidRequestError) as caught:
        bodies.decode(decoder, body)
    assert caught.value.message == f"Unknown parameter: {message}"


LONG = 100_000
LONG_NAMES = [
    "a" * LONG,
    "((" * LONG,
    "a." * LONG,
    "[]" * LONG,
    "` - at `$" + ".a" * LONG,
    "é" * LONG,
]


@pytest.mark.parametrize("name", LONG_NAMES, ids=lambda name: name[:12])
@pytest.mark.parametrize("body", ['{"%s": 1}', '{"inner": [{"%s": 1}]}'])
def test_a_long_name_is_cut(name: str, body: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        bodies.decode(_decoder, (body % name).encode())
    assert caught.value.code == "unknown_parameter"
    assert caught.value.param is not None
    assert len(caught.value.param) < 4 * MAX_NAME
    assert len(caught.value.message) < 5 * MAX_NAME


def test_a_choice_names_what_there_is_to_choose() -> None:
    decoder = msgspec.json.Decoder(ChatCompletionRequest)
    body = {"model": "x", "messages": [{"role": "usr", "content": "hi"}]}
    with pytest.raises(InvalidRequestError, match="use one of system, developer, user") as caught:
        bodies.decode(decoder, msgspec.json.encode(body))
    assert caught.value.param == "messages[0].role"
