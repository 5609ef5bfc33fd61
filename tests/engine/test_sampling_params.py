from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from engine.messages import GenerateRequest, decode_client_message, encode
from engine.sampling_params import MAX_N, RequestOutputKind, SamplingParams, StructuredOutputs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, r"n must be in \[1, 16384\], got 0"),
        ({"n": 10**9}, r"n must be in \[1, 16384\], got 1000000000"),
        ({"temperature": -0.1}, "temperature must be a number of at least 0, got -0.1"),
        ({"temperature": math.inf}, "temperature must be a number of at least 0"),
        ({"temperature": math.nan}, "temperature must be a number of at least 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.01}, r"top_p must be in \(0, 1\], got 1.01"),
        ({"top_k": -2}, "top_k must be -1, 0 or positive"),
        ({"min_p": 1.5}, r"min_p must be in \[0, 1\]"),
        ({"top_n_sigma": -1.0}, "top_n_sigma must be a number of at least 0; 0 keeps all"),
        ({"top_n_sigma": math.inf}, "top_n_sigma must be a number of at least 0"),
        ({"seed": -1}, "seed must be in"),
        ({"seed": 2**64}, r"seed must be in \[0, 2\*\*64\), got 18446744073709551616"),
        ({"presence_penalty": 2.1}, r"presence_penalty must be in \[-2, 2\], got 2.1"),
        ({"presence_penalty": -2.1}, r"presence_penalty must be in \[-2, 2\], got -2.1"),
        ({"frequency_penalty": math.nan}, r"frequency_penalty must be in \[-2, 2\]"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a number above 0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty must be a number above 0"),
        ({"logit_bias": {5: 101.0}}, r"logit_bias must have values in \[-100, 100\], got 101.0"),
        ({"logit_bias": {5: -101.0}}, r"logit_bias must have values in \[-100, 100\], got -101.0"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias must map token ids, got -1"),
        ({"allowed_token_ids": []}, "allowed_token_ids must name at least one token"),
        ({"bad_words": ["a", " "]}, "bad_words must not hold an empty string"),
        ({"bad_words_token_ids": [[1], []]}, "bad_words_token_ids must not hold an empty"),
        ({"logprobs": -2}, "logprobs must be at least 0, or -1 for the whole vocabulary, got -2"),
        ({"prompt_logprobs": -2}, "prompt_logprobs must be at least 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"min_tokens": -1}, "min_tokens must be at least 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens must not exceed max_tokens"),
        ({"stop": ["a", ""]}, "stop must not hold an empty string"),
    ],
)
def test_a_value_out_of_range_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        SamplingParams(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"n": 1},
        {"n": MAX_N},
        {"temperature": 0.0},
        {"top_p": 1e-9},
        {"top_p": 1.0},
        {"top_k": -1},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"top_n_sigma": 0.0},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"presence_penalty": 2.0, "frequency_penalty": -2.0},
        {"repetition_penalty": 1e-9},
        {"logit_bias": {0: -100.0, 1: 100.0}},
        {"logprobs": -1, "prompt_logprobs": 0},
        {"max_tokens": 1, "min_tokens": 1},
        {"max_tokens": None, "min_tokens": 10**6},
    ],
    ids=str,
)
def test_the_ends_of_a_range_belong_to_it(options: dict[str, Any]) -> None:
    how = SamplingParams(**options)
    assert {name: getattr(how, name) for name in options} == options


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2.5),
        ("n", True),
        ("temperature", "0"),
        ("temperature", None),
        ("top_k", 1.5),
        ("seed", 1.5),
        ("logit_bias", [1, 2]),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: "much"}),
        ("allowed_token_ids", 5),
        ("allowed_token_ids", "abc"),
        ("allowed_token_ids", [1.5]),
        ("bad_words", [5]),
        ("bad_words_token_ids", [5]),
        ("bad_words_token_ids", "word"),
        ("bad_words_token_ids", 5),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("logit_bias", {"a": 1.0}),
        ("min_tokens", None),
        ("stop", 5),
        ("stop", b"x"),
        ("stop", [None]),
        ("stop_token_ids", ["a"]),
        ("ignore_eos", "yes"),
        ("skip_special_tokens", None),
        ("logprobs", True),
        ("structured_outputs", "{}"),
        ("output_kind", "delta"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} has the wrong type: Expected .*, got "):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("regex", 5), ("choice", "ab"), ("choice", [1]), ("grammar", b"x"), ("json_object", "yes")],
)
def test_a_constraint_of_the_wrong_type_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} has the wrong type: Expected "):
        StructuredOutputs(**{field: value})  # type: ignore[arg-type]


