"""Whatever comes over the wire is a message or a ``WireError``."""

from __future__ import annotations

import inspect
from uuid import uuid4

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway import errors
from gateway.errors import ApiError, InternalError
from gateway.peers.wire import (
    Failed,
    Follow,
    Items,
    Keys,
    Message,
    Value,
    WireError,
    decode,
    derive_keys,
    encode,
)

MESSAGES: list[Message] = [
    Value(b"x" * 100_000),
    Items([b"", b"a", b"b" * 70_000]),
    Follow(stream_id="s", tenant_id=uuid4(), kind="sse", after=3),
]
ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ApiError) and kind is not ApiError
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_arrive_as_they_were_sent(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=300))
@example(encode(Value())[:-5] + b"\xff\xfe\xfd\xfc\xfb")  # a name that is no UTF-8
@example(b"\x82\xa4type\xa5Value\xa1x" + b"\x91" * 3000 + b"\xc0")  # nested too deeply
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(WireError):
        decode(noise)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_each_error_is_the_same_on_the_other_side(kind: type[ApiError]) -> None:
    before = Failed(
        kind=kind.__name__, message="no", param="p", code="c", retry_after_s=3, headers={"a": "b"}
    )
    error = msgspec.msgpack.decode(encode(before), type=Failed).error()
    assert type(error) is kind
    assert Failed.of(error) == before


@pytest.mark.parametrize("name", ["OfANewerVersion", "SetupError", "errors", "__doc__"])
def test_an_unknown_error_is_an_internal_one(name: str) -> None:
    assert type(Failed(kind=name, message="no").error()) is InternalError


def test_keys_follow_from_the_secret_and_are_not_shown() -> None:
    keys = derive_keys(b"a root")
    assert keys == derive_keys(b"a root") != derive_keys(b"another")
    assert [len(one) for one in keys] == [40, 40]
    assert repr(keys) == "Keys(...)"
    assert isinstance(keys, Keys)
