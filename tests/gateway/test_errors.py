from __future__ import annotations

import inspect
import json
import logging

import pytest
from starlette.exceptions import HTTPException

from engine.errors import AdapterLoadError, EngineDead, InvalidRequest, QueueFull
from gateway import errors
from gateway.errors import (
    MAX_MESSAGE,
    MAX_PARAM,
    ApiError,
    InternalError,
    InvalidRequestError,
    quoted,
    to_api_error,
)
from gateway.logs import LogThrottle
from grammar.errors import CompilerUnavailable, CompileTimeout, InvalidGrammar, UnsupportedKeyword
from tenants import keys
from tenants.errors import (
    AuthenticationFailed,
    ObjectExists,
    ObjectNotFound,
    StoreUnavailable,
)

KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ApiError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_an_openai_error_object(kind: type[ApiError]) -> None:
    error = kind("why", param="p")
    body = json.loads(error.body())["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"] == "p: why"
    assert body["param"] == "p"
    assert 400 <= error.status < 600


@pytest.mark.parametrize(
    ("param", "message", "told"),
    [
        ("n", "Must be from 1 to 8.", "n: Must be from 1 to 8."),
        ("top_p", "top_p must be in (0, 1].", "top_p must be in (0, 1]."),
        ("tools[1].name", "There are two tools 'a'.", "tools[1].name: There are two tools 'a'."),
        ("messages[0].role", "Invalid value for messages[0].role.", None),
        ("max_tokens", "Set max_completion_tokens or this.", "max_tokens: Set max_c"),
        (None, "No.", "No."),
    ],
)
def test_a_message_alone_names_the_field(param: str | None, message: str, told: str | None) -> None:
    error = errors.InvalidRequestError(message, param=param)
    assert error.object().message.startswith(told or message)
    assert error.object().message.endswith(message)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_are_never_told_to_reconnect_after_bad_authentication(
    kind: type[ApiError],
) -> None:
    reconnecting = {1001, 1005, 1006, 1011, 1012, 1013, 1015}
    if kind.status < 500:
        assert kind.close_code not in reconnecting


@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_in_the_docstring_is_complete(kind: type[ApiError]) -> None:
    assert errors.__doc__ is not None
    assert f" {kind.__name__} " in errors.__doc__ or f"\n{kind.__name__} " in errors.__doc__


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (InvalidRequest("no"), 400, "invalid_request"),
        (QueueFull("full"), 503, "overloaded"),
        (AdapterLoadError("r is\n99"), 400, "invalid_adapter"),
        (ObjectExists("adapter", "a"), 409, "already_exists"),
        (ObjectNotFound("adapter", "a"), 404, "not_found"),
        (EngineDead("gone"), 503, "engine_unavailable"),
        (AuthenticationFailed("malformed"), 401, "invalid_api_key"),
        (AuthenticationFailed("unknown", "abc"), 401, "invalid_api_key"),
        (AuthenticationFailed("revoked", "abc"), 401, "invalid_api_key"),
        (AuthenticationFailed("expired", "abc"), 401, "invalid_api_key"),
        (StoreUnavailable("down"), 503, "store_unavailable"),
        (InvalidGrammar("$.x", "bad"), 400, "invalid_request"),
        (UnsupportedKeyword("not", "$.x"), 400, "invalid_request"),
        (CompileTimeout(5), 400, "invalid_request"),
        (CompilerUnavailable("no library"), 503, "formats_unavailable"),
        (HTTPException(404), 404, "not_found"),
        (HTTPException(400, "odd"), 400, "invalid_request"),
    ],
)
def test_errors_of_other_packages_are_translated(raised: Exception, status: int, code: str) -> None:
    error = to_api_error(raised)
    assert (error.status, error.code) == (status, code)


def test_one_message_for_all_bad_keys() -> None:
    """Whether a key exists is nobody's business."""
    messages = {
        to_api_error(e).message
        for e in (AuthenticationFailed("unknown", "abc"), AuthenticationFailed("malformed"))
    }
    (message,) = messages
    assert "abc" not in message
    key = keys.mint(b"pepper of 16 byte").text
    assert f"begins with {key[:7]} and has {len(key)} characters" in message


def test_who_comes_before_the_engine_is_told_how_to_wait() -> None:
    """Whether its model is loading for the first time or it died."""
    error = to_api_error(EngineDead("not started"))
    assert "being started" in error.message
    assert "/readyz" in error.message
    assert error.headers()["retry-after"] == "2"


def test_what_nobody_foresaw_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        error = to_api_error(RuntimeError("secret detail"))
    assert isinstance(error, InternalError)
    assert "secret detail" not in error.message
    assert "secret detail" in caplog.text


def test_an_api_error_is_itself() -> None:
    error = errors.Overloaded("x")
    assert to_api_error(error) is error


def test_retry_headers() -> None:
    soon = errors.Overloaded("x", retry_after_s=0.2)
    assert soon.headers()["retry-after"] == "1"
    assert "x-should-retry" not in soon.headers()
    assert soon.headers(began=True)["x-should-retry"] == "false"
    assert InternalError("x").headers()["x-should-retry"] == "false"
    assert "x-should-retry" not in errors.NotFound("x").headers()
    assert errors.InvalidApiKey("x").headers()["www-authenticate"] == "Bearer"


def test_what_a_client_sent_is_shown_in_part() -> None:
    assert quoted("a'b") == repr("a'b")
    assert quoted("x" * 64) == repr("x" * 64)
    assert quoted("x" * 65) == repr("x" * 64 + "…")
    shown = InvalidRequestError("y" * 10_000, param="z" * 10_000).object()
    assert len(shown.message) == MAX_MESSAGE
    assert shown.param == "z" * MAX_PARAM


@pytest.mark.parametrize("param", ["", ".", "[0]", "((", "a.\n", "\\", "x" * 5000])
def test_a_name_may_be_anything(param: str) -> None:
    shown = InvalidRequestError("No.", param=param).object()
    assert shown.message == f"{param[:MAX_PARAM]}: No."


def test_a_fault_of_ours_that_every_request_meets_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    throttle = LogThrottle(burst=2, per_s=1.0, clock=lambda: now)
    monkeypatch.setattr(errors, "_seldom", throttle)
    for _ in range(5):
        assert isinstance(to_api_error(RuntimeError("bug")), InternalError)
        assert to_api_error(CompilerUnavailable("killed")).code == "formats_unavailable"
    unavailable = "the grammar compiler is not available: killed"
    assert caplog.messages == ["unexpected error", unavailable] * 2
    now = 1.0
    to_api_error(RuntimeError("bug"))
    assert caplog.messages[-1] == "unexpected error, and 3 more of this type"
