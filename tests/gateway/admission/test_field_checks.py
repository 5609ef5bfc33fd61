"""Fields of chats and completions at their limits, and just beyond them."""

from __future__ import annotations

import pytest

from gateway.admission import field_checks
from gateway.errors import ContextLengthExceeded, InvalidRequestError
from gateway.schemas.chat import ChatFields
from gateway.schemas.completions import CompletionRequest


def refused(check: object, *arguments: object, **named: object) -> str | None:
    """The field that the refusal names."""
    with pytest.raises(InvalidRequestError) as caught:
        check(*arguments, **named)  # type: ignore[operator]
    return caught.value.param


def test_the_answer_has_the_room_that_the_prompt_leaves() -> None:
    assert field_checks.room(99, 100, param="messages") == 1
    with pytest.raises(ContextLengthExceeded, match="resulted in 100 tokens") as caught:
        field_checks.room(100, 100, param="messages")
    assert caught.value.param == "messages"


def test_an_answer_must_fit_behind_its_prompt() -> None:
    field_checks.check_fits(60, 40, 100, param="max_tokens")
    with pytest.raises(ContextLengthExceeded, match="requested 101 tokens") as caught:
        field_checks.check_fits(61, 40, 100, param="max_tokens")
    assert caught.value.param == "max_tokens"


def test_the_end_user_comes_from_either_field() -> None:
    def chat(user: str | None, safety_identifier: str | None) -> ChatFields:
        return ChatFields(messages=[], user=user, safety_identifier=safety_identifier)

    assert field_checks.end_user(chat(None, None)) is None
    assert field_checks.end_user(chat("ann", None)) == "ann"
    assert field_checks.end_user(chat(None, "ann")) == "ann"
    assert field_checks.end_user(chat("ann", "ann")) == "ann"
    assert field_checks.end_user(CompletionRequest(model="m", prompt="", user="ann")) == "ann"
    assert field_checks.end_user(chat("ann", "bob")) == "bob"
    assert refused(field_checks.end_user, chat("a\0nn", None)) == "user"
    assert refused(field_checks.end_user, chat(None, "a\0nn")) == "safety_identifier"


def test_a_cache_salt_has_a_length() -> None:
    field_checks.check_cache_salt(None)
    field_checks.check_cache_salt("s" * field_checks.MAX_CACHE_SALT)
    salt = "s" * (field_checks.MAX_CACHE_SALT + 1)
    assert refused(field_checks.check_cache_salt, salt) == "cache_salt"


@pytest.mark.parametrize(("n", "expected"), [(None, 1), (1, 1), (field_checks.MAX_CHOICES, 8)])
def test_choices_are_counted(n: int | None, expected: int) -> None:
    assert field_checks.num_choices(n) == expected


@pytest.mark.parametrize("n", [-1, 0, field_checks.MAX_CHOICES + 1])
def test_there_are_not_too_many_choices_nor_none(n: int) -> None:
    assert refused(field_checks.num_choices, n) == "n"


def test_metadata_has_openais_limits() -> None:
    field_checks.check_metadata(None)
    field_checks.check_metadata({f"{n:064d}": "v" * 512 for n in range(16)})
    many = dict.fromkeys(map(str, range(17)), "")
    assert refused(field_checks.check_metadata, many) == "metadata"
    assert refused(field_checks.check_metadata, {"k" * 65: ""}) == f"metadata.{'k' * 64}"
    assert refused(field_checks.check_metadata, {"k": "v" * 513}) == "metadata.k"
