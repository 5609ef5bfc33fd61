"""What no proper client sends is answered as the tables of ``shapes`` say, and never with a 500."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.middleware import body_limit
from tests.attack import shapes
from tests.attack.neighbour import Neighbour
from tests.attack.serving import Deployment, assert_memory_is_back
from tests.attack.shapes import Heard, Target
from tests.gateway import tiny_model
from tests.gateway.serving import served_double

pytestmark = pytest.mark.asyncio

LIMITS: dict[str, Any] = {
    **dict.fromkeys(("body_timeout_s", "ws_auth_timeout_s"), 0.5),
    "header_timeout_s": 3.0,
}
"""So that what never ends is waited for a moment only; headers that come byte by byte take a while
on a busy machine."""
NUM_ROUNDS = 3


def wrong_answers(got: Sequence[tuple[int, ...]]) -> dict[str, object]:
    return {
        shape.name: (shape.statuses, statuses)
        for shape, statuses in zip(shapes.HTTP, got, strict=True)
        if statuses != shape.statuses
    }


def wrong_ends(got: Sequence[Heard]) -> dict[str, Heard]:
    return {
        shape.name: heard
        for shape, heard in zip(shapes.SOCKETS, got, strict=True)
        if (heard.status, heard.code) != (shape.status, shape.code) or shape.says not in heard.said
    }


async def test_every_shape_is_answered_as_the_tables_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_limit, "DRAIN_S", 0.2)  # what is read of a petabyte
    async with served_double(tiny_model.build(tmp_path), **LIMITS) as (gateway, _):
        target = Target(gateway.host, gateway.port, gateway.api_key)
        assert wrong_answers(await shapes.all_statuses(target)) == {}
        assert wrong_ends(await shapes.all_heard(target)) == {}
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.nightly
@pytest.mark.pg
async def test_no_shape_harms_a_neighbour(database: str) -> None:
    with Deployment(database, replay_tokens_per_s=20, settings={"server": LIMITS}) as deployment:
        attacker, calm_one = deployment.member("attacker"), deployment.member("calm")
        target = Target(deployment.host, deployment.port, attacker.key)
        await shapes.all_statuses(target)
        await shapes.all_heard(target)
        before = deployment.memory()
        async with Neighbour(deployment, calm_one.key) as neighbour:
            calm = await neighbour.watch_for(5)
            async with neighbour.watch() as attacked:
                for _ in range(NUM_ROUNDS):
                    assert wrong_answers(await shapes.all_statuses(target)) == {}
                    assert wrong_ends(await shapes.all_heard(target)) == {}
        attacked.assert_unharmed(calm)
        assert_memory_is_back(deployment, before, within_bytes=50 * 2**20)
        assert "Traceback" not in deployment.output()
        assert (await deployment.settled(attacker)).requests == 0
