"""What one process encodes the other one decodes, for every record, whatever its fields hold."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import (
    ClientMessage,
    EngineMessage,
    Grant,
    GrantTokens,
    Ping,
    RequestOutput,
    Stats,
    StepOutputs,
    decode_client_message,
    decode_engine_message,
    encode,
)
from engine.sampling_params import SamplingParams

CLIENT: tuple[type, ...] = typing.get_args(ClientMessage)
ENGINE: tuple[type, ...] = typing.get_args(EngineMessage)

PARAMS = st.sampled_from(
    [
        SamplingParams(),
        SamplingParams(temperature=0.0, seed=2**63 - 1, stop_token_ids=(7, 8), ignore_eos=True),
        SamplingParams(logprobs=20, prompt_logprobs=0, logit_bias={3: -1.5}, max_tokens=None),
    ]
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything of this type that msgpack has, all digits of its numbers included."""
    args = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return st.sampled_from(args)
        case typing.Union | types.UnionType:
            return st.one_of(*map(values, args))
        case origin if origin is list:
            return st.lists(values(args[0]), max_size=3)
        case origin if origin is tuple:
            return st.tuples(*map(values, args))
        case origin if origin is dict:
            return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if hint is int:
        return st.integers(-(2**63), 2**63 - 1)
    if hint is float:
        return st.floats(allow_nan=False)
    if hint is SamplingParams:
        return PARAMS
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields = {name: values(field) for name, field in typing.get_type_hints(hint).items()}
        return st.fixed_dictionaries(fields).map(lambda found: hint(**found))
    return st.from_type(hint)


@pytest.mark.parametrize("kind", CLIENT, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_the_engine_reads_what_a_client_wrote(kind: type, data: st.DataObject) -> None:
    message = data.draw(values(kind))
    assert decode_client_message(encode(message)) == message


@pytest.mark.parametrize("kind", ENGINE, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_a_client_reads_what_the_engine_wrote(kind: type, data: st.DataObject) -> None:
    message = data.draw(values(kind))
    assert decode_engine_message(encode(message)) == message


def test_a_record_that_breaks_the_contract_is_refused() -> None:
    for data in (encode(Stats()), msgspec.msgpack.encode({"type": "generate"}), b"\xc1"):
        with pytest.raises(msgspec.DecodeError):
            decode_client_message(data)
    for data in (encode(Ping()), msgspec.msgpack.encode({"type": "ready", "pid": "1"}), b""):
        with pytest.raises(msgspec.DecodeError):
            decode_engine_message(data)


def test_what_travels_with_every_token_is_small() -> None:
    """A step's message grows by some bytes for each request, and none of them are field names."""
    sizes = []
    for num_requests in (10, 11):
        outputs = [RequestOutput("0" * 32, [50_000]) for _ in range(num_requests)]
        sizes.append(len(encode(StepOutputs(outputs))))
    assert sizes[1] - sizes[0] <= 32 + 24
    assert len(encode(GrantTokens([Grant("0" * 32, 256)]))) <= 32 + 32
