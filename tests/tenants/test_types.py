from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest

from tenants.errors import InvalidValue
from tenants.types import UsageEvent
from tests.tenants.samples import make_event


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_tokens", -1),
        ("prompt_tokens", 2**31),
        ("cached_tokens", -1),
        ("cached_tokens", 101),
        ("completion_tokens", -1),
        ("completion_tokens", 2**31),
        ("status", "paid"),
        ("created_at", datetime(2031, 1, 1)),
    ],
)
def test_impossible_usage_cannot_be_made(field: str, value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        make_event(**{field: value})
    assert caught.value.field == field


def test_event_survives_json() -> None:
    """Events that cannot be written are logged as JSON, to be entered by hand."""
    event = make_event()
    assert msgspec.json.decode(msgspec.json.encode(event), type=UsageEvent) == event