def test_numbers_of_numpy_and_any_iterable_will_do() -> None:
    how = SamplingParams(
        temperature=np.float64(0.5),
        seed=np.int64(7),  # type: ignore[arg-type]
        allowed_token_ids=range(3),  # type: ignore[arg-type]
        stop_token_ids=iter([5]),  # type: ignore[arg-type]
        bad_words_token_ids=[range(2)],  # type: ignore[arg-type]
    )
    assert how == SamplingParams(
        temperature=0.5,
        seed=7,
        allowed_token_ids=(0, 1, 2),
        stop_token_ids=(5,),
        bad_words_token_ids=((0, 1),),
    )
    assert type(how.seed) is int


def test_callers_may_write_strings_lists_and_none() -> None:
    how = SamplingParams(
        stop="x",  # type: ignore[arg-type]
        bad_words="y",  # type: ignore[arg-type]
        stop_token_ids=[1, 2],  # type: ignore[arg-type]
        allowed_token_ids=[3],  # type: ignore[arg-type]
        bad_words_token_ids=[[4, 5]],  # type: ignore[arg-type]
        logit_bias={},
    )
    assert (how.stop, how.bad_words, how.stop_token_ids) == (("x",), ("y",), (1, 2))
    assert (how.allowed_token_ids, how.bad_words_token_ids) == ((3,), ((4, 5),))
    assert how.logit_bias is None
    names = ("stop", "bad_words", "stop_token_ids", "bad_words_token_ids")
    assert SamplingParams(**dict.fromkeys(names)) == SamplingParams()  # type: ignore[arg-type]


def test_a_constraint_may_be_written_as_objects_and_lists() -> None:
    end: Any = iter([4, 5])
    schema, tag, choice = {"type": "null"}, {"format": {"type": "any_text"}}, ["a", "b"]
    assert StructuredOutputs(json=schema, reasoning_end_token_ids=end) == StructuredOutputs(  # type: ignore[arg-type]
        json='{"type":"null"}', reasoning_end_token_ids=(4, 5)
    )
    assert StructuredOutputs(json="{}").json == "{}", "text is taken as it is"
    assert StructuredOutputs(choice=iter(choice)) == StructuredOutputs(choice=("a", "b"))  # type: ignore[arg-type]
    found = StructuredOutputs(structural_tag=tag)  # type: ignore[arg-type]
    assert found.structural_tag == '{"format":{"type":"any_text"}}'
    assert found.json is None


def test_every_parameter_reaches_the_engine() -> None:
    how = SamplingParams(
        n=3,
        output_kind=RequestOutputKind.DELTA,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        top_n_sigma=2.0,
        seed=2**64 - 1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={7: -100.0, 9: 1.5},
        allowed_token_ids=(7, 9),
        bad_words=("no",),
        bad_words_token_ids=((1, 2), (3,)),
        max_tokens=None,
        min_tokens=2,
        stop=("a", "b"),
        stop_token_ids=(4,),
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        logprobs=5,
        prompt_logprobs=-1,
        structured_outputs=StructuredOutputs(regex="a+"),
    )
    request = GenerateRequest(request_id="r", prompt_token_ids=[1], params=how)
    assert decode_client_message(encode(request)) == request
    default = SamplingParams()
    unset = [f for f in how.__struct_fields__ if getattr(how, f) == getattr(default, f)]
    assert unset == [], "give them a value here, too"


def test_branches_draw_apart_and_report_the_prompt_once() -> None:
    how = SamplingParams(n=3, seed=2**64 - 1, logprobs=2, prompt_logprobs=1, top_k=5)
    first, second, third = (how.branch(index) for index in range(3))
    assert [b.seed for b in (first, second, third)] == [2**64 - 1, 0, 1]
    assert [b.prompt_logprobs for b in (first, second, third)] == [1, None, None]
    assert {(b.n, b.logprobs, b.top_k) for b in (first, second, third)} == {(1, 2, 5)}
    assert SamplingParams(n=2).branch(1).seed is None


def test_the_only_completion_is_asked_for_as_it_was_written() -> None:
    how = SamplingParams(n=1, seed=3)
    assert how.branch(0) is how
