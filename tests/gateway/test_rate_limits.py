from __future__ import annotations

import pytest

from gateway import rate_limits
from gateway.errors import InsufficientQuota, RequestTooLarge, to_api_error
from tenants.errors import QuotaExceeded
from tenants.limits import LimitName, QuotaAnswer, Window


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (17_000, "17ms"),
        (8_640_000, "8.64s"),
        (60_000_000, "1m0s"),
        (360_000_000, "6m0s"),
        (61_500_000, "1m1.5s"),
        (3_600_000_000, "1h0m0s"),
        (59_999_999, "1m0s"),
        (999_000, "999ms"),
        (999_001, "1s"),
        (3_599_999_000, "59m59.999s"),
        (3_599_999_001, "1h0m0s"),
    ],
)
def test_durations_are_written_as_openai_does(microseconds: int, text: str) -> None:
    assert rate_limits.duration(microseconds) == text


def test_only_what_is_limited_is_told() -> None:
    assert rate_limits.headers(QuotaAnswer(state="running")) == {}
    tokens = Window(limit=100, remaining=40, reset_us=36_000_000)
    assert rate_limits.headers(QuotaAnswer(state="running", tokens=tokens)) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "40",
        "x-ratelimit-reset-tokens": "36s",
    }


def refusal(name: LimitName, wait_us: int | None) -> QuotaExceeded:
    requests = Window(limit=1, remaining=0, reset_us=60_000_000)
    return QuotaExceeded(
        QuotaAnswer(
            state="refused", refused_by=name, scope_kind="key", wait_us=wait_us, requests=requests
        )
    )


def test_a_refusal_that_passes_says_when() -> None:
    error = to_api_error(refusal("requests", 1_500_001))
    headers = error.headers()
    assert (error.status, error.code, error.retryable) == (429, "rate_limit_exceeded", True)
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1501")
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert "x-should-retry" not in headers


def test_nobody_knows_when_a_slot_is_free() -> None:
    headers = to_api_error(refusal("concurrent", None)).headers()
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "1000")


@pytest.mark.parametrize("name", ["monthly_tokens", "monthly_cost"])
def test_a_budget_is_no_reason_to_try_again(name: LimitName) -> None:
    error = to_api_error(refusal(name, None))
    assert isinstance(error, InsufficientQuota)
    assert (error.type, error.code) == ("insufficient_quota", "insufficient_quota")
    headers = error.headers()
    assert headers["x-should-retry"] == "false"
    assert not headers.keys() & {"retry-after", "retry-after-ms"}


def test_a_request_that_never_fits_is_no_reason_to_try_again() -> None:
    error = to_api_error(refusal("tokens", None))
    assert isinstance(error, RequestTooLarge)
    assert error.code == "rate_limit_exceeded"
    headers = error.headers()
    assert headers["x-should-retry"] == "false"
    assert not headers.keys() & {"retry-after", "retry-after-ms"}
