"""Errors that clients rely on stay as they were recorded: status, object and headers."""

from __future__ import annotations

import json

import pytest

from tests.gateway import error_cases
from tests.gateway.engine_double import EngineDouble, says
from tests.gateway.serving import Gateway


@pytest.mark.asyncio
async def test_bad_requests_are_answered_as_recorded(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = says("Hi")
    recorded = json.loads(error_cases.RECORDED.read_text())
    found = await error_cases.answers(gateway)
    assert found.keys() == recorded.keys()
    changed = {
        name: (recorded[name], found[name]) for name in found if found[name] != recorded[name]
    }
    assert not changed
