from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from gateway.admission.sampling import Sampling, stop_strings
from gateway.errors import InvalidRequestError
from gateway.schemas.chat import ChatCompletionRequest
from gateway.schemas.completions import CompletionRequest
from tests.gateway.serving import chat_body


@pytest.fixture(scope="module")
def sampling(model_dir: Path) -> Sampling:
    return Sampling(Tokenizer.load(model_dir), {"temperature": 0.5, "top_k": 7})


def chat_params(sampling: Sampling, **fields: Any) -> SamplingParams:
    request = msgspec.convert(chat_body(**fields), ChatCompletionRequest)
    return sampling.params(request, max_tokens=9, structured_outputs=None)


def text_params(sampling: Sampling, **fields: Any) -> SamplingParams:
    request = msgspec.convert({"model": "m", "prompt": "x", **fields}, CompletionRequest)
    return sampling.params(request, max_tokens=9, structured_outputs=None)


FIELDS: dict[str, tuple[Any, Any]] = {
    "temperature": (1, 1.0),
    "top_p": (0.5, 0.5),
    "top_k": (-1, -1),
    "min_p": (0.1, 0.1),
    "top_n_sigma": (1, 1.0),
    "frequency_penalty": (-1, -1.0),
    "presence_penalty": (2, 2.0),
    "repetition_penalty": (1.5, 1.5),
    "seed": (-1, 2**64 - 1),
    "min_tokens": (3, 3),
    "ignore_eos": (True, True),
    "include_stop_str_in_output": (True, True),
    "skip_special_tokens": (False, False),
    "stop_token_ids": ([1, 2], (1, 2)),
    "allowed_token_ids": ([3], (3,)),
    "logit_bias": ({"5": -100}, {5: -100.0}),
}


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_reaches_the_engine(sampling: Sampling, name: str) -> None:
    sent, expected = FIELDS[name]
    for params in (chat_params(sampling, **{name: sent}), text_params(sampling, **{name: sent})):
        assert getattr(params, name) == expected
        assert params.max_tokens == 9


def test_what_is_said_again_is_made_once(sampling: Sampling) -> None:
    first = chat_params(sampling, temperature=0.25, stop_token_ids=[3])
    assert chat_params(sampling, stop_token_ids=[3], temperature=0.25) is first
    others = [
        chat_params(sampling, temperature=0.25),
        chat_params(sampling, temperature=0.25, stop_token_ids=[4]),
        chat_params(sampling, temperature=0.25, stop_token_ids=[3], logprobs=True),
        chat_params(sampling, temperature=0.25, stop_token_ids=[3], seed=0),
        chat_params(sampling, temperature=0.25, stop_token_ids=[3], logit_bias={"1": 1}),
        chat_params(sampling, temperature=0.25, stop_token_ids=[3], bad_words=["no"]),
    ]
    assert all(other != first for other in others)
    for _ in range(2):  # a refusal is not kept either
        with pytest.raises(InvalidRequestError, match="temperature"):
            chat_params(sampling, temperature=-1)


def test_defaults_apply_where_nothing_is_said(sampling: Sampling) -> None:
    assert chat_params(sampling) == SamplingParams(max_tokens=9, temperature=0.5, top_k=7)
    assert chat_params(sampling, temperature=0).temperature == 0


def test_bad_words_become_tokens(sampling: Sampling) -> None:
    assert chat_params(sampling, bad_words=["ab"]).bad_words_token_ids[0]


def test_logprobs_are_asked_for_in_two_ways(sampling: Sampling) -> None:
    assert chat_params(sampling).logprobs is None
    assert chat_params(sampling, logprobs=False).logprobs is None
    assert chat_params(sampling, logprobs=True).logprobs == 0
    assert chat_params(sampling, logprobs=True, top_logprobs=5).logprobs == 5
    params = text_params(sampling, logprobs=2)
    assert (params.logprobs, params.prompt_logprobs) == (2, None)
    params = text_params(sampling, logprobs=0, echo=True)
    assert (params.logprobs, params.prompt_logprobs) == (0, 0)


def test_stops_stay_here() -> None:
    assert stop_strings(None) == ()
    assert stop_strings("a") == ("a",)
    assert stop_strings(["a", "b"]) == ("a", "b")
    assert stop_strings("a" * 1024) == ("a" * 1024,)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"stop_token_ids": [0, -1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [0] * 1025}, "stop_token_ids"),
        ({"bad_words": ["x"] * 65}, "bad_words"),
        ({"bad_words": ["x" * 129]}, "bad_words"),
        ({"temperature": float("inf")}, "temperature"),
    ],
)
def test_what_is_wrong_is_named(sampling: Sampling, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat_params(sampling, **fields)
    assert caught.value.param == param
