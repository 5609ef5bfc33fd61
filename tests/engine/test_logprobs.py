from __future__ import annotations

import pytest

from engine.logprobs import Logprobs
from engine.messages import TokenLogprobs
from engine.sampling_params import SamplingParams


def found(*token_ids: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(token_id, -1.0, 1) for token_id in token_ids]


def test_nothing_is_kept_for_those_who_do_not_ask() -> None:
    assert Logprobs.asked_for(SamplingParams(), 9, has_begun=False) is None


def test_tokens_that_are_not_delivered_take_theirs_along() -> None:
    logprobs = Logprobs.asked_for(SamplingParams(logprobs=0), 3, has_begun=False)
    assert logprobs is not None
    logprobs.add(found(7, 8, 9))
    assert logprobs.take(2) == found(7, 8)
    assert logprobs.take(0) == []
    with pytest.raises(AssertionError, match="without its log-probability"):
        logprobs.take(1)
    assert logprobs.take_prompt() is None


def test_the_prompt_is_delivered_once_and_whole() -> None:
    logprobs = Logprobs(SamplingParams(prompt_logprobs=2), 6, has_begun=False)
    logprobs.add_prompt(1, found(1, 2))
    assert not logprobs.has_prompt
    assert logprobs.take_prompt() is None
    logprobs.add_prompt(3, found(3, 4, 5))
    assert logprobs.has_prompt
    assert logprobs.take_prompt() == found(1, 2, 3, 4, 5)
    assert logprobs.take_prompt() is None
    assert logprobs.take(1) is None, "only the prompt's were asked for"


def test_what_is_computed_again_is_not_taken_again() -> None:
    logprobs = Logprobs(SamplingParams(prompt_logprobs=0), 6, has_begun=False)
    logprobs.add_prompt(1, found(1, 2, 3))
    logprobs.add_prompt(1, found(1, 2))
    logprobs.add_prompt(3, found(3, 4))
    with pytest.raises(AssertionError, match="are missing"):
        logprobs.add_prompt(6, found(6))
    logprobs.add_prompt(5, found(5))
    assert logprobs.take_prompt() == found(1, 2, 3, 4, 5)
    logprobs.add_prompt(1, found(1))
    assert logprobs.take_prompt() is None


def test_a_prompt_of_one_token_has_none() -> None:
    logprobs = Logprobs(SamplingParams(prompt_logprobs=0), 1, has_begun=False)
    assert logprobs.has_prompt
    assert logprobs.take_prompt() == []
